"""What a program may write over: never a value that somebody else still reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import purine as pu
from purine.graph import Attribute, Builder
from purine.ops import check
from purine.runtime.core import compile_plan
from purine.runtime.program import compile_program


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("aten.reshape", {"shape": (6,)}),
        ("aten.dropout", {"p": 0.5, "train": False}),
        ("aten.atleast_1d", {}),
        ("aten.clone", {}),
    ],
)
def test_a_value_is_safe_behind_whatever_may_be_its_view(
    kind: str, attributes: dict[str, Attribute]
) -> None:
    """h, then perhaps a view of it, then an op that would like to write over that view."""
    b = Builder()
    b.blob("x", (6,))
    b.op("h", "aten.exp", ["x"], [b.blob("h", (6,))])
    b.op("view", kind, ["h"], [b.blob("v", (6,))], attributes)
    b.op("negative", "aten.neg", ["v"], [b.blob("a", (6,))])
    b.outputs = ["h", "a"]
    found = pu.compute(b.graph(), {"x": torch.zeros(6)})
    assert found["h"].tolist() == [1.0] * 6
    assert found["a"].tolist() == [-1.0] * 6


def test_an_elementwise_op_writes_over_an_input_that_nobody_else_reads() -> None:
    b = Builder()
    b.blob("x", (6,))
    b.op("h", "aten.exp", ["x"], [b.blob("h", (6,))])
    b.op("r", "aten.relu", ["h"], [b.blob("r", (6,))])
    b.op("s", "aten.tanh", ["r"], [b.blob("s", (6,))])
    b.outputs = ["r", "s"]
    graph = check(b.graph())
    plan = compile_plan(graph)
    steps = dict(zip(plan.ops, compile_program(graph, plan, {}).steps, strict=True))
    value = torch.ones(6)
    assert steps["r"].kernel(value) is value
    assert steps["s"].kernel(value) is not value, "r is an output"


def test_an_op_whose_kernel_returns_a_list_of_one() -> None:
    b = Builder()
    b.blob("x", (4,))
    b.op("split", "aten.split.Tensor", ["x"], [b.blob("y", (4,))], {"split_size": 4})
    b.op("relu", "aten.relu", ["y"], [b.blob("z", (4,))])
    b.outputs = ["z"]
    assert pu.compute(b.graph(), {"x": torch.ones(4)})["z"].tolist() == [1.0] * 4


def test_nothing_is_written_over_elements_that_share_memory() -> None:
    """An expanded value whose only reader is on another device, in another segment."""
    b = Builder()
    other = pu.Location(device="cpu:1")
    b.blob("x", (1, 6))
    b.blob("y", (4, 6), location=other)
    b.op("h", "aten.exp", ["x"], [b.blob("h", (1, 6))])
    b.op("wide", "aten.expand", ["h"], [b.blob("w", (4, 6))], {"size": (4, 6)})
    b.op("product", "aten.mul.Tensor", ["w", "y"], [b.blob("p", (4, 6), location=other)])
    b.ops["product"] = replace(b.ops["product"], location=other)
    b.outputs = ["p"]
    graph = pu.parallel.insert_copies(b.graph())
    y = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(pu.compute(graph, {"x": torch.zeros(1, 6), "y": y})["p"], y)
