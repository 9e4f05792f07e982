"""What the times of a trace say of an ordinary iteration."""

from __future__ import annotations

import pytest

from purine.simulator.times import settled_times
from purine.trace.events import Event
from purine.trace.trace import Trace

PLACE = "host a, cpu:0"


def test_times_add_up_to_those_of_ordinary_iterations() -> None:
    """Each op takes five times as long in one iteration of four, never both in the same one."""
    events, now = [], 0
    for iteration in range(41):
        for number, op in enumerate(("a", "b")):
            took = 500 if iteration % 4 == number else 100
            events.append(Event(op, "Relu", iteration, PLACE, "compute", now, now + took))
            now += took
    found = settled_times(Trace(tuple(events)))
    assert sum(found.values()) == pytest.approx(400e-9, rel=0.15)


def test_an_iteration_that_was_held_up_does_not_count() -> None:
    events = [Event("a", "Relu", 0, PLACE, "compute", 0, 9_000)]
    for iteration in range(1, 9):
        took = 100_000 if iteration == 5 else 100
        begin = iteration * 200_000
        events.append(Event("a", "Relu", iteration, PLACE, "compute", begin, begin + took))
    assert settled_times(Trace(tuple(events)))["a"] == pytest.approx(100e-9)
