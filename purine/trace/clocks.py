"""The clocks of the hosts in a trace, and how times of one are brought onto another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from purine.trace.tables import as_table, as_time
from purine.transports.clock import Reading

__all__ = ["HostClock", "clock_of", "clocks_text", "offset_at"]


@dataclass(frozen=True, slots=True)
class HostClock:
    """What was added to the times of a host, in ns: `offset` at first, `offset + drift` at last.

    Both are known to within `uncertainty`.
    """

    host: str
    offset: int
    drift: int
    uncertainty: int


def clock_of(host: str, readings: Sequence[Reading]) -> HostClock:
    """The clock of a host from its readings, the oldest first."""
    first, last = readings[0], readings[-1]
    worst = max(reading.uncertainty for reading in readings)
    return HostClock(host, first.offset, last.offset - first.offset, worst)


def offset_at(readings: Sequence[Reading], time: int) -> int:
    """The offset at a time of the host's own clock, on straight lines between its readings.

    >>> readings = [Reading(1000, 50, 1), Reading(2000, 60, 1)]
    >>> [offset_at(readings, time) for time in (0, 1000, 1500, 2000, 3000)]
    [50, 50, 55, 60, 60]
    """
    behind = bisect_left(readings, time, key=lambda reading: reading.at)
    if behind in (0, len(readings)):
        return readings[min(behind, len(readings) - 1)].offset
    before, after = readings[behind - 1], readings[behind]
    passed, between = time - before.at, after.at - before.at
    return before.offset + (after.offset - before.offset) * passed // between


def clocks_text(clocks: Sequence[HostClock]) -> str:
    """A table of the offsets, which are those against the first host."""
    head = ("host", "offset", "drift", "known to within")
    rows = [
        (clock.host, _signed(clock.offset), _signed(clock.drift), as_time(clock.uncertainty))
        for clock in clocks[1:]
    ]
    title = f"times are those of {clocks[0].host}; what was added to those of the others"
    return f"{title}\n{as_table([head, *rows], left=1)}\n"


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{as_time(abs(ns))}"
