"""Checks of the numbers that solvers and policies are given."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real

from purine.errors import ConfigError
from purine.nearest import nearest_name

__all__ = ["at_least", "fraction", "nearest", "not_negative", "pair", "positive"]


def positive(what: str, value: float) -> None:
    """Refuse a number that is not above 0."""
    if not (_is_number(value) and value > 0 and math.isfinite(value)):
        raise _out_of_range(what, value, "a number above 0")


def not_negative(what: str, value: float) -> None:
    """Refuse a number below 0."""
    if not (_is_number(value) and value >= 0 and math.isfinite(value)):
        raise _out_of_range(what, value, "0 or a number above 0")


def fraction(what: str, value: float) -> None:
    """Refuse a number that is not at least 0 and below 1."""
    if not (_is_number(value) and 0 <= value < 1):
        raise _out_of_range(what, value, "at least 0 and below 1")


def at_least(what: str, value: int, least: int) -> None:
    """Refuse what is not a whole number, or one that is too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _out_of_range(what, value, f"a whole number, {least} or more")


def pair(what: str, value: tuple[float, float]) -> tuple[float, float]:
    """Two numbers; anything else is refused."""
    if not isinstance(value, Sequence) or len(value) != 2:
        raise _out_of_range(what, value, "two numbers")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a name that is not known."""
    known = list(known)
    return nearest_name(name, known, f"use one of {', '.join(known)}", cutoff=0.5)


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _out_of_range(what: str, value: object, expected: str) -> ConfigError:
    return ConfigError(
        f"{what} is {value!r}",
        expected=expected,
        found=repr(value),
        remedy=f"change {what}",
    )
