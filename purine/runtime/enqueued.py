"""Collectives that are enqueued on GPUs: which of them still wait for other hosts, and aborting
them.

The thread that enqueues a collective continues at once, and the GPU waits for its peers. If a peer
is lost, no error occurs on this host: the GPU waits for ever, and so do all threads that wait for
the GPU. So a run that fails *abandons* its collectives. The communicators are aborted, and GPUs
continue with undefined values. From then on no value from a GPU is returned, saved or sent to
another host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from threading import Lock, Thread

from torch import Tensor

from purine.lowering.together import Group
from purine.transports.communicator import Communicator, Mark

__all__ = ["Enqueued"]

_PATIENCE = 5.0
"""Seconds for communicators to end. What takes longer is left to a thread that keeps no process
alive."""


class Enqueued:
    """The communicators of a run, and the collectives that its GPUs have not completed."""

    def __init__(self, communicators: Mapping[Group, Communicator]) -> None:
        self._communicators = dict(communicators)
        self.on_gpus = any(one.enqueues for one in communicators.values())
        """Whether any of the collectives is between GPUs."""
        self.abandoned = False
        """Whether GPUs no longer wait for other hosts."""
        self._calls: deque[tuple[int, int, Mark]] = deque()
        """What is enqueued: op, iteration and the end, in the order of all GPUs."""
        self._lock = Lock()
        self._ending: Thread | None = None

    def through(self, group: Group) -> Communicator:
        """The communicator of a group."""
        return self._communicators[group]

    def add(self, op: int, iteration: int, group: Group) -> None:
        """Record that the op has just made a call through the communicator of its group."""
        mark = self._communicators[group].mark()
        if mark is not None:
            with self._lock:
                self._calls.append((op, iteration, mark))
                self._forget()

    def oldest(self) -> tuple[int, int] | None:
        """The op and the iteration of the oldest call that its GPU has not completed."""
        with self._lock:
            self._forget()
            return self._calls[0][:2] if self._calls else None

    def _forget(self) -> None:
        while self._calls and (self.abandoned or self._calls[0][2].query()):
            self._calls.popleft()

    def right(self, value: Tensor) -> Tensor:
        """A value from a GPU; raises if the GPU no longer waits for other hosts, so that it may be
        wrong."""
        if self.abandoned:
            raise RuntimeError("a GPU has stopped waiting for other hosts")
        return value

    def abandon(self) -> None:
        """Abort all communicators between GPUs, on a thread, because it may take long."""
        with self._lock:
            if self.on_gpus and self._ending is None:
                self.abandoned = True
                self._end(abort=True)

    def close(self) -> None:
        """End the communicators. Without failures, all hosts do so at the same time."""
        with self._lock:
            if self.on_gpus and self._ending is None:
                self._end(abort=False)
        if self._ending is not None:
            self._ending.join(_PATIENCE)

    def _end(self, *, abort: bool) -> None:
        """Start ending all communicators. Holds the lock."""
        ends = [one.abort if abort else one.close for one in self._communicators.values()]

        def end() -> None:
            for call in ends:
                call()

        self._ending = Thread(target=end, name="communicators", daemon=True)
        self._ending.start()
