"""Heartbeats of hosts through the store of the job, from its start to its end.

While a run steps, transports report which hosts are alive. Before that hosts build and compile,
each for as long as it takes, and between steps they save and test. So each host increments a number
in the store every second, and reads the numbers of the others. A host whose number does not change
is lost, and so is the host of the store if the store does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Protocol

__all__ = ["SILENCE", "Pulse"]

SILENCE = 6.0
"""Seconds after which a host that says nothing is taken for lost."""
_BEAT = 1.0
"""Seconds between two signs of life."""
_ENDED = "ended"
"""In place of a number: the host has left, and nobody has to wait for it."""


class Store(Protocol):
    """The part of the store of `torch.distributed` that is needed here."""

    def set(self, key: str, value: str) -> None: ...
    def multi_get(self, keys: list[str]) -> Sequence[bytes]: ...


class Pulse:
    """The heartbeat of `host`, and the state of its peers.

    `keeper` is the host of the store. `store` is a connection of its own, since calls on another
    one may wait for a long time; it already has a number for each host. `clock` gives the time in
    seconds.

    >>> class Texts(dict):
    ...     set, multi_get = dict.__setitem__, lambda self, keys: [self[key] for key in keys]
    >>> store, time = Texts(host1=b"0"), [0.0]
    >>> one = Pulse(store, "host0", ["host1"], keeper="host0", clock=lambda: time[0])
    >>> for time[0] in range(8):
    ...     one.beat()
    >>> one.losses()
    {'host1': 'it has sent no heartbeat for 7 s'}
    """

    def __init__(
        self,
        store: Store,
        host: str,
        peers: Sequence[str],
        *,
        keeper: str,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store, self._host, self._keeper, self._clock = store, host, keeper, clock
        self._count = 0
        self._looked = clock()
        """When the numbers of the others were read last."""
        self._numbers = dict.fromkeys(peers, b"")
        self._silent = dict.fromkeys(peers, 0)
        """By peer how often its number was the same as before. The time would not do: this process
        may have been stopped itself."""
        self._broken: str | None = None
        """Why there is no store any more."""
        self._closed = threading.Event()

    def start(self) -> None:
        """Beat every second on a thread of its own, until `close`."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def beat(self) -> None:
        """Send a heartbeat, and read those of the others."""
        self._count += 1
        self._store.set(self._host, str(self._count))
        numbers = self._store.multi_get(list(self._numbers)) if self._numbers else ()
        for peer, number in zip(self._numbers, map(bytes, numbers), strict=True):
            self._silent[peer] = self._silent[peer] + 1 if number == self._numbers[peer] else 0
            self._numbers[peer] = number
        self._looked = self._clock()

    def losses(self) -> Mapping[str, str]:
        """The lost peers, and why."""
        now, own = self._clock(), self._keeper == self._host
        if self._broken is not None:
            return {} if own else {self._keeper: self._broken}
        if now - self._looked > SILENCE:  # a call on the store does not return
            return {} if own else {self._keeper: _silent(now - self._looked)}
        return {
            peer: _silent(times * _BEAT)
            for peer, times in self._silent.items()
            if times * _BEAT > SILENCE and peer not in self.ended
        }

    def round(self) -> Callable[[], bool]:
        """A function that tells whether all peers that are alive have looked since this one did.

        A peer that beats looks next. So one whose number has grown by two has looked in between.
        """
        before = dict(self._numbers)

        def over() -> bool:
            away = {*self.losses(), *self.ended}
            return all(
                int(number) >= int(before[peer] or 0) + 2
                for peer, number in self._numbers.items()
                if peer not in away
            )

        return over

    @property
    def ended(self) -> Collection[str]:
        """The peers that have left. For hosts that still wait for them they are lost."""
        return [peer for peer, number in self._numbers.items() if number == _ENDED.encode()]

    def close(self) -> None:
        """Leave."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._broken is None and not self.losses():
            self._store.set(self._host, _ENDED)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self.beat()
                self._closed.wait(_BEAT)
        except RuntimeError as error:  # the host of the store has ended
            self._broken = " ".join(str(error).split())[:120]


def _silent(seconds: float) -> str:
    return f"it has sent no heartbeat for {seconds:.0f} s"
