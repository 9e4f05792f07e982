"""Columns of whole numbers as short text: differences, variable length, deflate, base64.

200,000 events have about ten columns. As JSON they would take tens of megabytes; neighbouring
values are similar, so their differences take one or two bytes each. `static/columns.js` reads this
format.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Document", "Json", "packed", "unpacked"]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | dict[str, Json] | None"
"""What a document of the page is made of."""
Document: TypeAlias = Mapping[str, Any]
"""A document, or an object in it, for those who read it and know what is there."""

_BYTES = 10
"""The most bytes that a number of 64 bits takes with seven bits in each."""


def packed(values: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """A column of numbers from -2**62 to 2**62, as text.

    >>> unpacked(packed([5, 7, 1_000_000_007, -3])).tolist()
    [5, 7, 1000000007, -3]
    """
    column = np.asarray(values, dtype=np.int64)
    steps = np.diff(column, prepend=np.int64(0))
    folded = ((steps << 1) ^ (steps >> 63)).view(np.uint64)  # small numbers of either sign are low
    lengths = np.ones(len(folded), dtype=np.int64)
    for bits in range(7, 64, 7):
        lengths += folded >= np.uint64(1 << bits)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    data = np.zeros(total, dtype=np.uint8)
    starts = ends - lengths
    for position in range(_BYTES):
        here = lengths > position
        if not here.any():
            break
        low = ((folded[here] >> np.uint64(7 * position)) & np.uint64(0x7F)).astype(np.uint8)
        more = (lengths[here] > position + 1).astype(np.uint8) << 7
        data[starts[here] + position] = low | more
    return base64.b64encode(zlib.compress(data.tobytes(), 6)).decode("ascii")


def unpacked(text: str) -> npt.NDArray[np.int64]:
    """The numbers of a column."""
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    if not len(data):
        return np.zeros(0, dtype=np.int64)
    last = np.flatnonzero(data < 0x80)
    starts = np.concatenate(([0], last[:-1] + 1))
    place = np.arange(len(data)) - np.repeat(starts, last - starts + 1)
    parts = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    folded = np.add.reduceat(parts, starts)
    steps = (folded >> np.uint64(1)).astype(np.int64) ^ -((folded & np.uint64(1)).astype(np.int64))
    return np.cumsum(steps)
