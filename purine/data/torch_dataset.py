"""Samples from the data sets of PyTorch, and from any iterable.

A sample is a tuple of tensors, arrays and numbers; its form is taken from the first one and every
other has to agree. The contract of a source holds as far as the data set keeps it: what draws
random numbers when a sample is read gives other samples on resuming. Random crops and mirrors
belong in the graph, whose randomness is a function of the iteration.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeGuard

import numpy as np
import torch

from purine.arguments import at_least, checked, shown
from purine.data.source import DTYPES, Field, Indices, Source, check_indices
from purine.errors import DataError, in_a_line
from purine.registry.aten import dtype_name, dtype_of

__all__ = ["IterableSource", "MapDataset", "TorchSource", "is_map_dataset", "item_names"]


class MapDataset(Protocol):
    """What `TorchSource` needs of a data set: samples by number, and how many."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


class TorchSource(Source):
    """Samples of a map-style `torch.utils.data.Dataset`, or of any sequence of tuples.

    `names` defaults to image and label; `classes` to the length of `dataset.classes` where it has
    one, as those of torchvision do.

    >>> source = TorchSource([(torch.zeros(1, 2, 2), 3), (torch.ones(1, 2, 2), 1)])
    >>> print(*source.fields, sep=", ")
    image: float32 1x2x2, label: int64 scalar
    """

    repeats = False

    @checked
    def __init__(
        self,
        dataset: MapDataset,
        *,
        names: Sequence[str] = ("image", "label"),
        classes: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._length = _length_of(dataset)
        self.fields = _fields_of(_first(dataset), names)
        known = getattr(dataset, "classes", None)
        if classes is None and isinstance(known, Sequence):
            classes = len(known)
        self.classes = classes
        self._lock = threading.Lock()  # workers read from threads of their own

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, self._length)
        numbers = [int(index) for index in indices]
        with self._lock:
            samples = [self._dataset[number] for number in numbers]
        return _stack(samples, numbers, self.fields)


class IterableSource(Source):
    """Samples of an `IterableDataset` or another iterable that can be started again.

    It is read in its own order, and started again when it ends: each start has to give the same
    samples. Reading at another position than the next one reads and drops the samples between, in
    two passes at most. Each reader reads the whole stream.

    `length`, the number of samples of one pass, is needed only where somebody asks for `len`.

    >>> source = IterableSource([(10, 0), (11, 1), (12, 2)], names=("value", "label"))
    >>> source.batch(np.arange(2, 6))[0]
    tensor([12, 10, 11, 12])
    """

    sequential = True

    @checked
    def __init__(
        self,
        iterable: Iterable[object],
        *,
        names: Sequence[str] = ("image", "label"),
        classes: int | None = None,
        length: int | None = None,
    ) -> None:
        if length is not None:
            at_least("length", length, 1)
        if isinstance(iterable, Iterator):
            what = "this iterable can be read only once"
            expected = "an iterable that starts again with each iter()"
            remedy = "pass an object whose __iter__ makes the generator"
            raise DataError(what, expected, type(iterable).__name__, remedy)
        self._iterable = iterable
        self._names = tuple(names)
        self._length = length
        self.classes = classes
        self.fields = _fields_of(_first(iterable), names)
        self._lock = threading.Lock()
        self._pass_length = length
        self._restart(0)

    def __len__(self) -> int:
        if self._length is None:
            what = "the number of samples of an iterable is not known"
            remedy = "pass length=N, the number of samples of one pass"
            raise DataError(what, "length=N", "no length", remedy)
        return self._length

    def for_reader(self) -> IterableSource:
        return IterableSource(
            self._iterable, names=self._names, classes=self.classes, length=self._length
        )

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        positions = [int(index) for index in indices]
        if not positions or positions != list(range(positions[0], positions[0] + len(positions))):
            what, expected = "an iterable is read in its own order", "consecutive positions"
            remedy = "read it through a Reader with shuffle=False"
            raise DataError(what, expected, str(positions), remedy)
        with self._lock:
            try:
                self._seek(positions[0])
                samples = [self._take() for _ in positions]
            except BaseException:
                # an iterator that raised is spent, and its end is not the end of a pass
                self._restart(0)
                raise
        return _stack(samples, positions, self.fields)

    def _seek(self, position: int) -> None:
        while position != self._position:
            length = self._pass_length
            start = 0 if length is None else position - position % length
            if position < self._position or start > self._position:
                self._restart(start)
            else:
                self._take()

    def _restart(self, start: int) -> None:
        self._samples, self._position = self._passes(), start

    def _take(self) -> object:
        sample = next(self._samples)
        self._position += 1
        return sample

    def _passes(self) -> Iterator[object]:
        """The samples of one pass after the other, which have to be of one length."""
        while True:
            count = 0
            for sample in self._iterable:
                if count == self._pass_length:
                    raise self._wrong_length(f"more than {count}")
                count += 1
                yield sample
            if count == 0:
                raise _no_samples(self._iterable)
            if self._pass_length not in (None, count):
                raise self._wrong_length(str(count))
            self._pass_length = count

    def _wrong_length(self, found: str) -> DataError:
        what = "a pass over the iterable has another length than before"
        expected = f"{self._pass_length} samples, as given or as in the first pass"
        remedy = "let each start of the iterable give the same samples, and check length="
        return DataError(what, expected, found, remedy)


def item_names(dataset: MapDataset | Iterable[object]) -> tuple[str, ...]:
    """Names for the values that a sample of a data set or iterable has."""
    return tuple(f"item {index}" for index in range(len(_values(_first(dataset)))))


def _length_of(dataset: MapDataset) -> int:
    try:
        length = len(dataset)
    except Exception as error:
        raise _unreadable(dataset, error, "a data set that has a length") from error
    if length == 0:
        raise _no_samples(dataset)
    return length


def is_map_dataset(data: object) -> TypeGuard[MapDataset]:
    """Whether samples can be read by number."""
    return hasattr(type(data), "__getitem__") and hasattr(type(data), "__len__")


def _first(dataset: MapDataset | Iterable[object]) -> object:
    """Sample 0; errors are those of whoever wrote the data set."""
    try:
        return dataset[0] if is_map_dataset(dataset) else next(iter(dataset))
    except StopIteration:
        raise _no_samples(dataset) from None
    except Exception as error:
        if is_map_dataset(dataset) and _length_of(dataset) == 0:
            raise _no_samples(dataset) from error
        raise _unreadable(dataset, error, "samples by number, or one after the other") from error


def _unreadable(dataset: object, error: Exception, expected: str) -> DataError:
    remedy = "check that dataset[0] and len(dataset) work, or pass tensors"
    return DataError(f"{shown(dataset)} cannot be read", expected, in_a_line(error), remedy)


def _no_samples(dataset: object) -> DataError:
    what, actual = "there are no samples", f"an empty {type(dataset).__name__}"
    return DataError(what, "one sample or more", actual, "check how the data set was made")


def _fields_of(sample: object, names: Sequence[str]) -> tuple[Field, ...]:
    values = _values(sample)
    if len(values) != len(names):
        what = f"a sample has {len(values)} values for {len(names)} fields"
        remedy = "pass names=(...) with a name for each value"
        raise DataError(what, f"a tuple of {', '.join(names)}", f"{len(values)} values", remedy)
    return tuple(_typed(value, name)[1] for value, name in zip(values, names, strict=True))


def _stack(
    samples: list[object], numbers: list[int], fields: tuple[Field, ...]
) -> tuple[torch.Tensor, ...]:
    columns: list[list[torch.Tensor]] = [[] for _ in fields]
    for sample, number in zip(samples, numbers, strict=True):
        values = _values(sample)
        if len(values) != len(fields):
            raise _unlike(number, f"{len(fields)} values", f"{len(values)} values")
        for value, field, column in zip(values, fields, columns, strict=True):
            tensor, own = _typed(value, field.name)
            if own != field:
                raise _unlike(number, str(field), str(own))
            column.append(tensor)
    if samples:
        return tuple(map(torch.stack, columns))
    return tuple(torch.empty((0, *field.shape), dtype=dtype_of(field.dtype)) for field in fields)


def _typed(value: object, name: str) -> tuple[torch.Tensor, Field]:
    tensor = _as_tensor(value, name)
    return tensor, Field(name, tuple(tensor.shape), dtype_name(tensor.dtype))


def _unlike(number: int, expected: str, found: str) -> DataError:
    remedy = "give all samples one shape and dtype, for example by resizing"
    return DataError(f"sample {number} differs in form from the first", expected, found, remedy)


def _values(sample: object) -> tuple[object, ...]:
    return tuple(sample) if isinstance(sample, tuple | list) else (sample,)


def _as_tensor(value: object, name: str) -> torch.Tensor:
    """A tensor; whole numbers become int64 as labels are, Python's floats float32."""
    if isinstance(value, bool | int):
        return torch.tensor(int(value), dtype=torch.int64)
    if isinstance(value, float) and not isinstance(value, np.generic):
        return torch.tensor(value, dtype=torch.float32)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.name not in DTYPES:
            raise _not_a_value(name, array.dtype.name)
        value = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    if not isinstance(value, torch.Tensor):
        raise _not_a_value(name, type(value).__name__)
    if dtype_name(value.dtype) not in DTYPES:
        raise _not_a_value(name, dtype_name(value.dtype))
    tensor = value.detach().cpu()
    whole = not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
    return tensor.to(torch.int64) if tensor.dim() == 0 and whole else tensor


def _not_a_value(name: str, found: str) -> DataError:
    expected = f"a number, or a tensor or array of {', '.join(DTYPES)}"
    remedy = "convert it in the data set, for example with torchvision's PILToTensor"
    return DataError(f"the {name} of a sample cannot be used", expected, found, remedy)
