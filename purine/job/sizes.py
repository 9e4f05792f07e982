"""Sizes of memory as text."""

from __future__ import annotations

import re

from purine.errors import ConfigError

__all__ = ["parse_size"]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(k|m|g|t)?b(?:ytes?)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_size(text: str) -> int:
    """The bytes of a size.

    >>> parse_size("16gb"), parse_size("1.5 MB")
    (16000000000, 1500000)
    """
    parts = _SIZE.fullmatch(text.strip())
    size = 0 if parts is None else int(float(parts[1]) * _UNITS[(parts[2] or "").lower()])
    if size <= 0:
        expected = "a number above zero with a unit: 800mb, 16gb"
        raise ConfigError(f"{text!r} is no size of memory", expected, text, "write 16gb")
    return size
