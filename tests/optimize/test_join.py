"""Convolutions of one blob as one: fewer ops, the same numbers, the same parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import purine as pu
from purine.graph import Graph
from purine.kinds import Net, Var, conv
from purine.optimize import join
from tests.parallel.nets import agree, float64, images, trained


def convolutions(net: Graph) -> int:
    return sum(op.kind == "Conv" for op in net.ops.values())


def test_an_inception_net_trains_as_before() -> None:
    net = float64(pu.zoo.googlenet(4, image=(3, 32, 32), classes=10, dropout=0.0))
    joined = join(net)
    assert convolutions(net) - convolutions(joined) == 18
    assert joined.states.keys() == net.states.keys()
    found, expected = (
        trained(
            pu.solvers.sgd(pu.backward(graph), lr=1e-3, momentum=0.9),
            data=images((3, 32, 32)),
            steps=3,
        )
        for graph in (joined, net)
    )
    agree(found, expected)


def branches(**second: object) -> Graph:
    net = Net()
    x = net.input("x", (2, 4, 5, 5))
    first: Var = conv(x, 3, kernel=1, name="first")
    settings: dict[str, object] = {"kernel": 1, "name": "second", **second}
    other: Var = conv(x, 5, **settings)  # type: ignore[arg-type]
    net.builder.outputs = [first.name, other.name]
    return net.graph()


def test_biases_are_joined_too() -> None:
    net = branches()
    joined = join(net)
    assert convolutions(joined) == 1
    given = {"x": torch.randn(2, 4, 5, 5)}
    found, expected = (pu.compute(graph, given, seed=3) for graph in (joined, net))
    for name in ("first", "second"):
        assert torch.allclose(found[name], expected[name], atol=1e-6)


def test_other_windows_and_strides_stay_apart() -> None:
    for second in ({"kernel": 3, "pad": 1}, {"stride": 2}, {"bias": False}):
        assert convolutions(join(branches(**second))) == 2


class Inception(nn.Module):
    """Three convolutions of 1 x 1 of one blob, as in GoogLeNet, and one that pads by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(8, 3, 1), nn.ReLU(), nn.Conv2d(3, 6, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 5, 5, padding=2))
        self.wide = nn.Conv2d(8, 2, 3, padding="same")
        self.wider = nn.Conv2d(8, 3, 3, padding="same")
        self.out = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        parts = [self.one(x), self.three(x), self.five(x), self.wide(x), self.wider(x)]
        found: Tensor = self.out(torch.cat(parts, 1).relu().mean((2, 3)))
        return found


def test_an_imported_inception_is_joined_and_trains_as_before() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    imported = pu.from_torch(Inception().double(), nn.functional.cross_entropy, (x, y))
    joined = join(imported.net)

    def count(net: Graph) -> int:
        return sum(op.kind.startswith("aten.conv2d") for op in net.ops.values())

    assert (count(imported.net), count(joined)) == (8, 5)
    assert joined.states.keys() == imported.net.states.keys()
    losses = []
    source = pu.data.ArraySource(x.numpy(), y.numpy(), classes=5)
    data = pu.data.DataSet("random", source)
    for net in (imported.net, joined):
        with pu.Run(pu.solvers.sgd(pu.backward(net), lr=0.1, momentum=0.9), data=data) as run:
            run.set_states(imported.values)
            losses.append([result.loss for result in run.steps(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert losses[0][2] < losses[0][0]
