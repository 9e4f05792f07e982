"""Remedies for a name that is not known: the nearest that are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest_name", "nearest_names"]


def nearest_name(word: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """A question with the name nearest to a word; `otherwise` where none is near.

    `cutoff` is how much of both has to be the same, from 0 to 1.

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
    """A question with up to `most` names near a word; `otherwise` where none is near.

    >>> nearest_names("conv", ["conv1", "conv2", "fc"], "see the names")
    'did you mean conv2 or conv1?'
    """
    near = difflib.get_close_matches(word, known, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
