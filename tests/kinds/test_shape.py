from __future__ import annotations

import pytest
import torch

from purine.errors import KindError
from purine.kinds import Net, concat, flatten, reshape, slice, split, transpose
from purine.kinds.shape import Concat, Flatten, Reshape, Slice, Split, Transpose
from tests.reference import run

X = torch.arange(24.0).reshape(2, 3, 4)


def test_functions() -> None:
    assert torch.equal(Concat(X, X, axis=2), torch.cat([X, X], 2))
    assert [part.shape for part in Split(X, parts=2, axis=2)] == [(2, 3, 2)] * 2
    assert torch.equal(Slice(X, axis=2, start=1, end=3), X[:, :, 1:3])
    assert torch.equal(Slice(X, start=2), X[:, 2:])
    assert Flatten(X).shape == (2, 12)
    assert Flatten(X, axis=0, end=1).shape == (6, 4)
    assert Reshape(X, shape=(0, -1, 2)).shape == (2, 6, 2)
    assert torch.equal(Transpose(X, axes=(2, 0, 1)), X.permute(2, 0, 1))


def test_reshape_of_a_transposed_blob() -> None:
    turned = Transpose(X, axes=(2, 0, 1))
    assert torch.equal(Reshape(turned, shape=(-1,)), turned.contiguous().flatten())


def test_split_and_concat_are_inverse() -> None:
    net = Net()
    parts = split(net.input("x", X.shape), 3, name="cut")
    assert [part.shape for part in parts] == [(2, 1, 4)] * 3
    concat(parts, name="joined")
    assert torch.equal(run(net.graph(), {"x": X})["joined"], X)


def test_layers() -> None:
    x = Net().input("x", X.shape)
    assert slice(x, 1, 3).shape == (2, 2, 4)
    assert slice(x, 2, axis=-1).shape == (2, 3, 2)
    assert flatten(x).shape == (2, 12)
    assert reshape(x, (0, 0, 2, 2)).shape == (2, 3, 2, 2)
    assert transpose(x, (0, 2, 1)).shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("kind", "attributes", "message"),
    [
        ("Split", {"parts": 2}, "3 along axis 1 cannot be cut into 2 equal parts"),
        ("Split", {"parts": 0}, "0 equal parts"),
        ("Slice", {"start": 2, "end": 2}, "2 to 2 is no part of 0 to 3"),
        ("Slice", {"start": 0, "end": 4}, "0 to 4 is no part of 0 to 3"),
        ("Slice", {"axis": 3}, "axis is 3"),
        ("Reshape", {"shape": (2, 3, 4, 0)}, "0 at place 3"),
        ("Reshape", {"shape": (5, -1)}, "op 'mine'"),
    ],
)
def test_mistakes(kind: str, attributes: dict[str, int], message: str) -> None:
    net = Net()
    with pytest.raises(KindError, match="op 'mine'") as caught:
        net.apply(kind, [net.input("x", X.shape)], attributes, name="mine")
    assert message in str(caught.value)
