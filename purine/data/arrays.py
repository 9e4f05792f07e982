"""Samples that are held in memory (or mapped into it) as arrays.

Arrays are checked when the source is made, never while it is read. Fields named
`image` and `label` follow the conventions of this package: images are [N, C, H, W] and keep their
dtype, labels are [N], int64, and count from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from purine.arguments import checked
from purine.data.source import DTYPES, DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError
from purine.registry.aten import dtype_name

__all__ = ["Array", "ArraySource", "array_dataset"]

Array: TypeAlias = "NumpyArray | torch.Tensor"
"""A numpy array or a torch tensor, one row per sample."""

_CHANNELS = (1, 3, 4)


class ArraySource(Source):
    """Samples from arrays of equal length, one array per field.

    `classes` defaults to the largest label plus one. `origins` tells error messages where each
    array is from.

    >>> images, labels = np.zeros((5, 28, 28), np.uint8), np.arange(5)
    >>> source = ArraySource(images, labels)
    >>> print(*source.fields, sep=", ")
    image: uint8 1x28x28, label: int64 scalar
    >>> source.batch(np.array([4, 2]))[1]
    tensor([4, 2])
    """

    @checked
    def __init__(
        self,
        *arrays: Array,
        names: Sequence[str] = ("image", "label"),
        classes: int | None = None,
        origins: Sequence[str] | None = None,
    ) -> None:
        if not arrays or len(arrays) != len(names):
            what = f"{len(arrays)} arrays for {len(names)} fields"
            expected = f"one array for each of {', '.join(names)}"
            remedy = "pass names=(...) with a name for each array"
            raise DataError(what, expected, f"{len(arrays)} arrays", remedy)
        origins = origins or names
        self.classes = classes
        columns: list[NumpyArray] = []
        for name, array, origin in zip(names, arrays, origins, strict=True):
            column = _as_numpy(array, origin)
            if name == "image":
                column = _as_images(column, origin)
            elif name == "label":
                column, self.classes = _as_labels(column, origin, classes)
            columns.append(column)
        for column, name, origin in zip(columns[1:], names[1:], origins[1:], strict=True):
            if len(column) != len(columns[0]):
                what = f"the number of {name}s differs from the number of {names[0]}s"
                expected, count = f"{len(columns[0])}, as in {origins[0]}", str(len(column))
                remedy = "check that both files belong to one data set"
                raise DataError(what, expected, count, remedy, where=origin)
        self._columns = tuple(columns)
        self.fields = tuple(
            Field(name, column.shape[1:], column.dtype.name)
            for name, column in zip(names, columns, strict=True)
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, len(self))
        return tuple(torch.from_numpy(np.take(c, indices, axis=0)) for c in self._columns)


def array_dataset(
    name: str,
    train: Mapping[str, Array],
    test: Mapping[str, Array] | None = None,
    *,
    classes: int | None = None,
) -> DataSet:
    """A data set of images and labels; each mapping holds these two, by where they are from.

    Test labels have to be among the classes of training.
    """
    train_source = ArraySource(*train.values(), origins=tuple(train), classes=classes)
    if test is None:
        return DataSet(name, train_source)
    test_source = ArraySource(*test.values(), origins=tuple(test), classes=train_source.classes)
    return DataSet(name, train_source, test_source)


def _as_numpy(array: Array, origin: str) -> NumpyArray:
    """A plain array of native byte order, sharing memory where it can."""
    dtype = dtype_name(array.dtype) if isinstance(array, torch.Tensor) else array.dtype.name
    if dtype not in DTYPES:
        what, expected = f"samples cannot be {dtype}", f"one of {', '.join(DTYPES)}"
        remedy = "convert the array to one of these dtypes"
        raise DataError(what, expected, dtype, remedy, where=origin)
    plain = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
    if plain.ndim == 0 or plain.size == 0:
        expected = "one row or more, none of them empty"
        raise _refused("there are no samples", plain, origin, expected, "check how it was made")
    # numpy.take copies the whole of an array that is not contiguous, at every batch
    return np.ascontiguousarray(plain, plain.dtype.newbyteorder("="))


def _refused(what: str, array: NumpyArray, origin: str, expected: str, remedy: str) -> DataError:
    form = f"{array.dtype.name} of shape {list(array.shape)}"
    return DataError(what, expected, form, remedy, where=origin)


def _as_images(array: NumpyArray, origin: str) -> NumpyArray:
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4:
        expected = "[N, C, H, W], or [N, H, W] for one channel"
        remedy = "reshape the array, or give the field another name with names=(...)"
        raise _refused(f"images have {array.ndim} axes", array, origin, expected, remedy)
    if array.dtype == np.uint8 and array.shape[3] in _CHANNELS and array.shape[1] not in _CHANNELS:
        what, remedy = "the channels are on the last axis", "use numpy.moveaxis(images, -1, 1)"
        raise _refused(what, array, origin, "images [N, C, H, W]", remedy)
    return array


def _as_labels(
    array: NumpyArray, origin: str, classes: int | None
) -> tuple[npt.NDArray[np.int64], int]:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        remedy = "convert labels to integers of one axis, or name the field other than label"
        raise _refused("these are not class labels", array, origin, "integers of shape [N]", remedy)
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or (classes is not None and largest >= classes):
        wrong = smallest if smallest < 0 else largest
        label = f"{wrong} at sample {np.argmax(array == wrong)}"
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        remedy = "number the classes from 0, and check that the file holds labels"
        raise DataError(f"label {wrong} is out of range", expected, label, remedy, where=origin)
    return array.astype(np.int64), largest + 1 if classes is None else classes
