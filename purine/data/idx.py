"""The IDX format of MNIST and its relatives, plain or compressed with gzip.

A file is four bytes of magic (0, 0, a code for the dtype, the number of axes), the size of each
axis as a big-endian uint32, and the values. A file that is too short or too long is refused.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from purine.arguments import checked
from purine.data._files import refuse_larger_than_memory, unreadable
from purine.data.arrays import array_dataset
from purine.data.source import DataSet, NumpyArray
from purine.errors import DataError
from purine.files import listing

__all__ = ["fashion_mini", "find_idx", "idx_dataset", "read_idx"]

_File: TypeAlias = IO[bytes] | gzip.GzipFile

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_AXES = {"images": 3, "labels": 1}
_PART = 16 << 20  # bytes that are read at once


@checked
def read_idx(path: str | Path) -> NumpyArray:
    """The array in an IDX file; a name that ends in `.gz` is decompressed.

    No more is read than the header asks for, whatever a compressed file would expand to.
    """
    path = Path(path)
    with _opened(path) as file, _reading(path):
        data = _read(file, 4)
        if len(data) < 4:
            raise _cut_short(path, "the header", "4 bytes or more", len(data))
        zero, code, axes = int.from_bytes(data[:2], "big"), data[2], data[3]
        if zero != 0 or code not in _TYPES or axes == 0:
            codes = " ".join(f"{key:02x}" for key in _TYPES)
            expected = f"the bytes 00 00, a dtype of {codes}, 1 or more axes"
            remedy = "fetch the file again"
            if data[:2] == _GZIP_MAGIC:
                remedy = "the file is compressed: add .gz to its name"
            raise _wrong_file(path, "this is not an IDX file", expected, data[:4].hex(" "), remedy)
        start = 4 + 4 * axes
        data += _read(file, 4 * axes)
        if len(data) < start:
            raise _cut_short(path, "the header", f"{start} bytes or more", len(data))
        shape = tuple(int(size) for size in np.frombuffer(data, ">u4", axes, offset=4))
        dtype = np.dtype(_TYPES[code])
        size = math.prod(shape) * dtype.itemsize
        values = _read(file, min(size, _PART))  # a damaged file ends here, whatever its header says
        if len(values) == _PART:
            refuse_larger_than_memory(path, size, "the array")
            values += _read(file, size - _PART)
        expected = f"{start + size} bytes for shape {list(shape)}"
        if len(values) < size:
            raise _cut_short(path, "the file", expected, start + len(values))
        if file.read(1):
            more = path.stat().st_size if path.suffix != ".gz" else f"more than {start + size}"
            raise _wrong_file(path, "bytes follow the last value", expected, f"{more} bytes")
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="))


@checked
def idx_dataset(folder: str | Path, *, classes: int | None = None) -> DataSet:
    """The data set of a folder with MNIST's four files; without the two of t10k, no test set.

    Both spellings are known, `train-images-idx3-ubyte` and `train-images.idx3-ubyte`, each plain or
    with `.gz`.
    """
    folder = Path(folder)
    train = _read_part(folder, "train")
    tested = any(find_idx(folder, "t10k", content) for content in _AXES)
    test = _read_part(folder, "t10k") if tested else None
    return array_dataset(folder.name, train, test, classes=classes)


@checked
def fashion_mini() -> DataSet:
    """The data set that comes with the package, so that a first run needs no download.

    6,000 training and 1,000 test images of Fashion-MNIST, the same number of each class.

    >>> data = fashion_mini()
    >>> print(len(data.train), *data.train.fields, sep=", ")
    6000, image: uint8 1x28x28, label: int64 scalar
    """
    folder = Path(__file__).parent / "fashion_mini"
    return replace(idx_dataset(folder, classes=10), name="fashion-mini")


def find_idx(folder: Path, part: str, content: str) -> Path | None:
    """The IDX file of a part (`train` or `t10k`) with these contents (`images` or `labels`)."""
    paths = (folder / name for name in _names(part, content))
    return next((path for path in paths if path.is_file()), None)


def _names(part: str, content: str) -> list[str]:
    plain = [f"{part}-{content}{mark}idx{_AXES[content]}-ubyte" for mark in "-."]
    return plain + [f"{name}.gz" for name in plain]


def _read_part(folder: Path, part: str) -> dict[str, NumpyArray]:
    arrays = {}
    for content, axes in _AXES.items():
        path = find_idx(folder, part, content)
        if path is None:
            what, names = f"there is no file of {part} {content}", _names(part, content)
            remedy = "add the file, or name the folder that holds it"
            raise _wrong_file(folder, what, " or ".join(names), listing(folder), remedy)
        array = read_idx(path)
        if array.dtype != np.uint8 or array.ndim != axes:
            expected = f"uint8 with {axes} {'axis' if axes == 1 else 'axes'}"
            form = f"{array.dtype.name} of shape {list(array.shape)}"
            remedy = "check that images and labels are not exchanged"
            raise _wrong_file(path, f"the file does not hold {content}", expected, form, remedy)
        arrays[str(path)] = array
    return arrays


def _opened(path: Path) -> _File:
    """The file, or what is compressed in it."""
    with _reading(path):
        file = open(path, "rb")  # noqa: SIM115
        magic = file.peek(2)[:2]
    if path.suffix != ".gz":
        return file
    if magic == _GZIP_MAGIC:
        return gzip.open(file)
    file.close()
    what, expected = "the file is named .gz and is not gzip", f"{_GZIP_MAGIC.hex(' ')} first"
    remedy = "take .gz off its name if it is not compressed, else fetch it again"
    raise _wrong_file(path, what, expected, magic.hex(" ") or "0 bytes", remedy)


def _read(file: _File, size: int) -> bytes:
    """The next `size` bytes, or those that are left; no more memory is taken than these need."""
    parts = []
    while size > 0 and (part := file.read(min(size, _PART))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into a `DataError`."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        what, actual = "the gzip data is damaged", f"{error} (in {path.stat().st_size} bytes)"
        raise _wrong_file(path, what, "a complete gzip stream", actual) from error
    except OSError as error:
        raise unreadable(path, "an IDX file", error.strerror or str(error)) from error


def _cut_short(path: Path, what: str, expected: str, size: int) -> DataError:
    return _wrong_file(path, f"{what} is cut short", expected, f"{size} bytes")


def _wrong_file(
    path: Path, what: str, expected: str, found: str, remedy: str = "fetch the file again"
) -> DataError:
    return DataError(what, expected, found, remedy, where=path)
