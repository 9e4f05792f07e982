"""Caffe's image databases: an LMDB folder of `Datum` messages, in the order of their keys.

The first sample fixes shape and dtype; one that differs is refused when it is read. Samples stay
in the file until they are asked for, so a database may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import torch

from purine.arguments import checked
from purine.data._files import extra
from purine.data.decoding import decode_image
from purine.data.messages import Damaged, Message, decode
from purine.data.source import DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError

_Transaction: TypeAlias = Any  # of the package lmdb, which need not be installed

__all__ = ["LmdbSource", "is_leveldb", "is_lmdb", "lmdb_dataset"]


class LmdbSource(Source):
    """Images and labels of an LMDB that was made for Caffe.

    `color` is for compressed pictures: True decodes all of them to three channels, blue first.
    Without `labels` the source has images only. `classes` defaults to the largest label plus one;
    all labels are read when it is first asked for.
    """

    @checked
    def __init__(
        self,
        path: str | Path,
        *,
        color: bool | None = None,
        labels: bool = True,
        classes: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._color = color
        self._labels = labels
        self._classes = classes
        self._database = _Database.of(self.path)
        with self._reading() as transaction:
            self._keys = list(transaction.cursor().iternext(keys=True, values=False))
            if not self._keys:
                what, remedy = "the database is empty", "check how the database was made"
                raise DataError(what, "one sample or more", "none", remedy, where=self.path)
            first, _ = self._sample(transaction, 0)
        image = Field("image", first.shape, first.dtype.name)
        self.fields = (image, Field("label", (), "int64")) if labels else (image,)

    @property
    def classes(self) -> int | None:  # type: ignore[override]
        """The largest label plus one, None where a label is negative."""
        if self._classes is None and self._labels:
            with self._reading() as transaction:
                labels = {self._datum(transaction, number).label for number in range(len(self))}
            if min(labels) < 0:
                return None
            self._classes = max(labels) + 1
        return self._classes

    def __len__(self) -> int:
        return len(self._keys)

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, len(self))
        images = np.empty((len(indices), *self.fields[0].shape), self.fields[0].dtype)
        labels = np.empty(len(indices), np.int64)
        with self._reading() as transaction:
            for row, number in enumerate(indices):
                image, labels[row] = self._sample(transaction, int(number))
                own = Field("image", image.shape, image.dtype.name)
                if own != self.fields[0]:
                    what = "a sample differs from the first"
                    raise self._wrong(int(number), what, str(self.fields[0]), str(own))
                images[row] = image
        columns = (torch.from_numpy(images), torch.from_numpy(labels))
        return columns if self._labels else columns[:1]

    @contextmanager
    def _reading(self) -> Iterator[_Transaction]:
        lmdb = extra("lmdb", "lmdb", "reading an LMDB")
        try:
            with self._database.environment.begin() as transaction:
                yield transaction
        except lmdb.Error as error:
            raise _unreadable(self.path, str(error)) from error

    def _datum(self, transaction: _Transaction, number: int) -> Message:
        try:
            return decode("Datum", transaction.get(self._keys[number]) or b"")
        except Damaged as error:
            what, expected = "a sample is damaged", "a Datum of Caffe's"
            raise self._wrong(number, what, expected, str(error)) from error

    def _sample(self, transaction: _Transaction, number: int) -> tuple[NumpyArray, int]:
        datum = self._datum(transaction, number)
        if datum.encoded:
            image = decode_image(datum.data, where=self._where(number), color=self._color)
            return image, datum.label
        values = np.frombuffer(datum.data, np.uint8)
        if not len(values):
            values = np.fromiter(datum.float_data, np.float32, len(datum.float_data))
        shape = (datum.channels, datum.height, datum.width)
        if min(shape) < 1 or shape[0] * shape[1] * shape[2] != len(values):
            what = "a sample has not the size that it states"
            expected = f"values for [channels, height, width] = {list(shape)}"
            raise self._wrong(number, what, expected, f"{len(values)} values")
        return values.reshape(shape), datum.label

    def _wrong(self, number: int, what: str, expected: str, found: str) -> DataError:
        remedy, where = "make the database again, with images of one size", self._where(number)
        return DataError(what, expected, found, remedy, where=where)

    def _where(self, number: int) -> str:
        return f"{self.path} (key {self._keys[number].decode('utf-8', 'replace')!r})"


class _Database:
    """An open LMDB. A process may open each only once, so sources of one path share it."""

    _open: ClassVar[WeakValueDictionary[Path, _Database]] = WeakValueDictionary()
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, path: Path) -> None:
        lmdb = extra("lmdb", "lmdb", "reading an LMDB")
        folder = path.is_dir()
        try:
            size = (path / "data.mdb" if folder else path).stat().st_size
            self.environment = lmdb.open(
                str(path), subdir=folder, readonly=True, lock=False, readahead=False
            )
        except (lmdb.Error, OSError) as error:
            raise _unreadable(path, str(error)) from error
        last = self.environment.info()["last_pgno"]
        needed = (last + 1) * self.environment.stat()["psize"]
        # Pages are mapped: reading one that the file lacks would end the process.
        if size < needed:
            self.environment.close()
            raise _unreadable(path, f"{size} bytes, where the header tells of {needed}")

    @classmethod
    def of(cls, path: Path) -> _Database:
        if not is_lmdb(path):
            raise _no_database(path)
        key = path.resolve()
        with cls._lock:
            database = cls._open.get(key) or cls(path)
            cls._open[key] = database
            return database


@checked
def lmdb_dataset(train: str | Path, test: str | Path | None = None) -> DataSet:
    """The data set of one database, or of one for training and one for testing."""
    return DataSet(Path(train).name, LmdbSource(train), None if test is None else LmdbSource(test))


def is_lmdb(path: Path) -> bool:
    """Whether there is an LMDB: a folder with its file, or the file itself."""
    return (path / "data.mdb").is_file() or (path.is_file() and path.suffix == ".mdb")


def is_leveldb(path: Path) -> bool:
    """Whether a folder looks like a LevelDB."""
    return (path / "CURRENT").is_file()


def _unreadable(path: Path, found: str) -> DataError:
    what, remedy = "the database cannot be read", "check its permissions, or make it again"
    return DataError(what, "a whole LMDB", found, remedy, where=path)


def _no_database(path: Path) -> DataError:
    what, remedy = "there is no database", f"check the path (relative paths start at {Path.cwd()})"
    content = "another folder" if path.is_dir() else "a file" if path.exists() else "nothing"
    if is_leveldb(path):
        what, content = "a LevelDB cannot be read", "a LevelDB"
        remedy = "make an LMDB of the images (convert_imageset --backend=lmdb), or pass arrays"
    return DataError(what, "an LMDB, that is a folder with data.mdb", content, remedy, where=path)
