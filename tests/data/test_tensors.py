from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import purine as pu
from purine.data import TensorSource, tensors
from purine.errors import DataError


@pytest.mark.parametrize(
    ("column", "field"),
    [
        (torch.zeros(4, 8), "tensor 0: float32 8"),
        (torch.zeros(4, 3, 5, 5, dtype=torch.uint8), "tensor 0: uint8 3x5x5"),
        (torch.zeros(4, 2, dtype=torch.complex64), "tensor 0: complex64 2"),
        (np.zeros((4, 2, 3)), "tensor 0: float64 2x3"),
        (np.zeros((4, 7), ">i4"), "tensor 0: int32 7"),
        (np.zeros((7, 4)).T[::-1], "tensor 0: float64 7"),
        ([0, 1, 2, 3], "tensor 0: int64 scalar"),
        ([[0.5], [1.5], [2.5], [3.5]], "tensor 0: float32 1"),
        ([torch.zeros(3)] * 4, "tensor 0: float32 3"),
        ([np.zeros((2, 2), np.int8)] * 4, "tensor 0: int8 2x2"),
        ((True, False, True, True), "tensor 0: bool scalar"),
    ],
)
def test_rows_of_any_shape_and_dtype_are_samples(column: Any, field: str) -> None:
    source = TensorSource(column)
    assert (len(source), str(source.fields[0])) == (4, field)
    (rows,) = source.batch(np.array([2, 0, 2]))
    for row, index in zip(rows, (2, 0, 2), strict=True):
        one = column[index]
        assert row.tolist() == (one.tolist() if hasattr(one, "tolist") else one)


def test_dtypes_that_numpy_does_not_have() -> None:
    source = TensorSource(torch.arange(4).to(torch.bfloat16))
    assert source.fields[0].dtype == "bfloat16"
    assert source.batch(np.array([3]))[0].equal(torch.tensor([3.0], dtype=torch.bfloat16))


def test_batches_are_fresh_and_the_tensor_is_not_copied() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    source = TensorSource(x, x.requires_grad_())
    first, second = source.batch(np.array([1]))
    first.fill_(7)
    assert x[1].tolist() == second[0].tolist() == [2.0, 3.0]
    x.data[1] = 9
    assert source.batch(np.array([1]))[0].tolist() == [[9.0, 9.0]]


def test_arrays_that_cannot_be_written_to_will_do(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert TensorSource(mapped).batch(np.array([4]))[0].tolist() == [4.0]


def test_training_and_test_samples() -> None:
    data = tensors(torch.zeros(5, 2), [0] * 5, test=(np.ones((3, 2), "f4"), [1] * 3))
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (5, 3)
    assert len(tensors(torch.zeros(5, 2), test=torch.zeros(2, 2)).test or ()) == 2
    with pytest.raises(DataError, match="training and test samples differ in form"):
        tensors(torch.zeros(5, 2), test=torch.zeros(2, 3))


def test_two_lengths_name_the_tensor() -> None:
    with pytest.raises(DataError) as caught:
        pu.data.tensors(torch.zeros(5, 2), torch.zeros(4))
    assert caught.value.expected == "5 rows, as in tensor 0"
    assert caught.value.found == "4 rows in tensor 1"
