"""What users get wrong in the files of data sets, through the real entry point."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image

from purine.data.messages import new_message
from tests.wrong_inputs.refused import refused
from tests.wrong_inputs.test_data import IMAGES, LABELS, idx, idx_folder

COLOR = np.zeros((8, 3, 28, 28), np.float32)
CLASSES = np.arange(8.0) % 4
BIG = "9" * 400


def _idx(tmp: Path, without: str = "", **changed: bytes) -> str:
    folder = idx_folder(tmp / "data", **changed)
    if without:
        (Path(folder) / without).unlink()
    return folder


def _npz(tmp: Path, **changed: Any) -> str:
    arrays = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS} | changed
    kept = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp / "d.npz", **kept)
    return str(tmp / "d.npz")


def _npy(tmp: Path, **changed: Any) -> str:
    names = ("train_images", "train_labels", "test_images", "test_labels")
    arrays = dict(zip(names, (IMAGES, LABELS, IMAGES, LABELS), strict=True)) | changed
    folder = tmp / "data"
    folder.mkdir()
    for name, array in arrays.items():
        if isinstance(array, bytes):
            (folder / f"{name}.npy").write_bytes(array)
        elif array is not None:
            np.save(folder / f"{name}.npy", array)
    return str(folder)


def _hdf5(tmp: Path, name: str = "a.h5", **columns: Any) -> str:
    with h5py.File(tmp / name, "w") as file:
        for key, column in columns.items():
            file[key] = column
    return f"hdf5:{tmp / name}"


def _list(tmp: Path, content: str | bytes, options: str = "") -> str:
    Image.new("RGB", (28, 28)).save(tmp / "a.png")
    return f"image-list:{_file(tmp, 'l.txt', content)}{options}"


def _lmdb(tmp: Path, *values: bytes) -> str:
    with (
        lmdb.open(str(tmp / "db"), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)
    return f"lmdb:{tmp / 'db'}"


def _datum(**fields: Any) -> bytes:
    datum = new_message("Datum")
    for name, value in fields.items():
        setattr(datum, name, value)
    data: bytes = datum.SerializeToString()
    return data


def _file(tmp: Path, name: str, content: str | bytes) -> str:
    path = tmp / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def _short(path: str, size: int) -> str:
    """The file cut to a size."""
    file = Path(path.removeprefix("hdf5:"))
    file.write_bytes(file.read_bytes()[:size])
    return path


DATA: dict[str, tuple[Callable[[Path], str], str]] = {
    "idx images missing": (
        lambda t: _idx(t, "train-images-idx3-ubyte"),
        "data: there is no file of train images",
    ),
    "idx labels missing": (
        lambda t: _idx(t, "train-labels-idx1-ubyte"),
        "data: there is no file of train labels",
    ),
    "idx test labels missing": (
        lambda t: _idx(t, "t10k-labels-idx1-ubyte"),
        "data: there is no file of t10k labels",
    ),
    "idx empty file": (
        lambda t: _idx(t, train_images=b""),
        "data/train-images-idx3-ubyte: the header is cut short",
    ),
    "idx header alone": (
        lambda t: _idx(t, train_images=idx(IMAGES)[:8]),
        "data/train-images-idx3-ubyte: the header is cut short",
    ),
    "idx too long": (
        lambda t: _idx(t, train_images=idx(IMAGES) + b"x"),
        "data/train-images-idx3-ubyte: bytes follow the last valu",
    ),
    "idx of floats": (
        lambda t: _idx(t, train_images=bytes([0, 0, 13, 3]) + idx(IMAGES)[4:]),
        "data/train-images-idx3-ubyte: the file is cut short",
    ),
    "idx of an unknown type": (
        lambda t: _idx(t, train_images=bytes([0, 0, 99, 3]) + idx(IMAGES)[4:]),
        "data/train-images-idx3-ubyte: this is not an IDX file",
    ),
    "idx of no dimensions": (
        lambda t: _idx(t, train_images=bytes([0, 0, 8, 0])),
        "data/train-images-idx3-ubyte: this is not an IDX file",
    ),
    "idx of 255 dimensions": (
        lambda t: _idx(t, train_images=bytes([0, 0, 8, 255]) + b"\xff" * 2000),
        "data/train-images-idx3-ubyte: the file is cut short",
    ),
    "idx sizes that overflow": (
        lambda t: _idx(t, train_images=bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"abc"),
        "data/train-images-idx3-ubyte: the file is cut short",
    ),
    "idx no samples": (
        lambda t: _idx(t, train_images=idx(IMAGES[:0]), train_labels=idx(LABELS[:0])),
        "data/train-images-idx3-ubyte: there are no samples",
    ),
    "idx labels as images": (
        lambda t: _idx(t, train_labels=idx(IMAGES)),
        "data/train-labels-idx1-ubyte: the file does not hold lab",
    ),
    "idx images as labels": (
        lambda t: _idx(t, train_images=idx(LABELS)),
        "data/train-images-idx3-ubyte: the file does not hold ima",
    ),
    "idx test images of another size": (
        lambda t: _idx(t, t10k_images=idx(IMAGES[:, :14])),
        "data: training and test samples differ in form",
    ),
    "npz without images": (lambda t: _npz(t, x_train=None), "d.npz: an array is missing"),
    "npz fewer labels": (
        lambda t: _npz(t, y_train=LABELS[:39]),
        "d.npz (y_train): the number of labels differs from the n",
    ),
    "npz labels of floats": (
        lambda t: _npz(t, y_train=LABELS + 0.5),
        "d.npz (y_train): these are not class labels",
    ),
    "npz labels below 0": (
        lambda t: _npz(t, y_train=LABELS.astype(int) - 1),
        "d.npz (y_train): label -1 is out of range",
    ),
    "npz labels of texts": (
        lambda t: _npz(t, y_train=np.array(["a"] * 40)),
        "d.npz (y_train): samples cannot be str32",
    ),
    "npz labels of objects": (
        lambda t: _npz(t, y_train=np.array([{}] * 40, dtype=object)),
        "d.npz: an array holds Python objects",
    ),
    "npz labels of two columns": (
        lambda t: _npz(t, y_train=np.zeros((40, 2), int)),
        "d.npz (y_train): these are not class labels",
    ),
    "npz no samples": (
        lambda t: _npz(t, x_train=IMAGES[:0], y_train=LABELS[:0]),
        "d.npz (x_train): there are no samples",
    ),
    "npz images of one dimension": (
        lambda t: _npz(t, x_train=np.zeros(40)),
        "d.npz (x_train): images have 1 axes",
    ),
    "npz images complex": (
        lambda t: _npz(t, x_train=IMAGES.astype(complex)),
        "d.npz (x_train): samples cannot be complex128",
    ),
    "npz test images of another size": (
        lambda t: _npz(t, x_test=IMAGES[:, :14]),
        "d: training and test samples differ in form",
    ),
    "npz test labels beyond": (
        lambda t: _npz(t, y_test=LABELS + 4),
        "d.npz (y_test): label 7 is out of range",
    ),
    "npz images without a size": (
        lambda t: _npz(t, x_train=np.zeros((40, 0, 28), np.uint8)),
        "d.npz (x_train): there are no samples",
    ),
    "npz a scalar": (
        lambda t: _npz(t, x_train=np.array(3)),
        "d.npz (x_train): there are no samples",
    ),
    "npz empty file": (lambda t: _file(t, "d.npz", b""), "d.npz: the file cannot be read"),
    "npz cut short": (lambda t: _short(_npz(t), 900), "d.npz: the file cannot be read"),
    "npy labels missing": (lambda t: _npy(t, train_labels=None), "data: an array is missing"),
    "npy no array": (
        lambda t: _npy(t, train_images=b"no array"),
        "data/train_images.npy: the file cannot be read",
    ),
    "npy cut short": (
        lambda t: _npy(t, train_images=b"\x93NUMPY\x01\x00"),
        "data/train_images.npy: the file cannot be read",
    ),
    "npy fewer labels": (
        lambda t: _npy(t, train_labels=LABELS[:3]),
        "data (train_labels): the number of labels differs from t",
    ),
    "npy named itself": (
        lambda t: _npy(t) + "/train_images.npy",
        "data/train_images.npy: this file is no data set",
    ),
    "a gz named itself": (
        lambda t: _file(t, "a.gz", gzip.compress(b"x")),
        "a.gz: this file is no data set",
    ),
    "hdf5 that is not there": (lambda t: f"hdf5:{t / 'n.h5'}", "n.h5: the file cannot be read"),
    "hdf5 without a path": (lambda t: "hdf5:", "hdf5:: the path is missing"),
    "hdf5 that is none": (
        lambda t: "hdf5:" + _file(t, "a.h5", b"none"),
        "a.h5: the file cannot be read",
    ),
    "hdf5 empty file": (lambda t: "hdf5:" + _file(t, "a.h5", b""), "a.h5: the file cannot be read"),
    "hdf5 cut short": (
        lambda t: _short(_hdf5(t, data=COLOR, label=CLASSES), 900),
        "a.h5: the file cannot be read",
    ),
    "hdf5 a folder": (lambda t: f"hdf5:{t}", "the file cannot be read"),
    "hdf5 without data sets": (lambda t: _hdf5(t), "a.h5: the numbers of rows do not agree"),
    "hdf5 images alone": (
        lambda t: _hdf5(t, data=COLOR),
        "net 'mlp' does not fit data",
    ),
    "hdf5 labels alone": (
        lambda t: _hdf5(t, label=CLASSES),
        "net 'mlp' does not fit data",
    ),
    "hdf5 fewer labels": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES[:5]),
        "a.h5: the numbers of rows do not agree",
    ),
    "hdf5 labels of fractions": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES + 0.5),
        "a.h5: values of 'label' are not whole numbers",
    ),
    "hdf5 labels below 0": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES - 1),
        "a.h5: data set 'label' holds numbers that are no classes",
    ),
    "hdf5 labels not a number": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES * np.nan),
        "a.h5: values of 'label' are not whole numbers",
    ),
    "hdf5 labels of texts": (
        lambda t: _hdf5(t, data=COLOR, label=np.array([b"a"] * 8)),
        "a.h5: data set 'label' cannot be bytes8",
    ),
    "hdf5 labels of two columns": (
        lambda t: _hdf5(t, data=COLOR, label=np.zeros((8, 2))),
        "net 'mlp' does not fit data",
    ),
    "hdf5 three data sets": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES, more=CLASSES),
        "net 'mlp' does not fit data",
    ),
    "hdf5 a group": (
        lambda t: _hdf5(t, **{"data/x": COLOR, "label": CLASSES}),
        "a.h5: there is no data set 'data'",
    ),
    "hdf5 no rows": (
        lambda t: _hdf5(t, data=COLOR[:0], label=CLASSES[:0]),
        "a.h5: the numbers of rows do not agree",
    ),
    "hdf5 a scalar": (
        lambda t: _hdf5(t, data=3.0, label=CLASSES),
        "a.h5: there is no data set 'data'",
    ),
    "hdf5 vectors": (
        lambda t: _hdf5(t, data=COLOR[:, 0, 0], label=CLASSES),
        "net 'mlp' does not fit data",
    ),
    "hdf5 complex": (
        lambda t: _hdf5(t, data=COLOR.astype(complex), label=CLASSES),
        "a.h5: data set 'data' cannot be complex128",
    ),
    "hdf5 an empty list": (
        lambda t: "hdf5:" + _file(t, "l.txt", "\n"),
        "l.txt: the file cannot be read",
    ),
    "hdf5 a list of nothing": (
        lambda t: "hdf5:" + _file(t, "l.txt", "none.h5\n"),
        "none.h5: the file cannot be read",
    ),
    "hdf5 a list that is no text": (
        lambda t: "hdf5:" + _file(t, "l.txt", b"\xff\xfe"),
        "l.txt: the file cannot be read",
    ),
    "hdf5 an unknown option": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES) + "?size=3x3",
        "?size=3x3: no option 'size'",
    ),
    "hdf5 dtypes without names": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES) + "?dtypes=int64",
        "a.h5: there is not one dtype for each name",
    ),
    "hdf5 an unknown dtype": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES) + "?names=data|label&dtypes=float32|int99",
        "a.h5: data set 'label' cannot be int99",
    ),
    "hdf5 a name that is not there": (
        lambda t: _hdf5(t, data=COLOR, label=CLASSES) + "?names=image|label",
        "a.h5: there is no data set 'image'",
    ),
    "hdf5 a test part that differs": (
        lambda t: (
            _hdf5(t, data=COLOR, label=CLASSES)
            + ","
            + _hdf5(t, "b.h5", data=COLOR[:, :1], label=CLASSES)[5:]
        ),
        "a: training and test samples differ in form",
    ),
    "hdf5 test labels beyond": (
        lambda t: (
            _hdf5(t, data=COLOR, label=CLASSES)
            + ","
            + _hdf5(t, "b.h5", data=COLOR, label=CLASSES + 4)[5:]
        ),
        "b.h5: data set 'label' holds numbers that are no classes",
    ),
    "list that is not there": (
        lambda t: f"image-list:{t / 'n.txt'}",
        "n.txt: the list of pictures cannot be read",
    ),
    "list empty": (lambda t: _list(t, ""), "l.txt: the list of pictures cannot be read"),
    "list without labels": (
        lambda t: _list(t, "a.png\n"),
        "l.txt:1: the list of pictures cannot be read",
    ),
    "list labels of words": (
        lambda t: _list(t, "a.png cat\n"),
        "l.txt:1: the list of pictures cannot be read",
    ),
    "list labels of fractions": (
        lambda t: _list(t, "a.png 1.5\n"),
        "l.txt:1: the list of pictures cannot be read",
    ),
    "list label of 400 digits": (
        lambda t: _list(t, f"a.png {BIG}\n"),
        "l.txt:1: the list of pictures cannot be read",
    ),
    "list label below 0": (
        lambda t: _list(t, "a.png -1\n" * 8),
        "net 'mlp' does not fit data",
    ),
    "list no text": (
        lambda t: _list(t, b"\xff\xfe 1\n"),
        "l.txt: the list of pictures cannot be read",
    ),
    "list a picture that is not there": (
        lambda t: _list(t, "b.png 0\n"),
        "b.png: the picture cannot be decoded",
    ),
    "list a picture that is none": (
        lambda t: _list(t, f"{_file(t, 'b.png', b'none')} 0\n"),
        "b.png: the picture cannot be decoded",
    ),
    "list a picture that is a folder": (
        lambda t: _list(t, ". 0\n"),
        ".: the picture cannot be decoded",
    ),
    "list a picture of 300 characters": (
        lambda t: _list(t, "x" * 300 + " 0\n"),
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    "list a size of words": (
        lambda t: _list(t, "a.png 0\n", "?size=large"),
        "?size=large: option 'size' cannot be rea",
    ),
    "list a size of nothing": (
        lambda t: _list(t, "a.png 0\n", "?size=0x5"),
        "?size=0x5: option 'size' cannot be read",
    ),
    "list an unknown option": (
        lambda t: _list(t, "a.png 0\n", "?colour=no"),
        "?colour=no: no option 'colour'",
    ),
    "list an option twice": (
        lambda t: _list(t, "a.png 0\n", "?color=no&color=no"),
        "?color=no&color=no: option 'color' is gi",
    ),
    "list a switch of words": (
        lambda t: _list(t, "a.png 0\n", "?color=perhaps"),
        "?color=perhaps: option 'color' cannot be",
    ),
    "lmdb that is not there": (lambda t: f"lmdb:{t / 'n'}", "n: there is no database"),
    "lmdb without a path": (lambda t: "lmdb:", "lmdb:: the path is missing"),
    "lmdb empty folder": (
        lambda t: f"lmdb:{Path(_file(t, 'db/x', b'')).parent}",
        "db: there is no database",
    ),
    "lmdb no database": (
        lambda t: f"lmdb:{Path(_file(t, 'db/data.mdb', b'none')).parent}",
        "db: the database cannot be read",
    ),
    "lmdb empty": (lambda t: _lmdb(t), "db: the database is empty"),
    "lmdb no datum": (
        lambda t: _lmdb(t, b"\xff\xff\xff"),
        "db (key '00000000'): a sample is damaged",
    ),
    "lmdb datum of another size": (
        lambda t: _lmdb(t, _datum(channels=1, height=28, width=28, data=b"abc")),
        "db (key '00000000'): a sample has not the size that it s",
    ),
    "lmdb datum without sizes": (
        lambda t: _lmdb(t, _datum(data=b"abc")),
        "db (key '00000000'): a sample has not the size that it s",
    ),
    "lmdb datum with no picture": (
        lambda t: _lmdb(t, _datum(encoded=True, data=b"none")),
        "db (key '00000000'): the picture cannot be decoded",
    ),
    "lmdb datum of huge sizes": (
        lambda t: _lmdb(
            t, _datum(channels=2**31 - 1, height=2**31 - 1, width=2**31 - 1, data=b"abc")
        ),
        "db (key '00000000'): a sample has not the size that it s",
    ),
    "lmdb datum of negative sizes": (
        lambda t: _lmdb(t, _datum(channels=-1, height=-1, width=3, data=b"abc")),
        "db (key '00000000'): a sample has not the size that it s",
    ),
    "lmdb negative label": (
        lambda t: _lmdb(
            t, *[_datum(channels=1, height=28, width=28, data=bytes(784), label=-1)] * 8
        ),
        "net 'mlp' does not fit data",
    ),
    "lmdb leveldb": (
        lambda t: str(Path(_file(t, "db/CURRENT", "MANIFEST-000001\n")).parent),
        "db: a LevelDB cannot be read",
    ),
    "synthetic of no samples": (lambda t: "synthetic:count=0", "count is 0"),
    "synthetic of 400 digits": (lambda t: f"synthetic:count={BIG}", "count is too large"),
    "synthetic of negative classes": (lambda t: "synthetic:classes=-1", "classes is -1"),
    "synthetic an option without a value": (
        lambda t: "synthetic:count",
        "synthetic:count: option 'count' cannot be read",
    ),
    "synthetic an option twice": (
        lambda t: "synthetic:count=9,count=9",
        "synthetic:count=9,count=9: option 'count' is given twice",
    ),
    "synthetic an unknown dtype": (
        lambda t: "synthetic:dtype=int7",
        "synthetic images cannot be int7",
    ),
    "synthetic a huge image": (
        lambda t: "synthetic:image=1x9999999999x9999999999",
        "height is too large",
    ),
    "synthetic without options": (lambda t: "synthetic:", "synthetic:: there is no option ''"),
    "fashion with options": (
        lambda t: "fashion-mini:count=3",
        "fashion-mini:count=3: there is no option 'count'",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_wrong_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, text = DATA[name]
    monkeypatch.chdir(tmp_path)
    words = ["train", "--net", "mlp", "--data", make(tmp_path), "--batch", "2", "--out", "out"]
    refused(tmp_path, words, [text])
