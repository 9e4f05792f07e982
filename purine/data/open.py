"""Data sets by a short text, as job files and the command line name them.

A name of ours comes before a path of the same spelling: write `./synthetic` for the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from purine.arguments import checked
from purine.data.idx import fashion_mini, find_idx, idx_dataset
from purine.data.lmdb import is_leveldb, is_lmdb, lmdb_dataset
from purine.data.npz import npy_dataset, npz_dataset
from purine.data.source import DataSet
from purine.data.stored import KINDS, Form, parse_options, parse_stored
from purine.data.synthetic import synthetic_images, synthetic_masks, synthetic_tokens
from purine.errors import DataError
from purine.files import expanded, listing
from purine.nearest import unknown_name

__all__ = ["absolute", "open_data"]


def _image(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split("x"))
    if len(sizes) != 3:
        raise ValueError(text)
    return sizes


_WHOLE = ("a whole number, such as 10", int)
_OPTIONS: Mapping[str, Form] = {
    "classes": _WHOLE,
    "count": _WHOLE,
    "dtype": ("float32 or uint8", str),
    "image": ("CxHxW, such as 3x224x224", _image),
    "length": _WHOLE,
    "seed": _WHOLE,
    "vocabulary": _WHOLE,
}

_NAMED: Mapping[str, tuple[Callable[..., DataSet], tuple[str, ...]]] = {
    "fashion-mini": (fashion_mini, ()),
    "synthetic": (synthetic_images, ("image", "classes", "count", "seed", "dtype")),
    "synthetic-masks": (synthetic_masks, ("image", "classes", "count", "seed")),
    "synthetic-tokens": (synthetic_tokens, ("length", "vocabulary", "count", "seed")),
}
"""The data sets that have names, and their options."""

_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
_LOOKED_AT = 1000
_KNOWN = (
    f"{', '.join(_NAMED)}, {', '.join(f'{name}:PATH' for name in KINDS)}, an LMDB folder, "
    "a folder of IDX files, a folder of .npy files, or a .npz file"
)


@checked
def open_data(spec: str) -> DataSet:
    """The data set that `spec` names: one of ours with its options, or a path.

    Names are `fashion-mini`, `synthetic:image=3x224x224,classes=1000,count=1280`,
    `synthetic-masks:image=3x64x64,classes=4`, `synthetic-tokens:length=64,vocabulary=256`. A path
    is a folder of IDX, LMDB or `.npy` files, or a `.npz` file. Data in Caffe's forms are
    `lmdb:TRAIN,TEST`, `hdf5:TRAIN,TEST` and `image-list:TRAIN,TEST`; see `purine.data.stored`.

    >>> open_data("synthetic:image=1x8x8,classes=10,count=50").train.fields[0].shape
    (1, 8, 8)
    """
    name, colon, options = spec.partition(":")
    if not spec:
        remedy = "name one of these, such as fashion-mini"
        raise _unknown("the name of the data is empty", None, "''", remedy)
    if name in _NAMED:
        make, known = _NAMED[name]
        return make(**parse_options(spec, options.split(",") if colon else (), known, _OPTIONS))
    if name in KINDS and colon:
        train, _, test = options.partition(",")
        if not train:
            raise _unknown("the path is missing", spec, repr(spec), f"write {name}:PATH")
        first = parse_stored(name, train)
        other = parse_stored(name, test).open() if test else None
        return DataSet(first.path.stem, first.open(), other)
    path = expanded(spec)
    if os.path.isdir(path):  # false for a path that cannot be looked at, too
        return _open_folder(path)
    if os.path.isfile(path):
        if path.suffix == ".npz":
            return npz_dataset(path)
        part = path.suffix in (".npy", ".gz")
        remedy = "name the folder that holds the file" if part else "convert it to .npz"
        file = f"a file of type {path.suffix or 'unknown'}"
        raise _unknown("this file is no data set", spec, file, remedy)
    if path.parent != Path() or path.suffix in (".npz", ".npy") or "/" in spec:
        remedy = f"check the path (relative paths start at {Path.cwd()})"
        raise _unknown("there is no such file or folder", spec, "nothing at this path", remedy)
    remedy = "use one of these names or a path"
    raise unknown_name(
        DataError, "data set", name, _NAMED, expected=_KNOWN, found=repr(spec), remedy=remedy
    )


def absolute(spec: str) -> str:
    """The same with paths that do not depend on the current folder; names stay as they are.

    >>> absolute("synthetic:count=50"), absolute("lmdb:/data/train,/data/test")
    ('synthetic:count=50', 'lmdb:/data/train,/data/test')
    """
    name, colon, rest = spec.partition(":")
    if name in _NAMED:
        return spec
    if name in KINDS and colon:
        paths = (str(parse_stored(name, part).absolute()) for part in rest.split(",", 1) if part)
        return f"{name}:{','.join(paths)}"
    return str(expanded(spec).resolve())


def _unknown(what: str, spec: str | None, found: str, remedy: str) -> DataError:
    return DataError(what, _KNOWN, found, remedy, where=spec)


def _open_folder(path: Path) -> DataSet:
    if is_lmdb(path) or is_leveldb(path):
        return lmdb_dataset(path)
    if find_idx(path, "train", "images") or find_idx(path, "train", "labels"):
        return idx_dataset(path)
    if any(path.glob("*.npy")):
        return npy_dataset(path)
    archives = sorted(file.name for file in path.glob("*.npz"))
    remedy = "name the folder of the files"
    if archives:
        remedy = f"name the file: {path / archives[0]}"
    elif any(file.suffix.lower() in _PICTURES for file in islice(path.rglob("*"), _LOOKED_AT)):
        remedy = "list the pictures in a text file, a path and a label on each line, and name "
        remedy += "that: image-list:TRAIN,TEST"
    expected = "train-images-idx3-ubyte[.gz] and so on, or train_images.npy and so on"
    raise DataError("this folder is no data set", expected, listing(path), remedy, where=path)
