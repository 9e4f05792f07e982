"""Timelines: rows without overlaps, every event once, small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purine.trace.events import Event
from purine.trace.summary import summary
from purine.trace.trace import Trace
from purine.viewer.columns import unpacked
from purine.viewer.timeline import timeline_of
from tests.viewer.traces import synthetic


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(20_000)


@pytest.fixture(scope="module")
def timeline(trace: Trace) -> Any:
    return timeline_of(trace)


def test_an_event_takes_at_most_40_bytes(timeline: Any) -> None:
    assert len(json.dumps(timeline)) <= 40 * timeline["count"] + 1_000_000
    columns = ("op", "iteration", "start", "duration", "cause")
    assert sum(len(timeline[key]) for key in columns) <= 20 * timeline["count"]


def test_every_event_is_in_the_row_of_its_lane(trace: Trace, timeline: Any) -> None:
    op, start, duration = (unpacked(timeline[key]) for key in ("op", "start", "duration"))
    iteration = unpacked(timeline["iteration"])
    names = timeline["ops"]["names"]
    found, at = set(), 0
    for row in timeline["rows"]:
        ends = 0
        for k in range(at, at + row["count"]):
            assert start[k] >= ends
            ends = start[k] + duration[k]
            found.add(
                (names[op[k]], int(iteration[k]), row["location"], row["lane"], int(start[k]))
            )
        at += row["count"]
    wanted = {(e.op, e.iteration, e.location, e.lane, e.start) for e in trace.events}
    assert found == wanted


def test_events_that_overlap_on_a_lane_get_rows_of_their_own() -> None:
    one, other = (
        Event(name, "Arrival", 0, "host a, cpu:0", "inbound:b", start, start + 10)
        for name, start in (("x", 0), ("y", 5))
    )
    rows: Any = timeline_of(Trace((one, other)))["rows"]
    assert [(row["lane"], row["track"]) for row in rows] == [("inbound:b", 0), ("inbound:b", 1)]


def test_reads_of_workers_are_the_places_of_events() -> None:
    one, other, again = (
        Event(op, "Push", number, f"host a, cpu:{device}", "compute", 10 * at, 10 * at + 5)
        for at, (op, number, device) in enumerate((("a", 0, 0), ("b", 0, 1), ("a", 1, 0)))
    )
    reads = (("a", 0, "b", 0), ("b", 0, "a", 1), ("b", 7, "a", 1))
    found: Any = timeline_of(Trace((one, other, again), reads=reads))["reads"]
    pairs = zip(unpacked(found["from"]), unpacked(found["to"]), strict=True)
    assert [*pairs] == [(2, 1), (0, 2)]  # rows first: a 0, a 1, b 0


def test_the_critical_path_is_that_of_the_summary(trace: Trace, timeline: Any) -> None:
    names, op = timeline["ops"]["names"], unpacked(timeline["op"])
    path = [names[op[at]] for at in unpacked(timeline["path"])]
    assert path == [step.event.op for step in summary(trace).path]
    assert len(path) > 100
