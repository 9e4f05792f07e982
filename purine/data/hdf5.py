"""Tables in HDF5 files, as Caffe's HDF5Data reads them: a text file lists files of equal form.

Each field is a data set of that name in every file, with one row per sample. Rows stay in the files
until they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from purine.arguments import checked
from purine.data._files import extra, unreadable
from purine.data.source import DTYPES, DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError

__all__ = ["Hdf5Source", "hdf5_dataset", "with_classes"]


class Hdf5Source(Source):
    """The rows of all files that a text file lists, or of one `.h5` file.

    `names` are the data sets to read, in this order: by default all, those named label last.
    `dtypes` converts fields; values that do not fit, such as a label of 1.5, are refused.
    Relative names in the list begin at `root`: by default the current folder, else the list's.
    `labels` is the data set that holds the numbers of classes, one a row: they are read as int64,
    however they are stored, and have to be below `classes`, by default the largest and one.
    """

    @checked
    def __init__(
        self,
        path: str | Path,
        *,
        names: Sequence[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        root: str | Path | None = None,
        classes: int | None = None,
        labels: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._root = root
        self._labels = labels
        self._files = _listed(self.path, None if root is None else Path(root))
        with _opened(self._files[0]) as first:
            self._names = tuple(names or sorted(first, key=lambda name: (name == "label", name)))
        dtypes = dict(dtypes or {}) if labels is None else {**(dtypes or {}), labels: "int64"}
        forms = [self._form(file, dtypes) for file in self._files]
        self.fields = forms[0][0]
        for file, (fields, _) in zip(self._files, forms, strict=True):
            if fields != self.fields:
                what, actual = "the files differ in form", ", ".join(map(str, fields))
                expected = f"{', '.join(map(str, self.fields))} as in {self._files[0]}"
                remedy = "write all files with the same data sets"
                raise DataError(what, expected, actual, remedy, where=file)
        self._starts = np.cumsum([0, *(count for _, count in forms)])
        self.classes = classes if labels is None else self._count_classes(labels, classes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, len(self))
        columns = [np.empty((len(indices), *field.shape), field.dtype) for field in self.fields]
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            rows, back = np.unique(indices[places] - self._starts[owner], return_inverse=True)
            file = self._files[owner]
            with _opened(file) as content:
                for array, field in zip(columns, self.fields, strict=True):
                    values = _converted(content[field.name][rows], field, file)[back]
                    array[places] = values.reshape(len(places), *field.shape)
        return tuple(map(torch.from_numpy, columns))

    def labelled(self, images: str, labels: str, classes: int | None) -> Hdf5Source:
        """The same rows as images and labels of classes."""
        dtypes, names = {field.name: field.dtype for field in self.fields}, (images, labels)
        return Hdf5Source(
            self.path, names=names, dtypes=dtypes, root=self._root, classes=classes, labels=labels
        )

    def _count_classes(self, name: str, most: int | None) -> int:
        """The largest label and one, or `most`, after a look at all labels."""
        field = next(item for item in self.fields if item.name == name)
        smallest, largest = 0, -1
        for file in self._files:
            with _opened(file) as content:
                values = _converted(content[name][()], field, file)
            smallest, largest = min(smallest, values.min()), max(largest, values.max())
            if smallest < 0 or (most is not None and largest >= most):
                what = f"data set {name!r} holds numbers that are no classes"
                expected = "0 or more" if most is None else f"0 to {most - 1}"
                actual = f"{smallest if smallest < 0 else largest}"
                remedy = "number the classes from 0, in the test part as in training"
                raise DataError(what, expected, actual, remedy, where=file)
        return int(largest) + 1 if most is None else most

    def _form(self, file: Path, dtypes: Mapping[str, str]) -> tuple[tuple[Field, ...], int]:
        """The fields of a file and its number of rows."""
        fields, counts = [], []
        with _opened(file) as content:
            for name in self._names:
                table = content.get(name)
                if not hasattr(table, "shape") or len(table.shape) < 1:
                    what, tables = f"there is no data set {name!r}", ", ".join(content) or "none"
                    expected = f"data sets {', '.join(self._names)}, one row per sample"
                    remedy = "write the file with these names"
                    raise DataError(what, expected, tables, remedy, where=file)
                dtype = dtypes.get(name, table.dtype.name)
                for wrong in {table.dtype.name, dtype} - set(DTYPES):
                    what, expected = f"data set {name!r} cannot be {wrong}", ", ".join(DTYPES)
                    remedy = "write it with one of these dtypes"
                    raise DataError(what, f"one of {expected}", wrong, remedy, where=file)
                shape = tuple(table.shape[1:])
                fields.append(Field(name, () if name == self._labels else shape, dtype))
                counts.append(table.shape[0])
        if len(set(counts)) != 1 or counts[0] < 1:
            what = "the numbers of rows do not agree"
            expected = "one row per sample in each data set, one or more"
            rows = ", ".join(f"{n}: {c}" for n, c in zip(self._names, counts, strict=True))
            raise DataError(what, expected, rows, "write the file again", where=file)
        return tuple(fields), counts[0]


@checked
def hdf5_dataset(train: str | Path, test: str | Path | None = None) -> DataSet:
    """The data set of one list of files, or of one for training and one for testing."""
    return DataSet(Path(train).stem, Hdf5Source(train), None if test is None else Hdf5Source(test))


def with_classes(data: DataSet) -> DataSet:
    """HDF5 data of an image and a number for each sample, the numbers read as labels of classes.

    Nets that are built for their data need labels; Caffe stores them as floats. Other data stays as
    it is.
    """
    train, test = data.train, data.test
    if not isinstance(train, Hdf5Source) or not isinstance(test, Hdf5Source | None):
        return data
    images = [field.name for field in train.fields if len(field.shape) == 3]
    labels = [field.name for field in train.fields if field.shape in ((), (1,))]
    if (len(images), len(labels), len(train.fields)) != (1, 1, 2):
        return data
    train = train.labelled(images[0], labels[0], None)
    test = None if test is None else test.labelled(images[0], labels[0], train.classes)
    return DataSet(data.name, train, test)


def _listed(path: Path, root: Path | None) -> list[Path]:
    if path.suffix in (".h5", ".hdf5"):
        return [path]
    expected = "a text file with the name of an HDF5 file on each line"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, expected, str(error)) from error
    names = [Path(line.strip()) for line in lines if line.strip()]
    if not names:
        raise unreadable(path, expected, "no names")
    if root is not None:
        return [root / name for name in names]
    return [name if name.exists() else path.parent / name for name in names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    h5py = extra("h5py", "hdf5", "reading HDF5 files")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise unreadable(path, "a readable HDF5 file", str(error)) from error


def _converted(values: NumpyArray, field: Field, file: Path) -> NumpyArray:
    if values.dtype.name == field.dtype:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(field.dtype)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, values):
        what = f"values of {field.name!r} are not whole numbers"
        remedy = "write labels and indices as whole numbers"
        actual = str(values[converted != values].flat[0])
        raise DataError(what, f"values of dtype {field.dtype}", actual, remedy, where=file)
    return converted
