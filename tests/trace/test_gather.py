"""One trace of several hosts: clocks, names, and arrows from puts to arrivals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import purine as pu
from purine.errors import ConfigError
from purine.trace.clocks import HostClock, clock_of, clocks_text
from purine.trace.events import ARRIVAL, PUT, Edge
from purine.trace.gather import gather, merged, shifted
from purine.trace.hosts import between_hosts
from purine.trace.summary import summary
from purine.trace.trace import Trace, puts_of
from purine.transports.clock import Reading
from purine.transports.inproc import InprocWorld
from tests.runtime.test_hosts import on_hosts
from tests.trace.traces import event

ONE, OTHER = "host host0, cpu:0", "host host1, cpu:0"
SKEW = 4_000_000_000


def sender() -> Trace:
    events = (
        event("lr", 0, 2, location=ONE, lane="inbound"),
        event("f", 0, 20, location=ONE),
        event("put/x@host1", 22, 25, location=ONE, lane="outbound", kind=PUT),
    )
    return Trace(events, (("f", "put/x@host1", 0), ("lr", "f", 0)))


def receiver() -> Trace:
    """Its put to host 0 is on the way to its arrival from there, says an edge."""
    events = (
        event("lr", 1, 3, location=OTHER, lane="inbound"),
        event("put/y@host0", 4, 6, location=OTHER, lane="outbound", kind=PUT),
        event("x@host1", 30, 31, location=OTHER, lane="inbound", kind=ARRIVAL),
        event("g", 32, 40, location=OTHER),
    )
    edges: tuple[Edge, ...] = (("put/y@host0", "x@host1", 0), ("x@host1", "g", 0), ("lr", "g", 0))
    return Trace(events, edges)


def moved(trace: Trace, by: int) -> Trace:
    events = (replace(item, start=item.start + by, end=item.end + by) for item in trace.events)
    return Trace(tuple(events), trace.edges)


def test_reads_follow_the_names_of_their_ops() -> None:
    one = Trace((event("lr", 0, 2, location=ONE), event("f", 3, 4, location=ONE)))
    reads = (("lr", 0, "lr", 1), ("lr", 0, "g", 0))
    two = Trace((event("lr", 1, 3, location=OTHER), event("g", 3, 4, location=OTHER)), reads=reads)
    assert merged([one, two]).reads == (("host1/lr", 0, "host1/lr", 1), ("host1/lr", 0, "g", 0))


def test_times_are_shifted_by_offsets_that_drift() -> None:
    readings = [Reading(0, 100, 3), Reading(1000, 200, 5)]
    events = (event("a", 0, 10), event("b", 500, 900), event("c", 1000, 1300))
    assert [(item.start, item.end) for item in shifted(Trace(events), readings).events] == [
        (100, 110),
        (650, 1050),
        (1200, 1500),
    ]
    assert clock_of("host1", readings) == HostClock("host1", 100, 100, 5)


def test_ops_that_all_hosts_have_are_kept_apart() -> None:
    found = merged([sender(), receiver()])
    ops = [item.op for item in found.events]
    assert len(set(ops)) == len(ops)
    assert {("lr", "f", 0), ("host1/lr", "g", 0)} < set(found.edges)
    assert ("lr", "g", 0) not in found.edges


def test_a_transfer_is_from_its_put_to_its_arrival() -> None:
    found = merged([sender(), receiver()])
    (arrival,) = (item for item in found.events if item.kind == ARRIVAL)
    assert (arrival.start, arrival.end, arrival.lane) == (22, 31, "inbound:host0")
    lanes = {item.op: item.lane for item in found.events if item.kind == PUT}
    assert lanes == {"put/x@host1": "outbound:host1", "put/y@host0": "outbound"}
    # The edge over the other host is replaced by the two that lead there and back.
    into = [before for before, after, _ in found.edges if after == "x@host1"]
    assert into == ["put/x@host1"]


@pytest.mark.parametrize("end", [22, 24, 31])
def test_causes_lead_over_the_put_also_if_it_returns_after_the_arrival(end: int) -> None:
    late = replace(receiver().events[2], start=21, end=end)
    events = tuple(late if item.op == late.op else item for item in receiver().events)
    path = summary(merged([sender(), replace(receiver(), events=events)])).path
    assert [step.event.op for step in path] == ["lr", "f", "x@host1", "g"]
    assert path[2].waited == 2, "for the put to begin"


def test_an_arrival_before_its_put_keeps_its_time() -> None:
    found = merged([sender(), moved(receiver(), -15)])
    (arrival,) = (item for item in found.events if item.kind == ARRIVAL)
    assert (arrival.start, arrival.end, arrival.lane) == (15, 16, "inbound:host0")
    assert between_hosts(found, skip=0).moving == 3 + 1


def test_the_file_has_an_arrow_for_each_transfer(tmp_path: Path) -> None:
    clocks = (HostClock("host0", 0, 0, 0), HostClock("host1", -SKEW, 12, 34))
    found = replace(merged([sender(), receiver()]), clocks=clocks)
    found.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == found
    content = json.loads((tmp_path / "trace.json").read_text())
    rows = content["traceEvents"]
    processes = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    arrows = [
        (processes[start["pid"]], start["ts"], processes[end["pid"]], end["ts"])
        for start in rows
        for end in rows
        if (start["ph"], end["ph"]) == ("s", "f") and start["id"] == end["id"]
    ]
    assert (ONE, 0.022, OTHER, 0.022) in arrows
    assert content["otherData"]["clocks"][1] == {
        "host": "host1",
        "offset": -SKEW,
        "drift": 12,
        "uncertainty": 34,
    }


def test_offsets_are_printed() -> None:
    clocks = (HostClock("host0", 0, 0, 0), HostClock("host1", -SKEW, 12_000, 3_400))
    assert clocks_text(clocks).splitlines()[1:] == [
        "  host        offset     drift  known to within",
        "  host1  -4,000.0 ms  +12.0 µs           3.4 µs",
    ]


def test_hosts_with_skewed_clocks_gather_one_trace() -> None:
    def work(world: InprocWorld) -> Trace | None:
        if world.first:
            return gather(world, sender(), [Reading(0, 0, 0)])
        return gather(world, moved(receiver(), SKEW), [Reading(SKEW, -SKEW, 7)])

    found, nothing = on_hosts(work)
    assert nothing is None
    clocks = (HostClock("host0", 0, 0, 0), HostClock("host1", -SKEW, 0, 7))
    assert found == replace(merged([sender(), receiver()]), clocks=clocks)


@pytest.mark.parametrize("record", [True, "segments"])
def test_a_run_on_two_hosts(record: Literal[True, "segments"]) -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=8), data.train)
    step = pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0")

    def work(world: InprocWorld) -> tuple[Trace, Trace | None]:
        options = {"threads": 1, "share_cores": True, "world": world}
        with pu.Run(step, data=data, record=record, **options) as run:
            for _ in run.steps(4):
                pass
            return run.trace, run.gathered_trace()

    one, other = on_hosts(work)
    assert isinstance(one, tuple), one
    assert isinstance(other, tuple), other
    (own, found), (far, nothing) = one, other
    assert nothing is None
    assert found is not None
    assert len(found.events) == len(own.events) + len(far.events)
    assert [clock.host for clock in found.clocks] == ["host0", "host1"]
    put_of = puts_of(found)
    arrivals = [at for at, item in enumerate(found.events) if item.kind == ARRIVAL]
    puts = [at for at, item in enumerate(found.events) if item.kind == PUT]
    assert sorted(put_of) == arrivals
    assert sorted(put_of.values()) == puts
    slack = found.clocks[1].uncertainty
    for arrival, put in put_of.items():
        assert found.events[put].start <= found.events[arrival].end + slack
    kinds = {item.kind for item in found.events}
    assert ("Segment" in kinds) == (record == "segments")
    report = between_hosts(found)
    assert report.moving > 0
    names = {awaited.host for device in report.devices[:1] for awaited in device.peers}
    assert names <= {"host1"}


def test_a_run_on_one_host_has_the_trace_at_once() -> None:
    data = pu.data.fashion_mini()
    step = pu.solvers.sgd(pu.backward(pu.data.prepare(pu.zoo.mlp(batch=8), data.train)))
    with pu.Run(step, data=data, record=True) as run:
        list(run.steps(2))
        assert run.gathered_trace() == run.trace


def test_hosts_record_all_or_none() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(batch=8), data.train)
    step = pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0")

    def work(world: InprocWorld) -> None:
        pu.Run(step, data=data, record=world.first, share_cores=True, world=world)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError)
        assert "differ in their record" in str(error)
