"""`purine trace`: where the time of a run went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument
from purine.errors import ConfigError

__all__ = ["trace"]


def trace(
    path: Annotated[Path, argument("A run or a trace.json.", metavar="RUN|FILE")],
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
) -> None:
    """Sum up a trace: time by kind, busy lanes, the critical path and its longest waits.

    For GPUs and for several devices also: how long each computed, what it waited for, and how much
    of the transfers and reductions was hidden behind compute. All without warm-up: the first
    iteration, or the first three where ops are fused, which are compiled and captured in these.

    \b
    purine train --net lenet --iters 50 --trace --out runs/a
    purine trace runs/a --top 5
    """
    from purine.trace.overlap import devices_of_trace, overlap
    from purine.trace.summary import summary
    from purine.trace.trace import Trace

    recorded = Trace.load(_trace_of(path) if os.path.isdir(path) else path)
    typer.echo(summary(recorded).text(top=top), nl=False)
    devices = devices_of_trace(recorded)
    if len(devices) > 1 or any(", cuda:" in device for device in devices):
        typer.echo(f"\n{overlap(recorded).text()}", nl=False)


def _trace_of(run: Path) -> Path:
    file = run / "trace.json"
    if not file.exists():
        names = sorted(entry.name for entry in run.iterdir() if not entry.name.startswith("."))
        expected = "trace.json, which `purine train --trace` writes"
        found = ", ".join(names[:8]) or "an empty folder"
        remedy = "train with --trace, or name the file of a trace"
        raise ConfigError("there is no trace in this folder", expected, found, remedy, where=run)
    return file
