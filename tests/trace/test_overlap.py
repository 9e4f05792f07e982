"""Overlap reports: traces whose answer is known exactly, and a run."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import purine as pu
from purine.errors import ConfigError
from purine.trace.events import Edge, Event
from purine.trace.gaps import devices_of_trace
from purine.trace.hosts import between_hosts
from purine.trace.overlap import DeviceTime, Report, overlap
from purine.trace.trace import Trace, window
from tests.command import call
from tests.trace.traces import CARD, CPU0, CPU1, MICRO, MILLI, event, on_gpu

STEP: tuple[Edge, ...] = (
    ("forward", "late", 0),
    ("late", "early", 0),
    ("late", "reduce", 0),
    ("early", "update", 0),
    ("reduce", "update", 0),
    ("update", "forward", 1),
)
"""A step whose late layer's gradient is reduced while the early layer's is made."""


def replicas(early: int, *, devices: int = 2, iterations: int = 4) -> Trace:
    """Devices in step: forward 60, late 20, early `early`, a reduction of 20, an update of 10."""
    events, edges = [], []
    period = 80 + max(early, 20) + 10
    for number in range(devices):
        place, own = f"host a, cpu:{number}", f"replica{number}/"
        edges += [(own + before, own + after, gap) for before, after, gap in STEP]
        for i in range(iterations):
            t = period * i
            for op, start, end, lane in (
                ("forward", t, t + 60, "compute"),
                ("late", t + 60, t + 80, "compute"),
                ("early", t + 80, t + 80 + early, "compute"),
                ("reduce", t + 80, t + 100, "inbound"),
                ("update", t + period - 10, t + period, "compute"),
            ):
                events.append(event(own + op, start, end, iteration=i, location=place, lane=lane))
    return Trace(tuple(events), tuple(edges))


@pytest.mark.parametrize(("early", "hidden"), [(30, 1.0), (20, 1.0), (10, 0.5), (5, 0.25), (0, 0)])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_reduction_is_hidden_as_far_as_compute_goes_on(
    early: int, hidden: float, skip: int
) -> None:
    count = 4 - skip
    waited = max(0, 20 - early)
    found = overlap(replicas(early), skip=skip)
    assert (found.first, found.last) == (skip, 3)
    assert found.wall == count * (80 + max(early, 20) + 10)
    assert found.hidden == pytest.approx(hidden)
    assert (found.moving, found.exposed) == (2 * count * 20, 2 * count * waited)
    for device in found.devices:
        assert device.busy == count * (90 + early)
        assert device.transfers == count * waited
        assert (device.data, device.peers, device.other) == (0, 0, 0)
        assert device.moving == count * 20


def gpipe(stages: int, micros: int, *, forward: int = 10, backward: int = 20) -> Trace:
    """Three iterations of a pipeline that fills, turns round and drains, with free transfers."""
    events, edges = [], []
    turn = (micros + stages - 1) * forward
    period = turn + (micros + stages - 1) * backward
    for stage in range(stages):
        place, behind = f"host a, cpu:{stage}", stages - 1 - stage
        for micro in range(micros):
            own = f"micro{micro}/{stage}"
            edges.append((f"{own}/f", f"{own}/b", 0))
            if stage:
                edges.append((f"micro{micro}/{stage - 1}/f", f"{own}/f", 0))
                edges.append((f"{own}/b", f"micro{micro}/{stage - 1}/b", 0))
            for i in range(3):
                f = period * i + (stage + micro) * forward
                b = period * i + turn + (behind + micro) * backward
                events.append(event(f"{own}/f", f, f + forward, iteration=i, location=place))
                events.append(event(f"{own}/b", b, b + backward, iteration=i, location=place))
    return Trace(tuple(events), tuple(edges))


@pytest.mark.parametrize(("stages", "micros"), [(2, 1), (2, 4), (4, 4), (4, 16), (3, 7)])
def test_the_bubble_of_a_pipeline_is_that_of_its_formula(stages: int, micros: int) -> None:
    found = overlap(gpipe(stages, micros))
    formula = (stages - 1) / (micros + stages - 1)
    assert found.bubble == pytest.approx(formula)
    for device in found.devices:
        assert device.peers == device.wall - device.busy
    shown = found.text(bubble=formula)
    assert f"idle: {formula:.1%} of all devices' time, {formula:.1%} by the formula" in shown
    assert "transfers and reductions: none" in shown
    assert found.hidden == 1


def test_a_device_that_waits_for_an_update_elsewhere_waited_for_its_reduction_first() -> None:
    """Device 1 waits for device 0: for its compute, then the reduction, then the update."""
    events, edges = [], [("slow", "reduce", 0), ("fast", "reduce", 0), ("reduce", "update", 0)]
    edges += [("update", "slow", 1), ("update", "fast", 1)]
    for i in range(3):
        t = 100 * i
        events += [
            event("slow", t, t + 60, iteration=i),
            event("fast", t, t + 40, iteration=i, location=CPU1),
            event("reduce", t + 60, t + 90, iteration=i, lane="inbound", kind="Average"),
            event("update", t + 90, t + 100, iteration=i),
        ]
    found = overlap(Trace(tuple(events), tuple(edges)))
    assert found.devices == (
        DeviceTime(CPU0, 200, busy=140, data=0, transfers=60, peers=0, other=0, moving=60),
        DeviceTime(CPU1, 200, busy=80, data=0, transfers=60, peers=60, other=0, moving=0),
    )
    assert (found.moving, found.exposed, found.hidden) == (60, 60, 0)  # two wait, it counts once


def test_a_transfer_that_queues_behind_another_is_waited_for_from_the_first() -> None:
    events = (
        event("a", 0, 10),
        event("copy1", 10, 20, lane="outbound", kind="Copy"),
        event("copy2", 20, 30, lane="outbound", kind="Copy"),
        event("b", 30, 40, location=CPU1),
    )
    found = overlap(
        Trace(events, (("a", "copy1", 0), ("a", "copy2", 0), ("copy2", "b", 0))), skip=0
    )
    assert [(d.transfers, d.peers, d.other) for d in found.devices] == [(20, 10, 0), (20, 10, 0)]
    assert (found.moving, found.exposed) == (20, 20)


def test_waiting_for_data_and_for_nothing() -> None:
    """The batch comes late and is prepared on the io lane; then the dispatcher takes its time."""
    events = (
        event("a", 0, 10),
        event("read", 10, 30, lane="io", kind="Data"),
        event("scale", 32, 40, lane="io"),
        event("b", 45, 50),
        event("c", 55, 60),
    )
    (device,) = overlap(Trace(events, (("read", "scale", 0), ("scale", "b", 0))), skip=0).devices
    assert device == DeviceTime(CPU0, 60, 20, data=28, transfers=0, peers=0, other=12, moving=0)


def test_a_mean_on_a_compute_lane_is_compute() -> None:
    """Losses are averaged where they are used; only what runs beside compute can be hidden."""
    events = (event("a", 0, 10), event("mean", 10, 15, location=CPU1, kind="Average"))
    found = overlap(Trace(events, (("a", "mean", 0),)), skip=0)
    assert found.moving == 0
    assert [device.peers for device in found.devices] == [5, 10]


def test_several_compute_lanes_are_busy_together() -> None:
    events = (
        event("a", 0, 20),
        event("b", 10, 30, lane="compute:1"),
        event("c", 40, 50, lane="compute:1"),
    )
    (device,) = overlap(Trace(events), skip=0).devices
    assert (device.busy, device.other) == (40, 10)


@pytest.mark.parametrize(
    ("trace", "skip", "text"),
    [
        (replicas(10), 4, "expected: 0 to 3"),
        (replicas(10), -1, "expected: 0 to 3"),
        (Trace(), 0, "a trace with events"),
    ],
)
def test_too_few_iterations(trace: Trace, skip: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        overlap(trace, skip=skip)


@pytest.mark.parametrize("first", [0, 500])
def test_a_gpu_behind_its_warm_up(first: int) -> None:
    found = overlap(on_gpu(13, first=first))
    wall, busy = 101 * MILLI, 100 * MILLI
    assert (found.first, found.last) == (first + 3, first + 12)
    assert found.devices == (
        DeviceTime(CARD, wall, busy, 0, 0, 0, other=MILLI, moving=9 * 200 * MICRO),
    )
    assert (found.exposed, found.hidden) == (0, 1.0)
    assert found.bubble == pytest.approx(1 / 101)


ONE_GPU = """\
device in iterations 3 to 12, 10.1 ms each: compute, and what it waited for
  location        compute  share    data  transfers   peers     other    moving
  host a, cuda:0  10.0 ms  99.0%  0.0 µs     0.0 µs  0.0 µs  100.0 µs  180.0 µs
transfers and reductions: 180.0 µs, 0.0 µs exposed, 100.0% hidden
idle: 1.0% of its time
"""


def test_the_command_reports_on_one_gpu(tmp_path: Path) -> None:
    on_gpu(13).save(tmp_path / "trace.json")
    assert call("trace", tmp_path).out.endswith(f"\n\n{ONE_GPU}")


LANES = st.sampled_from(["compute", "compute:1", "inbound", "outbound", "io", "own"])
KINDS = st.sampled_from(["Conv", "Copy", "Average", "Data", "Fused", "Put", "Arrival"])
PLACES = st.sampled_from([CPU0, CPU1, "host b, cpu:0"])


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any events at all, on three devices of two hosts, with edges in any direction."""
    names = [f"op{number}" for number in range(6)]
    events = []
    for i in range(draw(st.integers(1, 3))):
        for name in names:
            start, lasts = draw(st.integers(0, 100)), draw(st.integers(0, 30))
            place = draw(PLACES)
            events.append(
                Event(
                    name, draw(KINDS), i, place, draw(LANES), start + 50 * i, start + 50 * i + lasts
                )
            )
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names), st.integers(0, 1))
    return Trace(tuple(events), tuple(draw(st.lists(pairs, max_size=12))))


@settings(max_examples=200, deadline=None)
@given(traces(), st.sampled_from([0, None]))
def test_the_time_of_a_device_is_divided_without_rest(trace: Trace, skip: int | None) -> None:
    found = overlap(trace, skip=skip)
    _, begin, _ = window(trace, trace.warm_up if skip is None else skip)
    for device in found.devices:
        _, wall, *parts, moving = astuple(device)
        assert wall == sum(parts) == found.wall
        assert min(parts) >= 0
        assert moving >= 0
        assert device.busy == busy(trace, device.location, begin)
    assert 0 <= found.exposed <= found.moving
    assert 0 <= found.hidden <= 1
    hosts = between_hosts(trace, skip=skip)
    assert [waits.waited for waits in hosts.devices] == [d.wall - d.busy for d in found.devices]
    assert 0 <= hosts.exposed <= hosts.moving <= found.moving
    assert hosts.exposed <= found.exposed


def busy(trace: Trace, location: str, begin: int) -> int:
    """The moments from `begin` on in which a device computes, counted one by one."""
    moments: set[int] = set()
    for item in trace.events:
        if item.location == location and item.lane.startswith("compute"):
            moments.update(range(max(item.start, begin), item.end))
    return len(moments)


@pytest.fixture(scope="module")
def recorded() -> Trace:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=8), data.train)
    step = pu.parallel.replicate(pu.solvers.sgd(pu.backward(net), lr=0.02), "cpu:0-1")
    with pu.Run(step, data=data, threads=1, share_cores=True, record=True) as run:
        for _ in run.steps(6):
            pass
    return run.trace


def test_a_run_of_replicas(recorded: Trace) -> None:
    found: Report = overlap(recorded)
    assert (found.first, found.last) == (1, 5)
    assert [device.location[-5:] for device in found.devices] == ["cpu:0", "cpu:1"]
    assert found.moving == sum(device.moving for device in found.devices) > 0
    for device in found.devices:
        assert 0 < device.fraction <= 1
        waits = device.data + device.transfers + device.peers + device.other
        assert device.busy + waits == device.wall
    assert 0 <= found.exposed <= found.moving


def test_the_command_reports_on_several_devices(recorded: Trace, tmp_path: Path) -> None:
    recorded.save(tmp_path / "trace.json")
    shown = call("trace", tmp_path)
    assert shown.code == 0
    assert overlap(Trace.load(tmp_path / "trace.json")).text() in shown.out
    assert devices_of_trace(recorded) == ("host 127.0.0.1, cpu:0", "host 127.0.0.1, cpu:1")


def test_the_command_says_nothing_of_overlap_on_one_device(tmp_path: Path) -> None:
    Trace((event("a", 0, 10),)).save(tmp_path / "trace.json")
    assert "transfers and reductions" not in call("trace", tmp_path).out


def test_the_command_takes_a_single_iteration_as_it_is(tmp_path: Path) -> None:
    replicas(10, iterations=1).save(tmp_path / "trace.json")
    assert "devices in iteration 0, " in call("trace", tmp_path).out
