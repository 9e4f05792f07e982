"""Images and labels from numpy's own files: one `.npz`, or a folder of `.npy`.

The names of the arrays tell what they are. Pickled objects are never loaded: a data file cannot run
code. `.npy` files are mapped, so a data set may be larger than memory. What a header says of an
array in a `.npz` is compared with what the archive has for it before anything is allocated.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from purine.arguments import checked
from purine.data._files import refuse_larger_than_memory, unreadable
from purine.data.arrays import array_dataset
from purine.data.source import DataSet, NumpyArray
from purine.errors import DataError, in_a_line

__all__ = ["npy_dataset", "npz_dataset"]

_Pair: TypeAlias = tuple[str, str]
_Loader: TypeAlias = Callable[[str], NumpyArray]

_SPELLINGS: tuple[tuple[_Pair, _Pair | None], ...] = (
    (("x_train", "y_train"), ("x_test", "y_test")),
    (("train_images", "train_labels"), ("test_images", "test_labels")),
    (("images", "labels"), None),
)
"""The names of images and labels, for training and for testing."""


@checked
def npz_dataset(path: str | Path, *, classes: int | None = None) -> DataSet:
    """The data set in a `.npz` with x_train, y_train, x_test, y_test or the like."""
    path = Path(path)
    archive = _load(path, None)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise unreadable(path, "a .npz archive", "a single array")
    with archive:
        return _from_names(path, archive.files, partial(_member, archive, path), classes)


@checked
def npy_dataset(folder: str | Path, *, classes: int | None = None) -> DataSet:
    """The data set of a folder with train_images.npy, train_labels.npy and so on."""
    folder = Path(folder)
    names = sorted(path.stem for path in folder.glob("*.npy"))
    return _from_names(folder, names, partial(_mapped, folder), classes)


def _from_names(where: Path, names: Collection[str], load: _Loader, classes: int | None) -> DataSet:
    for train, test in _SPELLINGS:
        if not set(train) & set(names):
            continue
        parts = [train]
        if test is not None and set(test) & set(names):
            parts.append(test)
        for name in (name for part in parts for name in part):
            if name not in names:
                raise _missing(where, name, names)
        loaded = [{f"{where} ({name})": load(name) for name in part} for part in parts]
        title = where.stem if where.is_file() else where.name
        return array_dataset(title, *loaded, classes=classes)
    known = " or ".join(", ".join(train + (test or ())) for train, test in _SPELLINGS)
    raise _missing(where, known, names)


def _missing(where: Path, expected: str, names: Collection[str]) -> DataError:
    what, remedy = "an array is missing", "save the arrays under these names"
    return DataError(what, expected, ", ".join(names) or "no arrays", remedy, where=where)


def _member(archive: np.lib.npyio.NpzFile, path: Path, name: str) -> NumpyArray:
    try:
        assert archive.zip is not None
        size = _checked_size(archive.zip, f"{name}.npy")
        refuse_larger_than_memory(path, size, f"array {name}")
        array: NumpyArray = archive[name]
        return array
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise almost anything over a damaged file
        raise _fault(path, f"a readable array {name}", error) from error


def _checked_size(archive: zipfile.ZipFile, name: str) -> int:
    """The bytes of an array; its header and the archive have to agree."""
    info = archive.getinfo(name)
    with archive.open(info) as file:
        form = np.lib.format
        first = form.read_magic(file) == (1, 0)
        read = form.read_array_header_1_0 if first else form.read_array_header_2_0
        shape, _, dtype = read(file)
        stored = info.file_size - file.tell()
    size = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and size != stored:
        array = f"{dtype} {list(shape)}"
        raise ValueError(f"{stored:,} bytes of values, where {array} of its header are {size:,}")
    return stored


def _mapped(folder: Path, name: str) -> NumpyArray:
    path = folder / f"{name}.npy"
    array = _load(path, "r")
    if not isinstance(array, np.ndarray):
        raise unreadable(path, "a single array", "a .npz archive")
    return array


def _load(path: Path, mode: Literal["r"] | None) -> object:
    try:
        loaded: object = np.load(path, mmap_mode=mode, allow_pickle=False)
        return loaded
    except Exception as error:  # as above
        raise _fault(path, f"a readable {path.suffix} file", error) from error


def _fault(path: Path, expected: str, error: Exception) -> DataError:
    text = in_a_line(error).partition(": ")[2] or type(error).__name__
    if "Object arrays" in text or "Python objects" in text:
        what, expected = "an array holds Python objects", "arrays of numbers"
        actual = "dtype object, which would have to be unpickled"
        return DataError(what, expected, actual, "save it again with a numeric dtype", where=path)
    if "is encrypted" in text:
        what, actual = "the archive is encrypted", "an array that needs a password"
        remedy = "save the arrays again without encryption"
        return DataError(what, expected, actual, remedy, where=path)
    if "pickled" in text:
        text = "neither .npy nor .npz data"
    return unreadable(path, expected, text)
