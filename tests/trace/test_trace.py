"""Traces survive their file, draw as a valid timeline, and add up to exact numbers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import purine as pu
from purine.errors import ConfigError, RunError
from purine.graph import Builder, Graph
from purine.trace.events import Event
from purine.trace.summary import summary
from purine.trace.trace import Trace, causes, edges_of, window
from tests.trace.traces import CARD, COMPILED, CPU0, CPU1, HOST, MICRO, MILLI, event, on_gpu


def two_devices(*starts: int) -> Trace:
    """Iterations of `read` on io, `left` on one device, `right` on the other, then `sum`."""
    events: list[Event] = []
    for i, t in enumerate(starts or (1_000, 5_000)):
        events += [
            event("read", t, t + 500, iteration=i, kind="Data", lane="io"),
            event("left", t + 500, t + 2_000, iteration=i, kind="Conv"),
            event("right", t + 700, t + 2_900, iteration=i, kind="Conv", location=CPU1),
            event("sum", t + 3_000, t + 3_400, iteration=i, kind="Sum"),
            event("step", t + 3_400, t + 3_900, iteration=i, kind="Sgd"),
        ]
    edges = (
        ("read", "left", 0),
        ("read", "right", 0),
        ("left", "sum", 0),
        ("right", "sum", 0),
        ("sum", "step", 0),
        ("step", "left", 1),
    )
    return Trace(tuple(events), edges)


def saved(trace: Trace, folder: Path) -> dict[str, Any]:
    trace.save(folder / "trace.json")
    content: dict[str, Any] = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    return content


def rows(content: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [row for row in content["traceEvents"] if row["ph"] == phase]


def arrows(content: dict[str, Any]) -> list[tuple[str, int, str, int]]:
    """Op and iteration at both ends of each arrow, found as a viewer does: by track and time."""

    def slice_at(row: dict[str, Any]) -> tuple[str, int]:
        (found,) = (
            each["args"]
            for each in rows(content, "X")
            if (each["pid"], each["tid"]) == (row["pid"], row["tid"])
            and each["ts"] <= row["ts"] < each["ts"] + each["dur"]
        )
        return found["op"], found["iteration"]

    ends = {row["id"]: row for row in rows(content, "f")}
    return [(*slice_at(row), *slice_at(ends[row["id"]])) for row in rows(content, "s")]


# The file.


def two_workers() -> Trace:
    """Two workers that share a state: each push takes the version before it."""
    events = [
        event("one/push", 1_000, 3_000),
        event("two/push", 3_500, 5_000, location=CPU1),
        event("two/other", 5_000, 9_000, location=CPU1),
        event("one/push", 9_500, 9_900, iteration=1),
    ]
    reads = ("one/push", 0, "two/push", 0), ("two/push", 0, "one/push", 1)
    return Trace(tuple(events), reads=reads)


def test_reads_of_shared_states_come_back_and_are_arrows(tmp_path: Path) -> None:
    trace = two_workers()
    content = saved(trace, tmp_path)
    assert Trace.load(tmp_path / "trace.json") == trace
    assert arrows(content) == list(trace.reads)
    assert Trace.load(tmp_path / "trace.json") + trace == trace + trace


def test_an_event_waits_for_the_push_that_it_reads() -> None:
    trace = two_workers()
    assert causes(trace) == [None, 0, 1, 1]


def test_a_trace_comes_back_equal(tmp_path: Path) -> None:
    trace = two_devices()
    trace.save(tmp_path / "new" / "trace.json")
    assert Trace.load(tmp_path / "new" / "trace.json") == trace
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["trace.json"]


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    Trace().save(tmp_path / "t.json")
    assert Trace.load(tmp_path / "t.json") == Trace()


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    two_devices().save(tmp_path / "t.json")
    Trace().save(tmp_path / "t.json")
    assert Trace.load(tmp_path / "t.json") == Trace()


names = st.text(min_size=1, max_size=4)
times = st.integers(0, 2**62)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    origin = draw(times)
    events = []
    for number in range(draw(st.integers(0, 12))):
        start = origin + draw(st.integers(0, 10**12))
        end = start + draw(st.integers(0, 10**6) | st.integers(0, 10**12))
        location, lane = draw(st.sampled_from([CPU0, CPU1])), draw(st.sampled_from(["io", "é"]))
        kind = draw(names)
        events.append(Event(f"op{number % 4}", kind, number // 4, location, lane, start, end))
    ops = st.sampled_from([f"op{number}" for number in range(4)])
    edges = draw(st.lists(st.tuples(ops, ops, st.sampled_from([0, 1])), max_size=6, unique=True))
    return Trace(tuple(events), tuple(edges))


@given(traces())
@settings(max_examples=60, deadline=None)
def test_any_trace_comes_back_equal_and_is_well_formed(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    content = saved(trace, folder)
    assert Trace.load(folder / "trace.json") == trace
    begins, ends = rows(content, "s"), rows(content, "f")
    assert sorted(row["id"] for row in begins) == sorted(row["id"] for row in ends)
    assert len({row["id"] for row in begins}) == len(begins)
    by_track: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows(content, "X"):
        # A reader may cut off fractions of a nanosecond.
        start, duration = int(row["ts"] * 1000), int(row["dur"] * 1000)
        track = by_track.setdefault((row["pid"], row["tid"]), [])
        track.append((start, start + duration))
    for track in by_track.values():
        for (_, end), (start, _) in pairwise(track):
            assert end <= start


def test_times_are_exact_for_readers_that_cut_off(tmp_path: Path) -> None:
    starts = [number * (number + 1) // 2 for number in range(500)]
    trace = Trace(tuple(event("a", t, t + i + 1, iteration=i) for i, t in enumerate(starts)))
    found = rows(saved(trace, tmp_path), "X")
    assert [int(row["ts"] * 1000) for row in found] == starts
    assert [int(row["dur"] * 1000) for row in found] == [i + 1 for i in range(500)]


def test_locations_are_processes_and_lanes_are_threads(tmp_path: Path) -> None:
    content = saved(two_devices(), tmp_path)
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    processes = {
        row["pid"]: row["args"]["name"]
        for row in rows(content, "M")
        if row["name"] == "process_name"
    }
    threads = {
        (row["pid"], row["tid"]): row["args"]["name"]
        for row in rows(content, "M")
        if row["name"] == "thread_name"
    }
    assert sorted(processes.values()) == [CPU0, CPU1]
    assert sorted((processes[pid], lane) for (pid, _), lane in threads.items()) == [
        (CPU0, "compute"),
        (CPU0, "io"),
        (CPU1, "compute"),
    ]
    assert len({tid for _, tid in threads}) == 3
    first = rows(content, "X")[0]
    assert threads[first["pid"], first["tid"]] == "io"
    assert (first["name"], first["ts"], first["dur"]) == ("read", 0, 0.5)
    assert first["args"] == {"op": "read", "kind": "Data", "iteration": 0}
    phases = [row["ph"] for row in content["traceEvents"]]
    assert phases == sorted(phases, key={"M": 0, "X": 1, "s": 2, "f": 2}.__getitem__)


def test_arrows_show_what_the_lane_does_not(tmp_path: Path) -> None:
    content = saved(two_devices(), tmp_path)
    expected = [("step", 0, "left", 1)]
    for i in (0, 1):
        expected += [("read", i, "left", i), ("read", i, "right", i), ("right", i, "sum", i)]
    assert sorted(arrows(content)) == sorted(expected)
    assert all(row["bp"] == "e" for row in rows(content, "f"))


def test_an_edge_within_a_lane_is_drawn_when_something_ran_between(tmp_path: Path) -> None:
    events = (event("a", 0, 10), event("b", 10, 20), event("c", 20, 30))
    content = saved(Trace(events, (("a", "b", 0), ("a", "c", 0))), tmp_path)
    assert arrows(content) == [("a", 0, "c", 0)]


def test_overlapping_events_of_a_lane_get_tracks_of_one_name(tmp_path: Path) -> None:
    trace = Trace((event("a", 0, 10), event("b", 5, 15), event("c", 12, 20)))
    content = saved(trace, tmp_path)
    tracks = {row["name"]: row["tid"] for row in rows(content, "X")}
    assert tracks["a"] == tracks["c"] != tracks["b"]
    threads = [row for row in rows(content, "M") if row["name"] == "thread_name"]
    assert [row["args"]["name"] for row in threads] == ["compute", "compute"]
    assert Trace.load(tmp_path / "trace.json") == trace


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"traceEvents": []}',
        '{"traceEvents": [], "otherData": {"purine": "graph", "version": 1}}',
        '{"traceEvents": [], "otherData": {"purine": "trace", "version": 2}}',
        b"\xff\xfe",
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RunError) as caught:
        Trace.load(path)
    assert caught.value.where == str(path)
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ts", None),
        ("ts", float("inf")),
        ("dur", -1),
        ("pid", 99),
        ("tid", []),
        ("args", {"op": 3, "kind": "K", "iteration": 0}),
        ("args", {}),
    ],
)
def test_damaged_events_are_refused(tmp_path: Path, key: str, value: object) -> None:
    content = saved(two_devices(), tmp_path)
    rows(content, "X")[0][key] = value
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match="not a trace of purine") as caught:
        Trace.load(path)
    assert caught.value.where == str(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read") as caught:
        Trace.load(tmp_path / "none.json")
    assert caught.value.where == str(tmp_path / "none.json")


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot save") as caught:
        two_devices().save(tmp_path / "file" / "trace.json")
    assert caught.value.where == str(tmp_path / "file" / "trace.json")


# Edges of a graph.


def small_step() -> Graph:
    builder = Builder()
    for name in ("x", "frozen", "w", "w.next", "y", "g", "log"):
        builder.blob(name, (1,))
    builder.state("w", "w.next")
    builder.state("frozen")
    builder.op("data", "Data", [], ["x"])
    builder.op("forward", "Mul", ["x", "w", "frozen"], ["y"])
    builder.op("backward", "Grad", ["y", "w"], ["g"])
    builder.op("update", "Sgd", ["w", "g"], ["w.next"])
    builder.op("print", "Log", ["y"], ["log"])
    builder.control.add(("update", "print"))
    return builder.graph()


def test_edges_follow_data_control_and_states() -> None:
    edges = edges_of(small_step())
    assert len(set(edges)) == len(edges)
    assert set(edges) == {
        ("data", "forward", 0),
        ("forward", "backward", 0),
        ("forward", "print", 0),
        ("backward", "update", 0),
        ("update", "print", 0),
        ("update", "forward", 1),
        ("update", "backward", 1),
        ("update", "update", 1),
    }


def test_two_states_of_one_op_make_one_edge() -> None:
    builder = Builder()
    for name in ("w", "m", "w.next", "m.next"):
        builder.blob(name, (1,))
    builder.state("w", "w.next")
    builder.state("m", "m.next")
    builder.op("update", "Sgd", ["w", "m"], ["w.next", "m.next"])
    assert edges_of(builder.graph()) == (("update", "update", 1),)


# The summary.

THREE = two_devices(1_000, 4_900, 8_900)
"""The first iteration is warm-up, and ends when the second begins."""


def test_time_by_kind() -> None:
    found = summary(THREE)
    assert [(row.kind, row.count, row.total, row.mean) for row in found.kinds] == [
        ("Conv", 4, 7_400, 1_850),
        ("Data", 2, 1_000, 500),
        ("Sgd", 2, 1_000, 500),
        ("Sum", 2, 800, 400),
    ]
    assert [row.share for row in found.kinds] == pytest.approx(
        [7400 / 10200, 1000 / 10200, 1000 / 10200, 800 / 10200]
    )


def test_busy_lanes() -> None:
    found = summary(THREE)
    assert found.span == 7_900
    assert [(row.location, row.lane, row.busy, row.span) for row in found.lanes] == [
        (CPU0, "compute", 4_800, 7_900),
        (CPU0, "io", 1_000, 7_900),
        (CPU1, "compute", 4_400, 7_900),
    ]
    assert found.lanes[0].fraction == pytest.approx(4_800 / 7_900)


def test_lanes_are_in_the_order_people_count() -> None:
    trace = Trace(tuple(event("a", 0, 1, location=f"host a, cpu:{k}") for k in (10, 2, 1)))
    assert [row.location[-2:].strip(":") for row in summary(trace).lanes] == ["1", "2", "10"]


def test_overlap_in_a_lane_counts_once() -> None:
    events = (event("a", 0, 10), event("b", 5, 8), event("c", 9, 12), event("d", 20, 22))
    assert summary(Trace(events)).lanes[0].busy == 14


def test_iteration_time_counts_overlap() -> None:
    events = [event("a", 10 * i, 10 * i + 25, iteration=i, lane=f"compute:{i}") for i in (1, 2, 4)]
    found = summary(Trace(tuple(events)))
    assert (found.iterations, found.iteration_time) == (2, 10.0)
    alone = summary(Trace((event("a", 5, 9), event("b", 10, 12))))
    assert (alone.iterations, alone.iteration_time) == (1, 7)


def test_the_critical_path() -> None:
    found = summary(THREE)
    assert [(s.event.op, s.event.iteration, s.waited) for s in found.path] == [
        ("read", 1, 0),
        ("read", 2, 3_500),
        ("right", 2, 200),
        ("sum", 2, 100),
        ("step", 2, 0),
    ]
    assert [(row.kind, row.total) for row in found.path_kinds] == [
        ("Conv", 2_200),
        ("Data", 1_000),
        ("Sgd", 500),
        ("Sum", 400),
    ]
    assert found.waited == 3_800
    assert found.waited + sum(row.total for row in found.path_kinds) == found.span


def test_the_critical_path_goes_through_a_state_of_the_iteration_before() -> None:
    events = (
        event("first", 0, 10, iteration=0),
        event("step", 10, 20, iteration=1),
        event("step", 30, 40, iteration=2),
        event("use", 12, 15, iteration=1, location=CPU1),
        event("use", 45, 50, iteration=3, location=CPU1),
    )
    path = summary(Trace(events, (("step", "use", 1),))).path
    assert [(s.event.op, s.event.iteration, s.waited) for s in path] == [
        ("step", 1, 0),
        ("step", 2, 10),
        ("use", 3, 5),
    ]


def test_a_producer_is_named_before_a_neighbour_that_ended_with_it() -> None:
    events = (
        event("cause", 0, 10, location=CPU1),
        event("other", 2, 10),
        event("last", 10, 20),
    )
    path = summary(Trace(events, (("cause", "last", 0),))).path
    assert [step.event.op for step in path] == ["cause", "last"]


@given(traces())
@settings(max_examples=100, deadline=None)
def test_any_trace_has_a_summary(trace: Trace) -> None:
    found = summary(trace)
    assert all(0 <= lane.fraction <= 1 for lane in found.lanes)
    assert all(0 <= lane.busy <= lane.span for lane in found.lanes)
    settled = trace.iterations[trace.warm_up :]
    counted = [each for each in trace.events if each.iteration in settled]
    assert found.iterations == len(settled)
    assert sum(row.count for row in found.kinds) == len(counted)
    if found.path:
        assert found.path[-1].event.end == max(each.end for each in trace.events)
    assert found.text(top=2)


REPORT = """\
iterations: 2, 4.0 µs each, 7.9 µs in all
without the first iteration: warm-up, 3.9 µs

time by kind
  kind             count   total  share    mean
  Conv                 4  7.4 µs  72.5%  1.9 µs
  Data                 2  1.0 µs   9.8%  0.5 µs
  other (2 kinds)      4  1.8 µs  17.6%  0.5 µs

lanes
  location         lane       busy      of  share
  host a, cpu:0    compute  4.8 µs  7.9 µs  60.8%
  host a, cpu:0    io       1.0 µs  7.9 µs  12.7%
  other (1 lanes)           4.4 µs  7.9 µs  55.7%

critical path: 5 events, 4.1 µs running, 3.8 µs waiting
  kind             count   total  share    mean
  Conv                 1  2.2 µs  53.7%  2.2 µs
  Data                 2  1.0 µs  24.4%  0.5 µs
  other (2 kinds)      2  0.9 µs  22.0%  0.5 µs

longest waits on it
  op     location       iteration  waited
  read   host a, cpu:0          2  3.5 µs
  right  host a, cpu:1          2  0.2 µs
"""


def test_the_report() -> None:
    assert summary(THREE).text(top=2) == REPORT


def test_the_report_of_nothing() -> None:
    assert "iterations: 0" in summary(Trace()).text()


def test_long_times_are_told_in_milliseconds() -> None:
    assert "1,234.6 ms in all" in summary(Trace((event("a", 0, 1_234_567_890),))).text()


def test_times_of_ops_are_medians_without_the_first_iteration() -> None:
    events = [
        event("a", 0, 9_000, iteration=4),
        event("a", 10_000, 11_000, iteration=5),
        event("a", 20_000, 23_000, iteration=6),
        event("a", 30_000, 32_000, iteration=7),
        event("b", 40_000, 45_000, iteration=4),
    ]
    assert Trace(tuple(events)).times() == {"a": 2e-6, "b": 5e-6}


# Warm-up.


def calls(kind: str, count: int) -> Trace:
    return Trace(tuple(event("a", i, i + 1, iteration=i + 7, kind=kind) for i in range(count)))


@pytest.mark.parametrize(
    ("kind", "recorded", "left_out"),
    [
        *(("Conv", count, left) for count, left in ((0, 0), (1, 0), (2, 1), (9, 1))),
        *(("Fused", count, left) for count, left in ((1, 0), (2, 1), (3, 2), (4, 3), (9, 3))),
    ],
)
def test_warm_up_is_three_iterations_with_fused_ops_and_one_without(
    kind: str, recorded: int, left_out: int
) -> None:
    assert calls(kind, recorded).warm_up == left_out


@pytest.mark.parametrize("first", [0, 500])
def test_compilation_and_capture_are_no_part_of_the_numbers(first: int) -> None:
    found = summary(on_gpu(13, first=first))
    assert (found.warm_up, found.unsettled, found.iterations) == (3, 0, 10)
    assert found.warm_up_time == COMPILED + 1_000 * MILLI + 11 * MILLI + 200 * MICRO
    assert found.span == 10 * found.iteration_time == 10 * (10 * MILLI + 100 * MICRO)
    assert [(row.kind, row.count, row.mean) for row in found.kinds] == [
        ("Fused", 10, 10 * MILLI),
        ("Data", 10, 500 * MICRO),
        ("Copy", 10, 200 * MICRO),
    ]
    steps = [(step.event.op, step.event.iteration, step.waited) for step in found.path]
    assert steps == [("fused/0", first + i, 100 * MICRO) for i in range(3, 13)]
    assert [(row.kind, row.total) for row in found.path_kinds] == [("Fused", 100 * MILLI)]


def test_a_lane_is_busy_with_what_lies_behind_warm_up() -> None:
    """One batch is read before, and one from 300 µs before the end of warm-up to 200 behind it."""
    found = summary(on_gpu(13))
    assert [(row.location, row.lane, row.busy, row.span) for row in found.lanes] == [
        (HOST, "io", 200 * MICRO + 8 * 500 * MICRO, 101 * MILLI),
        (CARD, "compute", 100 * MILLI, 101 * MILLI),
        (CARD, "inbound", 9 * 200 * MICRO, 101 * MILLI),
    ]


def test_the_path_has_what_lies_behind_warm_up() -> None:
    events = (
        event("a", 0, 10),
        event("read", 2, 6, iteration=1, lane="io"),
        event("send", 6, 14, iteration=1, lane="inbound"),
        event("a", 16, 20, iteration=1, location=CPU1),
    )
    found = summary(Trace(events, (("read", "send", 0), ("send", "a", 0))))
    assert [(step.event.op, step.waited) for step in found.path] == [("send", 0), ("a", 2)]
    assert [row.total for row in found.path_kinds] == [8]
    assert found.span == 10


def test_a_lane_that_only_worked_in_warm_up_is_idle() -> None:
    events = (event("load", 0, 4, lane="io"), event("a", 4, 9), event("a", 9, 12, iteration=1))
    lanes = summary(Trace(events)).lanes
    assert [(row.lane, row.busy) for row in lanes] == [("compute", 3), ("io", 0)]


def test_the_report_tells_what_it_leaves_out() -> None:
    lines = summary(on_gpu(13)).text().splitlines()
    assert lines[:2] == [
        "iterations: 10, 10.1 ms each, 101.0 ms in all",
        "without the first 3 iterations: warm-up, 61,011.2 ms",
    ]


def test_the_report_tells_of_warm_up_that_it_has_to_count() -> None:
    lines = summary(on_gpu(3)).text().splitlines()
    assert lines[1:3] == [
        "without the first 2 iterations: warm-up, 60,011.1 ms",
        "with warm-up in it: record 4 iterations or more",
    ]
    alone = summary(calls("Conv", 1)).text().splitlines()
    assert alone[1] == "with warm-up in it: record 2 iterations or more"
    assert "warm-up" not in summary(Trace()).text()


def test_a_window_leaves_an_iteration() -> None:
    assert window(calls("Conv", 3), 2) == (9, 2, 3)
    with pytest.raises(ConfigError, match="expected: 0 to 2"):
        window(calls("Conv", 3), 3)


def test_times_of_fused_ops_are_those_behind_warm_up() -> None:
    assert on_gpu(4).times() == {"data": 500e-6, "data@cuda:0": 200e-6, "fused/0": 10e-3}


def test_a_compiled_run() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(batch=8), data.train)
    step = pu.fuse(pu.solvers.sgd(pu.backward(net), lr=0.05))
    with pu.Run(step, data=data, compiled=True, record=True) as run:
        for _ in run.steps(8):
            pass
        trace = run.trace
    found = summary(trace)
    spent = {e.iteration: e.end - e.start for e in trace.events if e.kind == "Fused"}
    (row,) = (row for row in found.kinds if row.kind == "Fused")
    assert (found.warm_up, found.iterations) == (3, 5)
    assert (row.count, row.total) == (5, sum(spent[i] for i in range(3, 8)))
    assert row.mean < spent[0] < found.warm_up_time
    assert all(0 <= lane.fraction <= 1 for lane in found.lanes)
