"""The books of a job whose workers join and leave, in the store of the server.

A worker takes *tickets*: each is an iteration that only this worker may train. It reports the
iterations that are complete. When a worker is gone, the server returns the tickets that it took and
did not report. So all tickets are trained, by whichever workers are present.

A worker records tickets as its own before it takes them. If it dies in between, the server returns
some that were never taken. Then a few iterations more than asked for are trained, and none is ever
missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch._C._distributed_c10d import TCPStore

__all__ = ["Ledger"]

_TICKETS, _LAST, _PRESENT, _TRACES = "tickets", "tickets/last", "present", "traces"
_CHUNK = 1 << 20
"""Letters of a trace that are sent at a time: a store takes no values of any length."""


class Ledger:
    """The books of a job; `link` is the number of a worker's connection to the server."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store
        self._last: int | None = None

    def begin(self, done: int, last: int) -> None:
        """Let workers take tickets; `done` of `last` iterations were trained before."""
        self._store.set(_LAST, str(last))
        self._store.add(_TICKETS, done)

    def take(self, link: int, count: int) -> int:
        """Take up to `count` tickets; returns how many there were."""
        last = self._last = self._last or int(self._store.get(_LAST))
        self._store.add(_taken(link), count)
        after = self._store.add(_TICKETS, count)
        given = max(0, min(count, last - (after - count)))
        if given < count:
            self._store.add(_TICKETS, given - count)
            self._store.add(_taken(link), given - count)
        return int(given)

    def taken(self, link: int) -> int:
        """How many tickets a worker has taken."""
        return int(self._store.add(_taken(link), 0))

    def put_back(self, count: int) -> None:
        """Return tickets that were not used, for others."""
        if count:
            self._store.add(_TICKETS, -count)

    def report(self, link: int, number: int, items: Sequence[object]) -> None:
        """Send the server a report, number `number` of this worker."""
        self._store.set(_report(link, number), json.dumps(items))

    def reported(self, link: int, number: int) -> list[Any] | None:
        """A report, which is then removed; None if it is not there yet."""
        key = _report(link, number)
        if not self._store.check([key]):
            return None
        items = json.loads(self._store.get(key))
        self._store.delete_key(key)
        assert isinstance(items, list)
        return items

    def ask_for_traces(self) -> None:
        """Ask all workers for what they have recorded so far."""
        self._store.set(_TRACES, "1")

    @property
    def wants_traces(self) -> bool:
        """Whether workers are to bring what they have recorded."""
        return bool(self._store.check([_TRACES]))

    def bring_trace(self, link: int, text: str) -> None:
        """Give the server the trace of a worker."""
        chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
        for number, chunk in enumerate(chunks):
            self._store.set(_trace(link, number), chunk)
        self._store.set(f"trace{link}", str(len(chunks)))

    def trace_of(self, link: int) -> str | None:
        """The trace that a worker has brought, which is then removed; None if it has not yet."""
        key = f"trace{link}"
        if not self._store.check([key]):
            return None
        keys = [_trace(link, number) for number in range(int(self._store.get(key)))]
        text = "".join(self._store.get(part).decode() for part in keys)
        for part in (key, *keys):
            self._store.delete_key(part)
        return text

    def present(self) -> dict[int, int]:
        """The workers that are present, with the numbers of their connections."""
        if not self._store.check([_PRESENT]):
            return {}
        return {int(worker): link for worker, link in json.loads(self._store.get(_PRESENT)).items()}

    def note_present(self, links: Mapping[int, int]) -> None:
        """Record which workers are present."""
        self._store.set(_PRESENT, json.dumps(dict(links)))


def _taken(link: int) -> str:
    return f"taken{link}"


def _trace(link: int, number: int) -> str:
    return f"trace{link}/{number}"


def _report(link: int, number: int) -> str:
    return f"report{link}/{number}"
