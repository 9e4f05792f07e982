"""The place of an executor among those of several workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from purine.core import Plan
from purine.errors import RunError
from purine.runtime.buffers import Buffers

__all__ = ["Seat"]


class Seat(Protocol):
    """What the executor of a worker shares with the others. It stands in place of its core.

    All executors are guarded by one `lock`, which whoever calls a method holds.
    """

    plan: Plan
    size: int
    lock: threading.Lock
    host: threading.Condition

    @property
    def completed(self) -> int:
        """How many iterations of the worker are complete."""
        ...

    @property
    def opened(self) -> int:
        """How many of them have begun."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do, or another worker has still something to do."""
        ...

    def extend(self, limit: int) -> list[int]:
        """Workers are extended together."""
        ...

    def complete(self, token: int) -> list[int]:
        """An op is complete; returns the tokens of this worker that may run now."""
        ...

    def waiting(self) -> list[tuple[int, str, int]]:
        """The waiting ops: (iteration, op, number of ops it waits for)."""
        ...

    def running(self, buffers: Buffers) -> Callable[[int], None]:
        """The function that runs a token. It is called without the lock."""
        ...

    def failed(self, failure: RunError) -> None:
        """The executor failed, so all others stop."""
        ...
