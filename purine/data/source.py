"""The interface of a source of samples.

A source is a table: it has a length, fields of fixed shape and dtype, and returns the rows of given
indices. It knows nothing of epochs, seeds or batch sizes (see `purine.data.order`) and transforms
nothing (mean, scale, crop and mirror are ops of the graph). The main invariant: the same indices
give the same samples, so that a batch is a function of (seed, iteration) alone.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from purine.arguments import check_fields
from purine.errors import DataError

__all__ = [
    "DTYPES",
    "DataSet",
    "Field",
    "Indices",
    "NumpyArray",
    "Source",
    "check_indices",
    "identity_of",
]

NumpyArray: TypeAlias = npt.NDArray[Any]
"""A numpy array of any dtype."""

Indices: TypeAlias = npt.NDArray[np.int64]
"""Numbers of samples, in the order in which they are wanted."""

DTYPES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
"""The dtypes a field may have: those that numpy and torch share and that ops can read."""


_NARROWER: Mapping[str, tuple[str, ...]] = {
    "float32": ("float16", "bfloat16"),
    "float64": ("float32", "float16", "bfloat16"),
    "int16": ("int8", "uint8"),
    "int32": ("int16", "int8", "uint8"),
    "int64": ("int32", "int16", "int8", "uint8"),
}
"""The dtypes whose values another one holds without rounding, of the same sort of numbers."""


@dataclass(frozen=True)
class Field:
    """One column of a source: its name, and the shape and dtype of one sample.

    >>> print(Field("image", (1, 28, 28), "uint8"))
    image: uint8 1x28x28
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        check_fields(self)

    def fits(self, shape: Sequence[int], dtype: str) -> bool:
        """Whether a batch of this field can be given to a blob of these sizes and this dtype.

        Numbers of a smaller dtype of the same sort are widened; that changes no value.
        """
        same = self.dtype == dtype or self.dtype in _NARROWER.get(dtype, ())
        return same and tuple(shape[1:]) == self.shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


class Source(ABC):
    """Samples by number.

    `classes` is the number of classes of the labels where it is known. `sequential` says that
    samples can only be read one after the other: positions then count on without end, and there is
    no order to choose. `repeats` says that reading a sample twice surely gives the same values.
    """

    fields: tuple[Field, ...]
    classes: int | None = None
    sequential: bool = False
    repeats: bool = True

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        """The samples of these numbers: a fresh contiguous tensor [len(indices), ...] per field."""

    def for_reader(self) -> Source:
        """The source that one reader reads: itself, unless it has to remember where it is."""
        return self


@dataclass(frozen=True)
class DataSet:
    """A source to train on and, where there is one, a source of the same fields to test on."""

    name: str
    train: Source
    test: Source | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.test is not None and self.test.fields != self.train.fields:
            what = "training and test samples differ in form"
            expected = f"{', '.join(map(str, self.train.fields))} as in training"
            actual = ", ".join(map(str, self.test.fields))
            remedy = "bring both to one shape and dtype"
            raise DataError(what, expected, actual, remedy, where=self.name)


def identity_of(source: Source) -> str:
    """What tells a source from others: fields, length, and a hash of a few of its samples.

    Samples are left out where they may be others at the next look.
    """
    text = ", ".join(map(str, source.fields))
    if source.sequential:
        return text
    count = len(source)
    text = f"{count} samples of {text}"
    if not source.repeats or not count:
        return text
    hashed = hashlib.sha256()
    for values in source.batch(np.unique([0, count // 3, count // 2, count - 1])):
        hashed.update(values.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"{text}, some of them with hash {hashed.hexdigest()[:16]}"


def check_indices(indices: Indices, length: int) -> None:
    """Refuse numbers that are not those of samples."""
    outside = indices[(indices < 0) | (indices >= length)]
    if len(outside):
        what = f"there is no sample {outside[0]}"
        remedy = "take the numbers from an Order of the source's length"
        raise DataError(what, f"0 to {length - 1}", str(outside[0]), remedy)
