"""The clocks of several hosts: the offset of each from that of the first host.

A host asks the first one for its time, many times. The answer was read at some moment between
question and answer, so the midpoint is wrong by at most half of the round trip. The shortest round
trip gives the best estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ROUNDS", "Reading", "estimate"]

ROUNDS = 50
"""Round trips of one estimate. Most are delayed by other threads; a few are not."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The clock of the first host is `offset` ns ahead of this one's when this one shows `at`.

    The true offset differs by at most `uncertainty` ns.
    """

    at: int
    offset: int
    uncertainty: int


def estimate(ask: Callable[[], int], now: Callable[[], int]) -> Reading:
    """The offset of another clock, which `ask` reads, against that of this host, which `now` reads.

    >>> from itertools import count
    >>> own = count(0, 10)
    >>> estimate(lambda: next(own) + 7000, lambda: next(own))
    Reading(at=10, offset=7000, uncertainty=10)
    """
    readings = []
    for _ in range(ROUNDS):
        asked, theirs, answered = now(), ask(), now()
        middle = (asked + answered) // 2
        readings.append(Reading(middle, theirs - middle, (answered - asked + 1) // 2))
    return min(readings, key=lambda reading: reading.uncertainty)
