"""When to look again, for engines that cannot wake a thread: the pauses between two looks.

A pause is a share of the time for which nothing has come, so what takes long is seen later by that
share at most, and a host with nothing to do looks seldom.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic

__all__ = ["LONGEST", "SHORTEST", "Pauses"]

SHORTEST, LONGEST = 50e-6, 1e-3
"""Seconds of a pause, at least and at most."""
_SHARE = 1 / 4


class Pauses:
    """The pauses of one thread, which others can end."""

    def __init__(self) -> None:
        self._heard = monotonic()
        self._bell = threading.Lock()
        """Free when the thread is to go on. An `Event` takes much longer to wait for."""
        self._bell.acquire()

    def restart(self) -> None:
        """Something has come: look often."""
        self._heard = monotonic()

    def sleep(self, until: float) -> bool:
        """Pause; whether to look no more, because time is up or another thread has ended this."""
        now = monotonic()
        pause = min(max(SHORTEST, (now - self._heard) * _SHARE), LONGEST)
        return now >= until or self._bell.acquire(timeout=min(pause, until - now))

    def wake(self) -> None:
        """End the pause, or the next one."""
        with suppress(RuntimeError):  # it is free already
            self._bell.release()
