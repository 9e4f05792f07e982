from __future__ import annotations

import pytest
import torch

from purine.errors import KindError
from purine.kinds import Net, eltwise
from purine.kinds.eltwise import Eltwise
from tests.reference import run

A, B, C = (torch.tensor(values) for values in ([1.0, 5.0], [2.0, -3.0], [4.0, 0.5]))


def test_operations() -> None:
    assert Eltwise(A, B, C).tolist() == [7.0, 2.5]
    assert Eltwise(A, B, C, coefficients=(1.0, -1.0, 2.0)).tolist() == [7.0, 9.0]
    assert Eltwise(A, B, C, operation="product").tolist() == [8.0, -7.5]
    assert Eltwise(A, B, C, operation="max").tolist() == [4.0, 5.0]


def test_layer() -> None:
    net = Net()
    a, b = net.input("a", (2,)), net.input("b", (2,))
    eltwise([a, b], coefficients=[1, -1], name="difference")
    assert run(net.graph(), {"a": A, "b": B})["difference"].tolist() == [-1.0, 8.0]


def test_mistakes() -> None:
    net = Net()
    a, b = net.input("a", (2,)), net.input("b", (2,))
    with pytest.raises(KindError, match="has 1 inputs"):
        eltwise([a])
    with pytest.raises(KindError, match="3 coefficients for 2 inputs"):
        eltwise([a, b], coefficients=[1, 2, 3])
    with pytest.raises(KindError, match="coefficients are for sums"):
        eltwise([a, b], operation="max", coefficients=[1, 2])
