"""Data sets by a short text, as job files and the command line name them.

A name of ours comes before a path of the same spelling: write `./synthetic` for the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from purine.arguments import checked
from purine.data._files import listing
from purine.data.embedded import fashion_mini
from purine.data.idx import find_idx, idx_dataset
from purine.data.lmdb import is_leveldb, is_lmdb, lmdb_dataset
from purine.data.npz import npy_dataset, npz_dataset
from purine.data.source import DataSet
from purine.data.stored import KINDS, parse_stored
from purine.data.synthetic import synthetic_images, synthetic_masks, synthetic_tokens
from purine.errors import DataError
from purine.files import expanded
from purine.nearest import nearest_name

__all__ = ["absolute", "open_data"]

_IMAGE = "CxHxW, such as 3x224x224"
_WHOLE = "a whole number"
_DTYPE = "float32 or uint8"


def _image(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split("x"))
    if len(sizes) != 3:
        raise ValueError(text)
    return sizes


_Options: TypeAlias = Mapping[str, tuple[str, Callable[[str], object]]]

_NAMED: Mapping[str, tuple[Callable[..., DataSet], _Options]] = {
    "fashion-mini": (fashion_mini, {}),
    "synthetic": (
        synthetic_images,
        {
            "image": (_IMAGE, _image),
            "classes": (_WHOLE, int),
            "count": (_WHOLE, int),
            "seed": (_WHOLE, int),
            "dtype": (_DTYPE, str),
        },
    ),
    "synthetic-masks": (
        synthetic_masks,
        {
            "image": (_IMAGE, _image),
            "classes": (_WHOLE, int),
            "count": (_WHOLE, int),
            "seed": (_WHOLE, int),
        },
    ),
    "synthetic-tokens": (
        synthetic_tokens,
        {
            "length": (_WHOLE, int),
            "vocabulary": (_WHOLE, int),
            "count": (_WHOLE, int),
            "seed": (_WHOLE, int),
        },
    ),
}

_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
_LOOKED_AT = 1000
_KNOWN = (
    f"{', '.join(_NAMED)}, {', '.join(f'{name}:PATH' for name in KINDS)}, an LMDB folder, "
    "a folder of IDX files, a folder of .npy files, or a .npz file"
)


@checked
def open_data(spec: str) -> DataSet:
    """The data set that `spec` names: one of ours with its options, or a path.

    Known are `fashion-mini`, `synthetic:image=3x224x224,classes=1000,count=1280`,
    `synthetic-masks:image=3x64x64,classes=4,count=320`,
    `synthetic-tokens:length=64,vocabulary=256,count=1280` (options may be left out), a folder of
    IDX files, a folder of `.npy` files, and a `.npz` file. In Caffe's forms there are LMDB folders,
    `lmdb:TRAIN,TEST`, lists of HDF5 files, `hdf5:TRAIN,TEST`, and of pictures,
    `image-list:TRAIN,TEST` (the test part may be left out; `purine.data.stored` tells the options
    that may stand behind a path).

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
    raise DataError(
        f"there is no data set {name!r}",
        expected=_KNOWN,
        found=repr(spec),
        remedy=nearest_name(name, _NAMED, "use one of these names or a path"),
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


def _parse_options(spec: str, text: str, known: _Options) -> dict[str, object]:
    options: dict[str, object] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key not in known:
            raise DataError(
                f"there is no option {key!r}",
                where=spec,
                expected=", ".join(known) or "no options",
                found=repr(item),
                remedy=nearest_name(
                    key, known, "use these options, as in name:key=value,key=value"
                ),
            )
        if key in options:
            what = f"option {key!r} is given twice"
            expected = "every option once"
            remedy = "leave one of them out"
            raise DataError(what, where=spec, expected=expected, found=repr(item), remedy=remedy)
        form, convert = known[key]
        try:
            options[key] = convert(value)
        except ValueError as error:
            what = f"option {key!r} cannot be read"
            remedy = f"write {key}=" + ("3x224x224" if form == _IMAGE else "10")
            raise DataError(
                what, where=spec, expected=form, found=repr(value), remedy=remedy
            ) from error
    return options
