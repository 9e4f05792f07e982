"""Sources in files of Caffe's formats, by a text that opens them again with the same options.

    lmdb:/data/train_lmdb
    image-list:/data/train.txt?root=/data/pictures/&size=256x256

The text is a kind, a path and, after a question mark, the options that are not the kind's defaults.
Values of options are quoted as in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote

from purine.data.hdf5 import Hdf5Source
from purine.data.image_list import ImageListSource
from purine.data.lmdb import LmdbSource
from purine.data.source import Source
from purine.errors import DataError, given_twice
from purine.files import expanded
from purine.nearest import unknown_name

__all__ = ["KINDS", "Stored", "parse_options", "parse_stored"]


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
        raise DataError(what, expected, actual, remedy, where=path)
    named = dict(zip(names, dtypes, strict=True)) if dtypes else {}
    return Hdf5Source(path, names=names or None, dtypes=named, root=root)


KINDS: Mapping[str, tuple[Callable[..., Source], tuple[str, ...]]] = {
    "lmdb": (LmdbSource, ("color", "labels")),
    "hdf5": (_hdf5, ("names", "dtypes", "root")),
    "image-list": (ImageListSource, ("size", "color", "root", "labels")),
}
"""How a source of each kind is made from a path, and the options that it takes."""

Form: TypeAlias = tuple[str, Callable[[str], object]]
"""The form of an option in words, and the function that reads it or raises ValueError."""


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _size(text: str) -> tuple[int, int]:
    height, width = map(int, text.split("x"))
    if min(height, width) < 1:
        raise ValueError(text)
    return height, width


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_OPTIONS: Mapping[str, Form] = {
    "color": ("yes or no", _yes),
    "labels": ("yes or no", _yes),
    "size": ("HxW, such as 256x256", _size),
    "root": ("a path", str),
    "names": ("words with | between them", _words),
    "dtypes": ("words with | between them", _words),
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
        said = [f"{key}={quote(_text(v), safe='/|')}" for key, v in self.options.items()]
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
    match = _BEHIND.fullmatch(text)
    if match is None:
        return Stored(kind, expanded(text))
    spec, known = f"{kind}:{text}", KINDS[kind][1]
    items = [unquote(item) for item in match[2].split("&")]
    for item in items:
        key = item.partition("=")[0]
        if key not in known:
            expected, remedy = f"options of {kind}: {', '.join(known)}", "correct or remove it"
            raise DataError(f"no option {key!r}", expected, repr(item), remedy, where=spec)
    return Stored(kind, expanded(match[1]), parse_options(spec, items, known, _OPTIONS))


def parse_options(
    spec: str, items: Sequence[str], known: Sequence[str], forms: Mapping[str, Form]
) -> dict[str, object]:
    """The values of `items`, each `key=value` with one of the known keys; `spec` is the text."""
    options: dict[str, object] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in known:
            expected = ", ".join(known) or "no options"
            raise unknown_name(
                DataError, "option", key, known, expected=expected, found=repr(item), where=spec
            )
        if key in options:
            raise given_twice(DataError, f"option {key!r}", "option", where=spec, found=repr(item))
        form, convert = forms[key]
        try:
            options[key] = convert(value)
        except ValueError as error:
            what, remedy = f"option {key!r} cannot be read", "correct or remove it"
            raise DataError(what, form, repr(value), remedy, where=spec) from error
    return options


def _text(value: object) -> str:
    """The value of an option as `_OPTIONS` reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ("x" if isinstance(value[0], int) else "|").join(map(str, value))
    return str(value)
