from __future__ import annotations

import math

import pytest
import torch

from purine.kinds import Net, elu, gelu, leaky_relu, relu, sigmoid, tanh
from purine.kinds.activation import Elu, Gelu, LeakyRelu, Relu, Sigmoid, Tanh

X = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)


def normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Relu(X), lambda x: max(x, 0)),
        (LeakyRelu(X, slope=0.1), lambda x: x if x > 0 else 0.1 * x),
        (Sigmoid(X), lambda x: 1 / (1 + math.exp(-x))),
        (Tanh(X), math.tanh),
        (Gelu(X), lambda x: x * normal(x)),
        (Elu(X, alpha=2.0), lambda x: x if x > 0 else 2 * math.expm1(x)),
    ],
)
def test_functions(found: torch.Tensor, expected: object) -> None:
    assert callable(expected)
    assert found.tolist() == pytest.approx([expected(x) for x in X.tolist()])


def test_the_tanh_form_of_gelu_is_close_but_not_the_same() -> None:
    exact, near = Gelu(X), Gelu(X, approximate="tanh")
    assert not torch.equal(exact, near)
    torch.testing.assert_close(exact, near, rtol=0, atol=1e-3)


def test_layers_keep_the_shape_and_their_settings() -> None:
    net = Net()
    x = net.input("x", (2, 3))
    layers = [
        relu(x),
        leaky_relu(x, slope=0.2),
        sigmoid(x),
        tanh(x),
        gelu(x, approximate="tanh"),
        elu(x, alpha=0.5),
    ]
    assert [y.name for y in layers] == ["relu", "leaky_relu", "sigmoid", "tanh", "gelu", "elu"]
    assert {y.shape for y in layers} == {(2, 3)}
    ops = net.graph().ops
    assert ops["leaky_relu"].attributes == {"slope": 0.2}
    assert ops["gelu"].attributes == {"approximate": "tanh"}
    assert ops["elu"].attributes == {"alpha": 0.5}
