"""Tickets: all are trained, by whoever is there, and nobody waits for one that is gone."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from purine.transports.ledger import Ledger

LAST = 30


class Dies(Exception):
    """A worker is killed in the middle of a call."""


class Mortal:
    """A store whose calls fail from one of them on."""

    def __init__(self, store: TCPStore, calls: int) -> None:
        self._store, self._calls = store, calls

    def __getattr__(self, name: str) -> object:
        if name in ("add", "set"):
            if self._calls <= 0:
                raise Dies
            self._calls -= 1
        return getattr(self._store, name)


def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))


def test_a_trace_of_any_length_is_brought_once() -> None:
    whole = store()
    server, worker = Ledger(whole), Ledger(whole)
    assert not worker.wants_traces
    server.ask_for_traces()
    assert worker.wants_traces
    text = "µ" * (5 << 19)  # two bytes each
    worker.bring_trace(3, text)
    assert server.trace_of(2) is None
    assert server.trace_of(3) == text
    assert server.trace_of(3) is None


@settings(max_examples=40, deadline=None)
@given(
    lives=st.lists(st.integers(1, 25), max_size=8),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_every_ticket_is_trained_though_workers_die_anywhere(
    lives: list[int], counts: list[int]
) -> None:
    whole = store()
    server, done = Ledger(whole), 0
    server.begin(4, LAST)
    for link, calls in enumerate([*lives, 10_000], 1):
        worker, trained = Ledger(Mortal(whole, calls)), 0  # type: ignore[arg-type]
        try:
            for number in range(1000):
                given = worker.take(link, counts[number % len(counts)])
                worker.report(link, number, [number] * given)
                trained += given
                if not given:
                    break
        except Dies:
            pass
        read, number = 0, 0
        while (items := server.reported(link, number)) is not None:
            read += len(items)
            number += 1
        server.put_back(server.taken(link) - read)
        done += read
    assert done >= LAST - 4
    if not lives:
        assert done == LAST - 4


def test_two_workers_never_have_the_same_ticket() -> None:
    whole = store()
    server, given = Ledger(whole), Counter[int]()
    server.begin(0, 10)
    while True:
        before = sum(given.values())
        for link in (1, 2):
            given[link] += Ledger(whole).take(link, 3)
        if sum(given.values()) == before:
            break
    assert sum(given.values()) == 10
    assert given == {link: server.taken(link) for link in (1, 2)}


def test_who_is_there() -> None:
    ledger = Ledger(store())
    assert ledger.present() == {}
    ledger.note_present({2: 7})
    assert ledger.present() == {2: 7}


@pytest.mark.parametrize("items", [[], [1, "leaves"]])
def test_a_report_is_read_once(items: list[object]) -> None:
    ledger = Ledger(store())
    assert ledger.reported(3, 0) is None
    ledger.report(3, 0, items)
    assert ledger.reported(3, 0) == items
    assert ledger.reported(3, 0) is None
