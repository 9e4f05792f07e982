"""Whether all values that peers have sent have arrived: counts at both ends, without a clock.

A transport delivers what is put, or reports that the peer is lost. Should a value be lost all the
same, hosts would wait for each other for ever while each shows that it is alive. So the sign of
life of a peer says how many values it has sent, and the receiver counts those that arrived.

Messages may overtake each other, so a count that has not been reached yet is no loss. It is one if
it is still not reached after a while. A lost value holds its iteration up, and after a few
iterations all that follows. So the number that arrived stays below the number sent, and the loss is
noticed in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Overdue", "Receipts"]


class Overdue(NamedTuple):
    """A peer has told that it had `sent` values, of which `arrived` are here."""

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
        """A value from a peer is here."""
        self._arrived[peer] += 1
        if peer in self._open and self._open[peer][0] <= self._arrived[peer]:
            del self._open[peer]

    def tell(self, peer: str, sent: int, *, now: float) -> None:
        """A peer says how many values it has sent to this host."""
        if sent > self._arrived[peer]:
            self._open.setdefault(peer, (sent, now))

    def restart(self, now: float) -> None:
        """Count time from now on: this process was stopped itself."""
        self._open = {peer: (sent, now) for peer, (sent, _) in self._open.items()}

    def overdue(self, *, before: float) -> Mapping[str, Overdue]:
        """The peers of which less is here than they said at this time or earlier."""
        return {
            peer: Overdue(sent, self._arrived[peer])
            for peer, (sent, since) in self._open.items()
            if since <= before
        }
