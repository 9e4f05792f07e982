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
    """The state that the executor of a worker shares with the others. It replaces its core.

    All executors are guarded by one `lock`, which the caller of a method holds.
    """

    plan: Plan
    size: int
    lock: threading.Lock
    host: threading.Condition

    @property
    def completed(self) -> int:
        """The number of complete iterations of the worker."""
        ...

    @property
    def opened(self) -> int:
        """The number of its iterations that have begun."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no work is left, or another worker still has work."""
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
