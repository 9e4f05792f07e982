"""Data sets by a short text, as job files and the command line name them.

A name of ours comes before a path of the same spelling: write `./synthetic` for the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from purine.arguments import checked
from purine.data._files import listing
from purine.data.embedded import fashion_mini
from purine.data.idx import find_idx, idx_dataset
from purine.data.lmdb import is_leveldb, is_lmdb, lmdb_dataset
from purine.data.npz import npy_dataset, npz_dataset
from purine.data.source import DataSet
from purine.data.stored import KINDS, parse_stored
from purine.data.synthetic import synthetic_images, synthetic_masks, synthetic_tokens
from purine.errors import DataError, given_twice
from purine.files import expanded
from purine.nearest import unknown_name

__all__ = ["absolute", "open_data"]


def _image(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split("x"))
    if len(sizes) != 3:
        raise ValueError(text)
    return sizes


_WHOLE = ("a whole number", int, "10")
_OPTIONS: Mapping[str, tuple[str, Callable[[str], object], str]] = {
    "classes": _WHOLE,
    "count": _WHOLE,
    "dtype": ("float32 or uint8", str, "float32"),
    "image": ("CxHxW, such as 3x224x224", _image, "3x224x224"),
    "length": _WHOLE,
    "seed": _WHOLE,
    "vocabulary": _WHOLE,
}
"""The form of each option, the function that reads it, and an example."""

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
        raise DataError("the name of the data is empty", expected=_KNOWN, found="''", remedy=remedy)
    if name in _NAMED:
        make, known = _NAMED[name]
        return make(**_parse_options(spec, options, known) if colon else {})
    if name in KINDS and colon:
        train, _, test = options.partition(",")
        first = parse_stored(name, _path(spec, train))
        other = parse_stored(name, test).open() if test else None
        return DataSet(first.path.stem, first.open(), other)
    path = expanded(spec)
    if os.path.isdir(path):  # false for a path that cannot be looked at, too
        return _open_folder(path)
    if os.path.isfile(path):
        if path.suffix == ".npz":
            return npz_dataset(path)
        raise DataError(
            "this file is no data set",
            where=spec,
            expected=_KNOWN,
            found=f"a file of type {path.suffix or 'unknown'}",
            remedy="name the folder that holds the file"
            if path.suffix in (".npy", ".gz")
            else "convert it to .npz",
        )
    if path.parent != Path() or path.suffix in (".npz", ".npy") or "/" in spec:
        what = "there is no such file or folder"
        remedy = f"check the path (relative paths start at {Path.cwd()})"
        raise DataError(
            what, where=spec, expected=_KNOWN, found="nothing at this path", remedy=remedy
        )
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


def _path(spec: str, text: str) -> str:
    if not text:
        what = "the path is missing"
        remedy = f"write {spec.partition(':')[0]}:PATH"
        raise DataError(what, where=spec, expected=_KNOWN, found=repr(spec), remedy=remedy)
    return text


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
        remedy = (
            "list the pictures in a text file, a path and a label on each line, and name that: "
            "image-list:TRAIN,TEST"
        )
    what = "this folder is no data set"
    expected = "train-images-idx3-ubyte[.gz] and so on, or train_images.npy and so on"
    raise DataError(what, where=path, expected=expected, found=listing(path), remedy=remedy)


def _parse_options(spec: str, text: str, known: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key not in known:
            expected = ", ".join(known) or "no options"
            remedy = "use these options, as in name:key=value,key=value"
            raise unknown_name(
                DataError,
                "option",
                key,
                known,
                expected=expected,
                found=repr(item),
                remedy=remedy,
                where=spec,
            )
        if key in options:
            raise given_twice(DataError, f"option {key!r}", "option", where=spec, found=repr(item))
        form, convert, example = _OPTIONS[key]
        try:
            options[key] = convert(value)
        except ValueError as error:
            what, remedy = f"option {key!r} cannot be read", f"write {key}={example}"
            raise DataError(
                what, where=spec, expected=form, found=repr(value), remedy=remedy
            ) from error
    return options
