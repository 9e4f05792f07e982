"""Convolutions of one blob as one: fewer ops, the same numbers, the same parameters."""

from __future__ import annotations

import torch

import purine as pu
from purine.graph import Graph
from purine.ops import Net, Var, conv
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
