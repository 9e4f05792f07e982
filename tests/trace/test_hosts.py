"""The report on waiting for other hosts: a trace whose answer is known exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.trace.clocks import HostClock
from purine.trace.events import ARRIVAL, PUT, Edge
from purine.trace.hosts import Awaited, DeviceWaits, between_hosts
from purine.trace.overlap import overlap
from purine.trace.trace import Trace
from tests.command import call
from tests.trace.traces import MILLI, event

A, B = "host a, cpu:0", "host b, cpu:0"

EDGES: tuple[Edge, ...] = (
    ("put/w@a", "w@a", 0),
    ("w@a", "a/forward", 0),
    ("a/forward", "put/g@b", 0),
    ("put/g@b", "g@b", 0),
    ("g@b", "reduce", 0),
    ("b/forward", "reduce", 0),
    ("reduce", "update", 0),
    ("a/forward", "put/loss@b", 0),
    ("put/loss@b", "loss@b", 0),
    ("update", "put/w@a", 1),
    ("update", "b/forward", 1),
)


def two_hosts(iterations: int = 3) -> Trace:
    """Host `a` computes 40 of 100 ms and sends a gradient, which takes 20.

    Host `b` computes 30, waits for the gradient, reduces for 10, updates for 10 and sends the
    weight, which takes 20. Nobody waits for the loss, which takes 30.
    """
    events = []
    for i in range(iterations):
        t = 100 * i + 20
        for op, start, end, location, lane, kind in (
            ("b/forward", t - 20, t + 10, B, "compute", "Conv"),
            ("put/w@a", t - 20, t - 10, B, "outbound:a", PUT),
            ("w@a", t - 20, t, A, "inbound:b", ARRIVAL),
            ("a/forward", t, t + 40, A, "compute", "Conv"),
            ("put/g@b", t + 40, t + 45, A, "outbound:b", PUT),
            ("g@b", t + 40, t + 60, B, "inbound:a", ARRIVAL),
            ("put/loss@b", t + 45, t + 50, A, "outbound:b", PUT),
            ("loss@b", t + 45, t + 75, B, "inbound:a", ARRIVAL),
            ("reduce", t + 60, t + 70, B, "inbound", "Average"),
            ("update", t + 70, t + 80, B, "compute", "Sgd"),
        ):
            times = start * MILLI, end * MILLI
            events.append(event(op, *times, iteration=i, location=location, lane=lane, kind=kind))
    clocks = (HostClock("a", 0, 0, 0), HostClock("b", -MILLI, 0, 20_000))
    return Trace(tuple(events), EDGES, clocks)


@pytest.mark.parametrize("skip", [0, 1])
def test_devices_wait_for_the_other_host_by_blob(skip: int) -> None:
    count = 3 - skip
    found = between_hosts(two_hosts(), skip=skip)
    # After its last op host a waits for the end of the trace: the last update of host b.
    weights = Awaited("b", "w", (20 + 60 * (count - 1)) * MILLI)
    assert found.devices == (
        DeviceWaits(A, (weights, Awaited("b", "update", 40 * MILLI)), data=0, own=0, other=0),
        DeviceWaits(
            B,
            (Awaited("a", "g", count * 50 * MILLI),),
            data=0,
            own=count * 10 * MILLI,
            other=0,
        ),
    )
    assert (found.iterations, found.wall) == (count, count * 100 * MILLI)


def test_a_transfer_is_hidden_if_no_device_waits_for_it() -> None:
    trace = two_hosts()
    found = between_hosts(trace, skip=0)
    assert (found.moving, found.exposed) == (3 * 70 * MILLI, 3 * 40 * MILLI)
    assert found.hidden == pytest.approx(3 / 7)
    every = overlap(trace, skip=0)  # with the reduction; a put is a part of its transfer
    assert (every.moving, every.exposed) == (3 * 80 * MILLI, 3 * 50 * MILLI)
    assert [device.busy for device in every.devices] == [120 * MILLI, 120 * MILLI]


def test_waiting_for_data_and_for_a_device_of_the_own_host() -> None:
    events = (
        event("read", 0, 5, location=A, lane="io", kind="Data"),
        event("one", 8, 10, location=A),
        event("two", 10, 14, location="host a, cpu:1"),
        event("three", 14, 20, location=A),
        event("four", 0, 20, location=B),
    )
    edges = (("read", "one", 0), ("one", "two", 0), ("two", "three", 0))
    waits, _, none = between_hosts(Trace(events, edges), skip=0).devices
    assert waits == DeviceWaits(A, (), data=5, own=4, other=3)
    assert none == DeviceWaits(B, (), data=0, own=0, other=0)


REPORT = """\
transfers between hosts: 70.0 ms a step, 40.0 ms exposed, 42.9% hidden
a cpu:0 waited 60.0 ms a step (60.0%): 60.0 ms for b (w 40.0 ms, update 20.0 ms)
b cpu:0 waited 60.0 ms a step (60.0%): 50.0 ms for a (g 50.0 ms), 10.0 ms for own lanes

times are those of a; what was added to those of the others
  host   offset    drift  known to within
  b     -1.0 ms  +0.0 µs          20.0 µs
"""


def test_the_command_reports_on_hosts(tmp_path: Path) -> None:
    two_hosts().save(tmp_path / "trace.json")
    shown = call("trace", tmp_path)
    assert shown.code == 0
    assert shown.out.endswith(f"\n\n{REPORT}")
    assert "critical path: " in shown.out


def test_only_the_longest_waits_are_named() -> None:
    shown = between_hosts(two_hosts(), skip=0).text(top=1)
    assert "60.0 ms for b (w 46.7 ms, ...)" in shown
