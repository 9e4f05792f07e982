"""Small runs for the tests of the command line, and how to compare them."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from purine.runtime import checkpoint

SMALL = ("train", "--net", "mlp", "--data", "fashion-mini", "--batch", "32")
TIMES = ("images_per_second", "seconds")


def metrics(run: Path) -> list[dict[str, object]]:
    """The rows of the metrics without what depends on the clock."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def states(run: Path) -> dict[str, torch.Tensor]:
    return dict(checkpoint.load(run).values)


def same_bits(first: Path, second: Path) -> bool:
    """Whether the newest checkpoints of two runs hold the same states, bit for bit."""
    one, two = states(first), states(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
