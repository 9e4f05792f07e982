"""Samples that are rows of tensors and arrays, of any shape and dtype.

Nothing is assumed of what they mean: column k goes to input k of the net.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from purine.arguments import checked, shown
from purine.data.source import DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError, in_a_line
from purine.graph import DTYPES
from purine.registry.aten import dtype_name

__all__ = ["Columns", "TensorSource", "tensors"]

Columns: TypeAlias = object
"""A tensor, array or list with a sample in each row; or several of them, in a tuple or list."""

_ONE_EACH = "give each tensor one row per sample"


class TensorSource(Source):
    """Samples from tensors of equal length, one for each input of the net, by position.

    A tensor is not copied where it is on the CPU. Lists of numbers, tensors and arrays are stacked.

    >>> source = TensorSource(torch.zeros(5, 8), [4, 3, 2, 1, 0])
    >>> print(*source.fields, sep=", ")
    tensor 0: float32 8, tensor 1: int64 scalar
    """

    def __init__(self, *columns: object) -> None:
        if not columns:
            what, expected = "there are no tensors", "a tensor for each input of the net"
            raise DataError(what, expected, "none", "pass for example (x, y)")
        self._columns = tuple(_column(item, index) for index, item in enumerate(columns))
        self.fields = tuple(
            Field(f"tensor {index}", tuple(column.shape[1:]), dtype_name(column.dtype))
            for index, column in enumerate(self._columns)
        )
        for column, field in zip(self._columns, self.fields, strict=True):
            if len(column) != len(self):
                what = "the tensors differ in their number of samples"
                rows = f"{len(column)} rows in {field.name}"
                raise DataError(what, f"{len(self)} rows, as in tensor 0", rows, _ONE_EACH)

    def __len__(self) -> int:
        return len(self._columns[0])

    def batch(self, indices: Indices) -> tuple[Tensor, ...]:
        check_indices(indices, len(self))
        rows = torch.from_numpy(indices)
        return tuple(column.index_select(0, rows) for column in self._columns)


@checked
def tensors(*columns: object, test: Columns | None = None) -> DataSet:
    """Own samples as a data set: a tensor, array or list for each input of the net, by position.

    `test` are tensors of the same form to evaluate on.

    >>> data = tensors(torch.zeros(100, 8), torch.zeros(100), test=(torch.ones(10, 8), [0.0] * 10))
    >>> len(data.train), len(data.test)
    (100, 10)
    """
    tested = None if test is None else columns_source(test)
    return DataSet("tensors", TensorSource(*columns), tested)


def columns_source(columns: Columns) -> TensorSource:
    """The source of one column, or of several in a tuple or a list."""
    if isinstance(columns, tuple | list):
        return TensorSource(*columns)
    return TensorSource(columns)


def _column(value: object, index: int) -> Tensor:
    """A tensor on the CPU that holds a sample in each row."""
    if isinstance(value, tuple | list):
        value = _stacked(value, index)
    if isinstance(value, np.ndarray):
        if value.dtype.name not in DTYPES:
            raise _unusable(index, f"an array of {value.dtype.name}")
        with warnings.catch_warnings():  # batches are copies: what cannot be written to will do
            warnings.simplefilter("ignore", UserWarning)
            value = torch.from_numpy(np.ascontiguousarray(value, value.dtype.newbyteorder("=")))
    if not isinstance(value, Tensor):
        raise _unusable(index, shown(value))
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise _unusable(index, f"a {value.device.type} tensor of layout {value.layout}")
    if dtype_name(value.dtype) not in DTYPES:
        raise _unusable(index, dtype_name(value.dtype))
    if value.ndim == 0 or value.numel() == 0:
        expected, shape = "one row or more, none of them empty", f"shape {list(value.shape)}"
        raise DataError(f"there are no samples in tensor {index}", expected, shape, _ONE_EACH)
    return value.detach().cpu().resolve_conj().resolve_neg()


def _stacked(items: Sequence[object], index: int) -> Tensor | NumpyArray:
    try:
        stacked = [item for item in items if isinstance(item, Tensor)]
        if items and len(stacked) == len(items):
            return torch.stack(stacked)
        arrays = [item for item in items if isinstance(item, np.ndarray | np.generic)]
        if items and len(arrays) == len(items):
            return np.stack(arrays)
        return torch.tensor(items)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _unusable(index, f"a {type(items).__name__}: {in_a_line(error)}") from error


def _unusable(index: int, found: str) -> DataError:
    what, dtypes = f"tensor {index} of the data cannot be used", ", ".join(sorted(DTYPES))
    expected = f"a dense tensor or array of {dtypes}, or a list of numbers or of equal tensors"
    remedy = f"{_ONE_EACH}; a list of samples goes in as pu.data.TorchSource(samples)"
    return DataError(what, expected, found, remedy)
