"""Names that are not known: the error, and a suggestion of the nearest known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from purine.errors import E

__all__ = ["nearest_name", "nearest_names", "unknown_name"]


def unknown_name(
    error: type[E],
    sort: str,
    name: str,
    known: Iterable[str],
    *,
    expected: str | None = None,
    found: str | None = None,
    remedy: str = "use one of these",
    where: str | Path | None = None,
    cutoff: float = 0.5,
) -> E:
    """The error for a name that is none of the known names of its sort.

    The remedy is the nearest known name; `remedy` is for a name that is near none.

    >>> from purine.errors import ConfigError
    >>> print(unknown_name(ConfigError, "net", "lennet", ["lenet", "nin"]))
    there is no net 'lennet'
      expected: one of lenet, nin
      found: 'lennet'
      to do: did you mean 'lenet'?
    """
    names, found = list(known), found or repr(name)
    expected = expected or f"one of {', '.join(names) or 'none'}"
    remedy = nearest_name(name, names, remedy, cutoff=cutoff)
    return error(f"there is no {sort} {name!r}", expected, found, remedy, where=where)


def nearest_name(word: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """A question that suggests the known name nearest to `word`, or `otherwise`.

    `cutoff` is the smallest similarity of a suggestion, from 0 to 1.

    >>> nearest_name("lennet", ["lenet", "nin"], "use one of these")
    "did you mean 'lenet'?"
    >>> nearest_name("vgg", ["lenet", "nin"], "use one of these")
    'use one of these'
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


def nearest_names(
    word: str, known: Iterable[str], otherwise: str, *, most: int = 3, cutoff: float = 0.4
) -> str:
    """A question that suggests up to `most` known names near `word`, or `otherwise`.

    >>> nearest_names("conv", ["conv1", "conv2", "fc"], "see the names")
    'did you mean conv2 or conv1?'
    """
    near = difflib.get_close_matches(word, known, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
