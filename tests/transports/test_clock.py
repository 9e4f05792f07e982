"""Clocks of hosts: made-up ones whose offset is known, and those of processes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine.transports.clock import ROUNDS, Reading, estimate
from purine.transports.inproc import InprocWorld, inproc_worlds
from tests.forked import start_hosts

DELAYS = st.lists(st.integers(0, 1_000_000), min_size=2 * ROUNDS, max_size=2 * ROUNDS)


def estimated(skew: int, delays: list[int]) -> Reading:
    """The estimate of a clock that is `skew` ahead, over a network with these delays."""
    time, left = [10**12], iter(delays)

    def now() -> int:
        return time[0]

    def ask() -> int:
        time[0] += next(left)
        theirs = time[0] + skew
        time[0] += next(left)
        return theirs

    return estimate(ask, now)


@given(st.integers(-(10**15), 10**15), DELAYS)
def test_the_true_offset_is_within_the_uncertainty(skew: int, delays: list[int]) -> None:
    reading = estimated(skew, delays)
    assert abs(reading.offset - skew) <= reading.uncertainty
    shortest = min(there + back for there, back in zip(delays[::2], delays[1::2], strict=True))
    assert reading.uncertainty == (shortest + 1) // 2


def test_one_quick_answer_is_enough() -> None:
    """Delays in one direction alone shift all other midpoints."""
    delays = [500_000, 0] * ROUNDS
    delays[20:22] = [40, 60]
    reading = estimated(-7_000_000, delays)
    assert (reading.offset, reading.uncertainty) == (-7_000_010, 50)


def on_all(worlds: tuple[InprocWorld, ...], work: Callable[[InprocWorld], object]) -> list[object]:
    results: dict[str, object] = {}
    threads = [
        threading.Thread(target=lambda world=world: results.update({world.host: work(world)}))
        for world in worlds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [results[world.host] for world in worlds]


def test_threads_with_skewed_clocks() -> None:
    worlds = inproc_worlds(["host0", "host1", "host2"])
    true = worlds[0].now
    worlds[1].now = lambda: true() - 5_000_000_000
    worlds[2].now = lambda: true() + 9_000_000_000
    readings = on_all(worlds, InprocWorld.clock)
    for reading, offset in zip(readings, (0, 5_000_000_000, -9_000_000_000), strict=True):
        assert isinstance(reading, Reading)
        assert abs(reading.offset - offset) <= reading.uncertainty


def test_the_first_host_gets_the_texts_of_all() -> None:
    worlds = inproc_worlds(["host0", "host1"])
    assert on_all(worlds, lambda world: world.collect(f"of {world.host}")) == [
        ["of host0", "of host1"],
        [],
    ]


SCRIPT = """
import os
from purine.errors import HostLostError
from purine.transports.processes import ProcessWorld
world = ProcessWorld()
first, true = world.first, world.now
if not first:
    world.now = lambda: true() + 3_000_000_000
reading = world.clock()
assert abs(reading.offset + (0 if first else 3_000_000_000)) <= reading.uncertainty, reading
assert reading.uncertainty < 1_000_000_000, reading
own = "" if first else "\\u00b5s" * (12 << 20)  # 36 MiB, in three chunks
expected = ["", "\\u00b5s" * (12 << 20)] if first else []
assert world.collect(own) == expected
assert world.collect("x" if first else "") == (["x", ""] if first else [])
if not first:
    os._exit(0)
try:
    world.collect("x")
except HostLostError as error:
    assert "host 'host1' is lost" in str(error), error
    print("lost", flush=True)
os._exit(0)
"""


@pytest.mark.multiprocess
def test_processes_tell_each_other_the_time_and_large_texts() -> None:
    processes = start_hosts("-c", SCRIPT)
    try:
        for process, printed in zip(processes, ("lost\n", ""), strict=True):
            code, out, err = process.ended(120)
            assert code == 0, err
            assert out == printed
    finally:
        for process in processes:
            process.kill()
