"""Threads that share cores: the speed of their ops while others run.

All running ops of a group have the same speed: the number of its cores divided by the number of
cores that the ops would use, at most 1. So the group has a clock of its own, which slows down when
more ops run. An op ends when that clock has advanced by the op's time on an idle device.
"""

from __future__ import annotations

from heapq import heappop, heappush

__all__ = ["Group"]


class Group:
    """The cores of a group and the ops that run on them. Times are nanoseconds.

    >>> group = Group(1, crowding=0.0)
    >>> group.begin(0.0, 0, 10.0, 1)    # thread 0 would take 10 ns alone
    >>> group.end()
    10.0
    >>> group.begin(4.0, 1, 10.0, 1)    # from now on each has half of the core
    >>> group.end(), group.take(16.0)
    (16.0, 0)
    """

    def __init__(self, cores: int, *, crowding: float) -> None:
        self.cores, self.crowding = cores, crowding
        self.version = 0
        """Counts changes, so that an end which was told before one can be dropped."""
        self.noted = 0
        """The version whose next end is known to whoever drives the group."""
        self._clock = self._now = 0.0
        self._speed = 1.0
        self._demand = 0
        self._speeds: dict[tuple[int, int], float] = {}
        """What speeds were found to be, by demand and number of ops."""
        self._running: list[tuple[float, int, int]] = []
        """A heap of (end by the group's clock, thread, cores that it keeps busy)."""

    def begin(self, now: float, thread: int, time: float, width: int) -> None:
        """A thread starts an op."""
        self._clock += (now - self._now) * self._speed
        self._now = now
        heappush(self._running, (self._clock + time, thread, width))
        self._change(width)

    def end(self) -> float:
        """The end of the next op if nothing changes; infinity if none runs."""
        if not self._running:
            return float("inf")
        return self._now + (self._running[0][0] - self._clock) / self._speed

    def take(self, now: float) -> int:
        """The thread of the next op, which ends now."""
        self._clock += (now - self._now) * self._speed
        self._now = now
        end, thread, width = heappop(self._running)
        if end > self._clock:
            self._clock = end
        self._change(-width)
        return thread

    def _change(self, width: int) -> None:
        self.version += 1
        self._demand += width
        key = (self._demand, len(self._running))
        speed = self._speeds.get(key)
        if speed is None:
            speed = self._speeds[key] = self._speed_of(*key)
        self._speed = speed

    def _speed_of(self, demand: int, count: int) -> float:
        speed = min(1.0, self.cores / demand) if demand else 1.0
        if self.crowding and count > 1:
            busy = min(demand, self.cores)
            speed /= 1.0 + self.crowding * busy * (1 - 1 / count)
        return speed
