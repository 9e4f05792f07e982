from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine.data import idx_dataset, read_idx
from purine.errors import DataError

CODES = {
    "uint8": 0x08,
    "int8": 0x09,
    "int16": 0x0B,
    "int32": 0x0C,
    "float32": 0x0D,
    "float64": 0x0E,
}


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    header = bytes([0, 0, CODES[array.dtype.name], array.ndim])
    sizes = np.array(array.shape, ">u4").tobytes()
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


IMAGES = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)
LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
GOOD = idx_bytes(IMAGES)


def write_dataset(
    folder: Path,
    *,
    mark: str = "-",
    compress: bool = False,
    images: np.ndarray[Any, Any] = IMAGES,
    labels: np.ndarray[Any, Any] = LABELS,
    parts: tuple[str, ...] = ("train", "t10k"),
) -> None:
    for part in parts:
        for content, axes, array in (("images", 3, images), ("labels", 1, labels)):
            data = idx_bytes(array)
            name = f"{part}-{content}{mark}idx{axes}-ubyte" + (".gz" if compress else "")
            (folder / name).write_bytes(gzip.compress(data, mtime=0) if compress else data)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_every_dtype(tmp_path: Path, dtype: str, suffix: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4) * 5).astype(dtype)
    data = idx_bytes(array)
    path = tmp_path / f"array{suffix}"
    path.write_bytes(gzip.compress(data, mtime=0) if suffix else data)
    read = read_idx(path)
    assert read.dtype == np.dtype(dtype)
    assert read.tolist() == array.tolist()


PACKED = gzip.compress(GOOD, mtime=0)  # without the time, which would be part of test names
TOO_LONG = gzip.compress(GOOD + b"x", mtime=0)
BOMB = gzip.compress(b"\0\0\x08\x03" + b"\0\1\0\0" * 3 + bytes(17 << 20), 1)
"""A few bytes that expand to many, and say that they are 2^48."""


@pytest.mark.parametrize(
    ("name", "data", "what", "expected", "found"),
    [
        ("a", GOOD[:-1], "cut short", "46 bytes for shape [5, 3, 2]", "45 bytes"),
        ("a", GOOD + b"xy", "bytes follow", "46 bytes for shape [5, 3, 2]", "48 bytes"),
        ("a", GOOD[:9], "header is cut short", "16 bytes or more", "9 bytes"),
        ("a", b"\0\0", "header is cut short", "4 bytes or more", "2 bytes"),
        ("a", b"", "header is cut short", "4 bytes or more", "0 bytes"),
        ("a", b"\x89PNG" + GOOD, "not an IDX file", "00 00", "89 50 4e 47"),
        ("a", b"\0\0\x07\x03" + GOOD, "not an IDX file", "08 09 0b 0c 0d 0e", "00 00 07 03"),
        ("a", b"\0\0\x08\x00", "not an IDX file", "1 or more axes", "00 00 08 00"),
        ("a", PACKED, "not an IDX file", "00 00", "1f 8b"),
        ("a.gz", GOOD, "is not gzip", "1f 8b", "00 00"),
        ("a.gz", b"", "is not gzip", "1f 8b", "0 bytes"),
        ("a.gz", PACKED[:-9], "damaged", "complete gzip stream", "bytes)"),
        ("a.gz", PACKED[:20] + b"\xff" * 30, "damaged", "complete gzip", "bytes)"),
        ("a.gz", gzip.compress(GOOD[:-1], mtime=0), "cut short", "46 bytes", "45 bytes"),
        ("a.gz", TOO_LONG, "bytes follow", "46 bytes", "more than 46 bytes"),
        ("a.gz", BOMB, "the array is too large", "memory that is available", "281,474,976,710,656"),
    ],
)
def test_wrong_files(
    tmp_path: Path, name: str, data: bytes, what: str, expected: str, found: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    error = caught.value
    assert what in error.what
    assert error.where == str(path)
    assert expected in str(error.expected)
    assert found in str(error.found)
    assert error.remedy


def test_compressed_file_without_gz_in_its_name_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(GOOD, mtime=0))
    with pytest.raises(DataError, match=r"add \.gz to its name"):
        read_idx(tmp_path / "a")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read") as caught:
        read_idx(tmp_path / "nothing")
    assert caught.value.where == str(tmp_path / "nothing")
    assert caught.value.found == "No such file or directory"


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("compress", [False, True])
def test_dataset_in_both_spellings(tmp_path: Path, mark: str, compress: bool) -> None:
    write_dataset(tmp_path, mark=mark, compress=compress)
    data = idx_dataset(tmp_path)
    assert data.name == tmp_path.name
    assert data.train.classes == 3
    assert data.test is not None
    assert len(data.test) == 5
    image, label = data.train.batch(np.array([3, 1]))
    assert image[:, 0].tolist() == IMAGES[[3, 1]].tolist()
    assert label.tolist() == [1, 1]


def test_dataset_without_test_files(tmp_path: Path) -> None:
    write_dataset(tmp_path, parts=("train",))
    assert idx_dataset(tmp_path).test is None


def test_dataset_with_half_a_test_set(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no file of t10k labels") as caught:
        idx_dataset(tmp_path)
    assert "t10k-labels-idx1-ubyte.gz" in str(caught.value.expected)
    assert "t10k-images-idx3-ubyte" in str(caught.value.found)


def test_dataset_of_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file of train images") as caught:
        idx_dataset(tmp_path / "nothing")
    assert caught.value.found == "no such folder"


def test_label_count_differs(tmp_path: Path) -> None:
    write_dataset(tmp_path, labels=LABELS[:4])
    with pytest.raises(DataError, match="number of labels differs") as caught:
        idx_dataset(tmp_path)
    assert caught.value.where == str(tmp_path / "train-labels-idx1-ubyte")
    assert str(caught.value.expected).startswith("5, as in")
    assert caught.value.found == "4"


def test_label_out_of_range(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    with pytest.raises(DataError, match="label 2 is out of range") as caught:
        idx_dataset(tmp_path, classes=2)
    assert caught.value.expected == "0 to 1"


def test_test_labels_are_among_the_classes_of_training(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    write_dataset(tmp_path, labels=LABELS + np.uint8(1), parts=("t10k",))
    with pytest.raises(DataError, match="label 3 is out of range") as caught:
        idx_dataset(tmp_path)
    assert caught.value.where == str(tmp_path / "t10k-labels-idx1-ubyte")
    assert caught.value.expected == "0 to 2"


@pytest.mark.parametrize(
    ("images", "labels", "expected", "found"),
    [
        (LABELS, LABELS, "uint8 with 3 axes", "uint8 of shape [5]"),
        (IMAGES, IMAGES, "uint8 with 1 axis", "uint8 of shape [5, 3, 2]"),
        (IMAGES.astype(np.int16), LABELS, "uint8 with 3 axes", "int16 of shape [5, 3, 2]"),
        (IMAGES, LABELS.astype(np.float32), "uint8 with 1 axis", "float32 of shape [5]"),
    ],
)
def test_wrong_dtype_or_rank(
    tmp_path: Path,
    images: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    expected: str,
    found: str,
) -> None:
    write_dataset(tmp_path, images=images, labels=labels)
    with pytest.raises(DataError, match="does not hold") as caught:
        idx_dataset(tmp_path)
    assert caught.value.expected == expected
    assert caught.value.found == found


def test_no_more_is_decompressed_than_the_header_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(GOOD + bytes(64 << 20)))
    taken = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda self, size: taken.append(size) or read(self, size)
    )
    with pytest.raises(DataError, match="bytes follow the last value"):
        read_idx(path)
    assert sum(taken) == len(GOOD) + 1
