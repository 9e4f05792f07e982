"""What a program may write over: never a value that somebody else still reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import check
from purine.graph import NOTHING, Attribute, Builder
from purine.lowering import Lowered
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
    program = compile_program(Lowered(graph))
    steps = dict(zip(program.plan.ops, program.steps, strict=True))
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


def test_a_view_that_nobody_wants() -> None:
    b = Builder()
    b.blob("x", (4,))
    names = [NOTHING, b.blob("y", (2,))]
    b.op("split", "aten.split.Tensor", ["x"], names, {"split_size": 2})
    b.op("h", "aten.exp", ["y"], [b.blob("h", (2,))])
    b.outputs = ["h"]
    assert pu.compute(b.graph(), {"x": torch.zeros(4)})["h"].tolist() == [1.0, 1.0]


def test_nothing_is_written_over_elements_that_share_memory() -> None:
    """A forward's expanded value that the backward alone reads, from another segment."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.second(x.mean(-1, keepdim=True).expand(x.shape) * x)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(y, target)

    torch.manual_seed(0)
    module = Gated()
    data = torch.randn(16, 6), torch.randn(16, 3).sign()
    imported = pu.from_torch(module, loss, data)
    step = pu.compose(
        imported.net,
        solver=lambda graph: pu.solvers.sgd(graph, lr=0.1),
        devices="cpu:0-1",
        model=2,
    )
    with pu.Run(step, data=data, share_cores=True) as run:
        run.set_states(imported.values)
        first, _ = (result.loss for result in run.steps(2))
    assert first == pytest.approx(loss(module(data[0]), data[1]).item())
