"""Axes: which numbers are marked, how they are written, and where a value lies.

Ticks are round: 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Axis", "axis", "short"]

_ROUND = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, its ticks, and whether equal factors lie equally far apart."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    @property
    def labels(self) -> tuple[str, ...]:
        """The ticks as text, all with as many decimals as they need together.

        >>> axis([0.0, 0.42], most=5).labels
        ('0.0', '0.1', '0.2', '0.3', '0.4')
        """
        if self.log:
            return tuple(f"{tick:,.9g}" if tick < 1e6 else f"{tick:.0e}" for tick in self.ticks)
        largest = max(map(abs, self.ticks), default=0.0)
        if largest >= 1e9 or 0 < largest < 1e-4:
            return tuple(f"{tick:.3g}" for tick in self.ticks)
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return tuple(f"{tick:,.{decimals}f}" for tick in self.ticks)


def axis(
    values: Iterable[float], *, most: int, log: bool = False, least: float | None = None
) -> Axis:
    """The axis that shows all values with at most `most` ticks; it begins at `least` or below.

    On a logarithmic axis values have to be positive.

    >>> axis([0, 937], most=5).ticks
    (0.0, 200.0, 400.0, 600.0, 800.0)
    >>> axis([0.02, 2.3], most=5, log=True).ticks
    (0.1, 1.0)
    """
    known = sorted(values) or [0.0]
    low, high = known[0], known[-1]
    if least is not None:
        low = min(low, least)
    if low == high:
        spread = abs(low) / 2 or 0.5
        low, high = (low / 2, high * 2) if log else (low - spread, high + spread)
    ticks = _log_ticks(low, high, most) if log else _even_ticks(low, high, most)
    return Axis(low, high, tuple(ticks), log)


def _even_ticks(low: float, high: float, most: int) -> Sequence[float]:
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (*_ROUND, 20.0, 50.0)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> Sequence[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1,)):
        ticks = [
            float(f"{factor}e{power}") for power in range(first, last + 1) for factor in factors
        ]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= most:
            break
    if len(inside) < 2:  # a small part of a decade
        return _even_ticks(low, high, most)
    return inside[:: -(-len(inside) // most)]


def short(value: float) -> str:
    """A number in four digits.

    >>> short(0.98765), short(12345.6)
    ('0.9877', '1.235e+04')
    """
    return f"{value:.4g}"
