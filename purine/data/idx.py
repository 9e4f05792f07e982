"""The IDX format of MNIST and its relatives, plain or compressed with gzip.

A file is four bytes of magic (0, 0, a code for the dtype, the number of axes), the size of each
axis as a big-endian uint32, and the values. Every byte is accounted for: a file that is too short
or too long is refused, with the bytes that were expected and found.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from purine.arguments import checked
from purine.data.arrays import array_dataset
from purine.data.source import DataSet
from purine.errors import DataError

__all__ = ["find_idx", "idx_dataset", "read_idx"]

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_AXES = {"images": 3, "labels": 1}


@checked
def read_idx(path: str | Path) -> npt.NDArray[Any]:
    """The array in an IDX file; a name that ends in `.gz` is decompressed."""
    path = Path(path)
    data = _read_bytes(path)
    if len(data) < 4:
        raise _wrong_size(path, "the header is cut short", "4 bytes or more", len(data))
    zero, code, axes = int.from_bytes(data[:2], "big"), data[2], data[3]
    if zero != 0 or code not in _TYPES or axes == 0:
        compressed = data[:2] == _GZIP_MAGIC
        raise DataError(
            "this is not an IDX file",
            where=str(path),
            expected="the bytes 00 00, a dtype of "
            + " ".join(f"{key:02x}" for key in _TYPES)
            + ", 1 or more axes",
            found=data[:4].hex(" "),
            remedy="the file is compressed: add .gz to its name"
            if compressed
            else "fetch the file again",
        )
    start = 4 + 4 * axes
    if len(data) < start:
        raise _wrong_size(path, "the header is cut short", f"{start} bytes or more", len(data))
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", axes, offset=4))
    dtype = np.dtype(_TYPES[code])
    size = start + math.prod(shape) * dtype.itemsize
    if len(data) != size:
        what = "the file is cut short" if len(data) < size else "bytes follow the last value"
        raise _wrong_size(path, what, f"{size} bytes for shape {list(shape)}", len(data))
    values = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


@checked
def idx_dataset(folder: str | Path, *, classes: int | None = None) -> DataSet:
    """The data set of a folder with MNIST's four files; without the two of t10k, no test set.

    Both spellings are known, `train-images-idx3-ubyte` and `train-images.idx3-ubyte`, each plain or
    with `.gz`.
    """
    folder = Path(folder)
    train = _read_part(folder, "train")
    test = _read_part(folder, "t10k") if _has_part(folder, "t10k") else None
    return array_dataset(folder.name, train, test, classes=classes)


def find_idx(folder: Path, part: str, content: str) -> Path | None:
    """The IDX file of a part (`train` or `t10k`) with these contents (`images` or `labels`)."""
    for name in _names(part, content):
        if (folder / name).is_file():
            return folder / name
    return None


def _names(part: str, content: str) -> list[str]:
    plain = [f"{part}-{content}{mark}idx{_AXES[content]}-ubyte" for mark in "-."]
    return plain + [f"{name}.gz" for name in plain]


def _has_part(folder: Path, part: str) -> bool:
    return any(find_idx(folder, part, content) for content in _AXES)


def _read_part(folder: Path, part: str) -> dict[str, npt.NDArray[Any]]:
    arrays = {}
    for content, axes in _AXES.items():
        path = find_idx(folder, part, content)
        if path is None:
            raise DataError(
                f"there is no file of {part} {content}",
                where=str(folder),
                expected=" or ".join(_names(part, content)),
                found=_listing(folder),
                remedy="add the file, or name the folder that holds it",
            )
        array = read_idx(path)
        if array.dtype != np.uint8 or array.ndim != axes:
            raise DataError(
                f"the file does not hold {content}",
                where=str(path),
                expected=f"uint8 with {axes} {'axis' if axes == 1 else 'axes'}",
                found=f"{array.dtype.name} of shape {list(array.shape)}",
                remedy="check that images and labels are not exchanged",
            )
        arrays[str(path)] = array
    return arrays


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:8]) or "an empty folder"
    return shown + (", ..." if len(names) > 8 else "")


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            "the file cannot be read",
            where=str(path),
            expected="an IDX file",
            found=error.strerror or str(error),
            remedy="check the path and its permissions",
        ) from error
    if path.suffix != ".gz":
        return data
    if data[:2] != _GZIP_MAGIC:
        raise DataError(
            "the file is named .gz and is not gzip",
            where=str(path),
            expected=f"the bytes {_GZIP_MAGIC.hex(' ')} first",
            found=data[:2].hex(" ") or "0 bytes",
            remedy="take .gz off its name if it is not compressed, else fetch it again",
        )
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            "the gzip data is damaged",
            where=str(path),
            expected="a complete gzip stream",
            found=f"{error} (in {len(data)} bytes)",
            remedy="fetch the file again",
        ) from error


def _wrong_size(path: Path, what: str, expected: str, found: int) -> DataError:
    return DataError(
        what,
        where=str(path),
        expected=expected,
        found=f"{found} bytes",
        remedy="fetch the file again",
    )
