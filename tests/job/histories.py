"""Folders of runs that were never trained: a job, and the lines of metrics one asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from purine.job import Job, make_plan, merge
from purine.job.folder import RunFolder


@cache
def settled() -> Job:
    return make_plan(merge({}, {"net": "mlp", "data": "fashion-mini", "iters": 40})).job


def rows(count: int, *, factor: float = 1.0, start: float = 0.0) -> list[dict[str, object]]:
    """Lines of metrics every 10 iterations, with a test every 20."""
    lines: list[dict[str, object]] = []
    for at in range(10, count + 1, 10):
        loss = 2.0 * factor / at + start
        numbers = {"loss": loss, "accuracy": 1 - 1 / at, "lr": 0.01, "images_per_second": 100.0}
        lines.append({"iteration": at, "epoch": 1, **numbers, "seconds": at / 10})
        if at % 20 == 0:
            tested = {"test_loss": loss + 0.1, "test_accuracy": 1 - 2 / at}
            lines.append({"iteration": at, "epoch": 1, **tested})
    return lines


def written(
    path: Path,
    metrics: Sequence[Mapping[str, object]] = (),
    *,
    finished: bool = True,
    **options: object,
) -> Path:
    """The folder of a run with these lines of metrics."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.write_config(replace(settled(), **options))  # type: ignore[arg-type]
    folder.metrics_file.write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
    if finished:
        folder.write_summary({"iterations": 40, "images_per_second": 123.4})
    return path
