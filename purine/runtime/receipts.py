"""Detects lost values: counts at both ends, compared after a while.

A transport delivers each value, or reports that the peer is lost. If a value were lost all the
same, hosts would wait for each other for ever while all heartbeats continue. So the heartbeat of a
peer has the number of values that it has sent, and the receiver counts those that arrived.

Messages may overtake each other, so a count that has not been reached yet is no loss; one that is
still not reached after a while is. A lost value blocks its iteration, and after a few iterations
all later ones. So the number that arrived stays below the number sent, and the loss is detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Overdue", "Receipts"]


class Overdue(NamedTuple):
    """A peer has reported that it had `sent` values, of which `arrived` are here."""

    sent: int
    arrived: int


class Receipts:
    """Counts of the values that came from each peer.

    >>> receipts = Receipts(["host1"])
    >>> receipts.tell("host1", 2, now=0.0)
    >>> receipts.arrive("host1")
    >>> receipts.overdue(before=0.0)
    {'host1': Overdue(sent=2, arrived=1)}
    >>> receipts.arrive("host1")
    >>> receipts.overdue(before=0.0)
    {}
    """

    def __init__(self, peers: Iterable[str]) -> None:
        self._arrived = dict.fromkeys(peers, 0)
        self._open: dict[str, tuple[int, float]] = {}
        """By peer the oldest number sent that is not reached, and when it was told."""

    def arrive(self, peer: str) -> None:
        """A value from a peer has arrived."""
        self._arrived[peer] += 1
        if peer in self._open and self._open[peer][0] <= self._arrived[peer]:
            del self._open[peer]

    def tell(self, peer: str, sent: int, *, now: float) -> None:
        """A peer reports how many values it has sent to this host."""
        if sent > self._arrived[peer]:
            self._open.setdefault(peer, (sent, now))

    def restart(self, now: float) -> None:
        """Start the timeouts anew: this process was stopped itself."""
        self._open = {peer: (sent, now) for peer, (sent, _) in self._open.items()}

    def overdue(self, *, before: float) -> Mapping[str, Overdue]:
        """The peers from which fewer values have arrived than they reported at this time or
        earlier."""
        return {
            peer: Overdue(sent, self._arrived[peer])
            for peer, (sent, since) in self._open.items()
            if since <= before
        }
