"""Events of a trace: which op ran where and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from purine.trace.tables import natural

__all__ = [
    "ARRIVAL",
    "FETCH",
    "POST",
    "PUT",
    "Edge",
    "Event",
    "Read",
    "by_lane",
    "covered",
    "host_of",
]

Edge: TypeAlias = tuple[str, str, int]
"""Producer op, consumer op, and the iterations between them: 0, or 1 through a state."""

Read: TypeAlias = tuple[str, int, str, int]
"""What one worker read of another: the op that pushed a version of a shared state and its
iteration, the op that took this version and its iteration."""

FETCH = "Fetch"
"""The kind of events that are no ops: transfers of outputs from a GPU to the host."""

PUT, POST, ARRIVAL = "Put", "Post", "Arrival"
"""The kinds of the two halves of a transfer between hosts. The put of arrival `a` is `put/a`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One execution of an op; `start` and `end` are in nanoseconds of one clock."""

    op: str
    kind: str
    iteration: int
    location: str
    lane: str
    start: int
    end: int

    @property
    def host(self) -> str:
        """The name of the host in the location."""
        return host_of(self.location)


def host_of(location: str) -> str:
    """The name of the host in the text of a location.

    >>> host_of("host host1, cpu:0")
    'host1'
    """
    return location.removeprefix("host ").rpartition(", ")[0]


def covered(spans: Iterable[tuple[int, int]], begin: int) -> int:
    """How much of the time after `begin` intervals cover; overlaps count once."""
    total, until = 0, begin
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def by_lane(events: Sequence[Event]) -> dict[tuple[str, str], list[int]]:
    """The indices of the events of each lane, in order; lanes are sorted by `natural`."""
    lanes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        lanes[event.location, event.lane].append(index)
    return dict(sorted(lanes.items(), key=lambda item: [natural(name) for name in item[0]]))
