"""Small float64 steps, trained serially and in parallel, and compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import purine as pu
from purine.graph import Builder, Graph

__all__ = [
    "Trained",
    "agree",
    "float64",
    "googlenet",
    "images",
    "in_order",
    "lenet",
    "same_bits",
    "trained",
]


@dataclass(frozen=True)
class Trained:
    """The losses of a few steps, and the states behind them."""

    losses: list[float]
    states: dict[str, Tensor]


def images(shape: tuple[int, ...] = (1, 28, 28), count: int = 120) -> pu.data.DataSet:
    """Images and labels in float64."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (count,), generator=generator)
    source = pu.data.ArraySource(values.numpy(), labels.numpy(), classes=10)
    return pu.data.DataSet("random", source)


@cache
def lenet(batch: int) -> Graph:
    """A step of lenet with momentum and clipped gradients."""
    net = float64(pu.zoo.lenet(batch=batch))
    return pu.solvers.sgd(
        pu.solvers.clip_by_norm(pu.backward(net), 0.5), lr=0.05, momentum=0.9, weight_decay=1e-3
    )


def googlenet(batch: int, **options: Any) -> Graph:
    """GoogLeNet with four of its nine inception modules: pools and auxiliary losses follow them."""
    module = import_module("purine.zoo.googlenet")
    kept = {name: module._MODULES[name] for name in ("3b", "4a", "4d", "4e")}
    with patch.object(module, "_MODULES", kept):
        return pu.zoo.googlenet(batch, classes=10, **options)


def float64(net: Graph) -> Graph:
    """The net with all its float32 blobs in float64."""
    builder = Builder(net)
    for name, blob in net.blobs.items():
        if blob.dtype == "float32":
            builder.blobs[name] = replace(blob, dtype="float64")
    return pu.check(builder.graph())


def in_order(step: Graph) -> Graph:
    """The step with samples read as they lie in the source."""
    builder = Builder(step)
    for op in step.ops.values():
        if op.kind == "Data":
            builder.ops[op.name] = replace(op, attributes={**op.attributes, "shuffle": False})
    return builder.graph()


def trained(step: Graph, *, data: pu.data.DataSet | None = None, steps: int = 5) -> Trained:
    """Run a few steps with one thread for each device."""
    data = data or images()
    with pu.Run(step, data=data, seed=3, threads=1, share_cores=True) as run:
        return Trained([result.loss for result in run.steps(steps)], run.states())


def agree(found: Trained, expected: Trained, *, tolerance: float = 1e-9) -> None:
    """Assert that two trainings gave the same losses and states, but for rounding."""
    assert len(found.losses) == len(expected.losses)
    for one, other in zip(found.losses, expected.losses, strict=True):
        assert abs(one - other) <= tolerance * max(1.0, abs(other))
    assert found.states.keys() == expected.states.keys()
    for name, value in expected.states.items():
        if not _within(found.states[name], value, tolerance):  # the quicker of the two
            torch.testing.assert_close(found.states[name], value, rtol=tolerance, atol=tolerance)


def _within(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether surely no value differs by more."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    comparable = expected.is_floating_point() and expected.numel() > 0
    return comparable and bool((found - expected).abs_().max() <= tolerance)


def same_bits(found: Trained, expected: Trained) -> None:
    """Assert that two trainings gave the same losses and states, bit for bit."""
    assert [loss.hex() for loss in found.losses] == [loss.hex() for loss in expected.losses]
    assert found.states.keys() == expected.states.keys()
    differing = [
        name
        for name, value in expected.states.items()
        if found.states[name].numpy().tobytes() != value.numpy().tobytes()
    ]
    assert not differing
