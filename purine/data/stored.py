"""Sources in files of Caffe's formats, by a text that opens them again with the same options.

    lmdb:/data/train_lmdb
    image-list:/data/train.txt?root=/data/pictures/&size=256x256

The text is a kind, a path and, after a question mark, the options that are not the kind's defaults.
Values of options are quoted as in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from purine.data.hdf5 import Hdf5Source
from purine.data.image_list import ImageListSource
from purine.data.lmdb import LmdbSource
from purine.data.source import Source
from purine.errors import DataError
from purine.files import expanded

__all__ = ["KINDS", "Stored", "parse_stored"]


def _hdf5(
    path: Path,
    *,
    names: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    root: str | None = None,
) -> Source:
    if dtypes and len(names) != len(dtypes):
        what = "there is not one dtype for each name"
        expected = "options names and dtypes with as many words, in the same order"
        actual = f"names {'|'.join(names) or 'not given'}, dtypes {'|'.join(dtypes)}"
        remedy = "write for example names=data|label&dtypes=float32|int64"
        raise DataError(what, where=path, expected=expected, found=actual, remedy=remedy)
    named = dict(zip(names, dtypes, strict=True)) if dtypes else {}
    return Hdf5Source(path, names=names or None, dtypes=named, root=root)


KINDS: Mapping[str, tuple[Callable[..., Source], tuple[str, ...]]] = {
    "lmdb": (LmdbSource, ("color", "labels")),
    "hdf5": (_hdf5, ("names", "dtypes", "root")),
    "image-list": (ImageListSource, ("size", "color", "root", "labels")),
}
"""How a source of each kind is made from a path, and the options that it takes."""

_Form: TypeAlias = tuple[str, Callable[[str], object], Callable[[Any], str]]


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _size(text: str) -> tuple[int, int]:
    height, width = map(int, text.split("x"))
    if min(height, width) < 1:
        raise ValueError(text)
    return height, width


_SWITCH: _Form = ("yes or no", _yes, lambda value: "yes" if value else "no")
_WORDS: _Form = ("words with | between them", lambda t: tuple(t.split("|")), "|".join)
_OPTIONS: Mapping[str, _Form] = {
    "color": _SWITCH,
    "labels": _SWITCH,
    "size": ("HxW, such as 256x256", _size, lambda value: f"{value[0]}x{value[1]}"),
    "root": ("a path", str, str),
    "names": _WORDS,
    "dtypes": _WORDS,
}
_BEHIND = re.compile(r"(?s)(.+)\?((?:[a-z]+=[^?&]*)(?:&[a-z]+=[^?&]*)*)")


@dataclass(frozen=True, slots=True)
class Stored:
    """A source in a file or folder: its kind, where it is, and how it is read.

    >>> str(Stored("image-list", Path("/data/train.txt"), {"size": (8, 8), "root": "/a b/"}))
    '/data/train.txt?size=8x8&root=/a%20b/'
    """

    kind: str
    path: Path
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        said = [
            f"{key}={quote(_OPTIONS[key][2](value), safe='/|')}"
            for key, value in self.options.items()
        ]
        return f"{self.path}?{'&'.join(said)}" if said else str(self.path)

    def open(self) -> Source:
        """The source itself."""
        return KINDS[self.kind][0](self.path, **self.options)

    def absolute(self) -> Stored:
        """The same with paths that do not depend on the current folder."""
        options = dict(self.options)
        if "root" in options:
            # The end of it counts: names are put right behind.
            root = str(options["root"])
            end = "/" if root.endswith("/") else ""
            options["root"] = str(expanded(root).resolve()).rstrip("/") + end
        return Stored(self.kind, expanded(self.path).resolve(), options)


def parse_stored(kind: str, text: str) -> Stored:
    """The source that a text of this form names; whether it is there is not asked."""
    known = KINDS[kind][1]
    match = _BEHIND.fullmatch(text)
    if match is None:
        return Stored(kind, expanded(text))
    options: dict[str, object] = {}
    for item in match[2].split("&"):
        key, _, value = item.partition("=")
        if key not in known or key in options:
            raise DataError(
                f"option {key!r} is given twice" if key in options else f"no option {key!r}",
                where=f"{kind}:{text}",
                expected=f"options of {kind}, each once: {', '.join(known)}",
                found=repr(item),
                remedy="correct or remove it",
            )
        form, convert, _ = _OPTIONS[key]
        try:
            options[key] = convert(unquote(value))
        except ValueError as error:
            what = f"option {key!r} cannot be read"
            remedy = "correct or remove it"
            raise DataError(
                what, where=f"{kind}:{text}", expected=form, found=repr(value), remedy=remedy
            ) from error
    return Stored(kind, expanded(match[1]), options)
