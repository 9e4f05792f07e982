"""Streams, events and captured graphs, on GPUs that are not there: right numbers, no race."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.errors import RunError
from purine.graph import Builder, Graph
from purine.job import RunFolder, Training, make_plan, measure, merge
from purine.parallel import pipeline, replicate
from purine.runtime.streams import _Clock
from tests.runtime.stand_in import Event, StandIn, stand_in

__all__ = ["stand_in"]

GPUS = ["cuda:0", "cuda:1"]

Form = Callable[[Graph, str], Graph]

FORMS: dict[str, Form] = {
    "one": lambda step, kind: pu.to_device(step, f"{kind}:0"),
    "replicate": lambda step, kind: replicate(step, f"{kind}:0-1"),
    "ring": lambda step, kind: replicate(step, f"{kind}:0-1", topology="ring"),
    "native": lambda step, kind: replicate(step, f"{kind}:0-1", topology="native"),
    "pipeline": lambda step, kind: pipeline(step, 2, devices=f"{kind}:0-1", micro=4),
    "zero-bubble": lambda step, kind: pipeline(
        step, 2, devices=f"{kind}:0-1", micro=4, schedule="zero-bubble"
    ),
}


def step_of(net: str = "mlp", precision: str | None = None, **scale: float) -> Graph:
    ready = pu.data.prepare(pu.zoo.NETS[net](batch=8), pu.data.fashion_mini().train)
    if precision:
        ready = pu.mixed(ready, precision, **scale)
    return pu.solvers.sgd(pu.backward(ready), lr=0.005, momentum=0.9)


def run_of(graph: Graph) -> pu.Run:
    return pu.Run(graph, data=pu.data.fashion_mini(), seed=1, share_cores=True)


def outputs(graph: Graph, count: int = 8) -> list[dict[str, Tensor]]:
    """What results hold, looked at when all iterations have run."""
    with run_of(graph) as run:
        results = list(run.steps(count))
    return [dict(result.outputs) for result in results]


def assert_same(found: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
    assert [dict.keys(one) for one in found] == [dict.keys(one) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("captured", [False, True], ids=["op by op", "captured"])
@pytest.mark.parametrize("form", FORMS)
def test_gpus_wait_for_each_other_where_they_must(
    form: str, captured: bool, stand_in: StandIn
) -> None:
    step = step_of("lenet" if form in ("one", "pipeline") else "mlp")
    wanted = outputs(FORMS[form](step, "cpu"))
    graph = FORMS[form](step, "cuda")
    assert_same(outputs(pu.fuse(graph, devices=GPUS) if captured else graph), wanted)
    assert bool(stand_in.replays) == captured
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


@pytest.mark.parametrize("form", ["replicate", "zero-bubble"])
def test_small_pieces_wait_for_each_other_too(form: str, stand_in: StandIn) -> None:
    step = step_of()
    graph = pu.fuse(FORMS[form](step, "cuda"), bucket=50_000, devices=GPUS)
    assert_same(outputs(graph), outputs(FORMS[form](step, "cpu")))
    assert stand_in.replays
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


@pytest.mark.parametrize("form", ["one", "replicate"])
def test_states_that_are_reported_are_those_of_their_iteration(
    form: str, stand_in: StandIn
) -> None:
    step = step_of(precision="fp16", loss_scale=2.0, growth_interval=1)
    found = outputs(pu.fuse(FORMS[form](step, "cuda"), devices=GPUS))
    assert all(stand_in.on_host(value) for one in found for value in one.values())
    assert [one["loss_scale"].item() for one in found] == [2.0**k for k in range(1, 9)]
    assert_same(found, outputs(FORMS[form](step, "cpu")))
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


@pytest.mark.parametrize("blob", ["fc1/weight", "fc1/weight/next"])
@pytest.mark.parametrize("shown", ["flat", "fc1/weight", "fc1/weight/next"])
def test_states_and_their_views_keep_their_values(blob: str, shown: str, stand_in: StandIn) -> None:
    builder = Builder(step_of())
    shape = builder.blobs["fc1/weight"].shape
    assert shape is not None
    count = shape[0] * shape[1]
    builder.blob("flat", (count,), "float32")
    builder.op("flat", "aten.reshape", [blob], ["flat"], {"shape": (count,)})
    builder.outputs = [*builder.outputs, shown]
    step = builder.graph()
    wanted = outputs(step)
    assert_same(outputs(pu.fuse(step)), wanted)
    assert_same(outputs(pu.fuse(pu.to_device(step, "cuda:0"))), wanted)
    assert stand_in.replays
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


def test_a_cpu_waits_for_what_it_reads_from_a_gpu(stand_in: StandIn) -> None:
    builder = Builder(pu.to_device(step_of(), "cuda:0"))
    loss = builder.blobs["loss"]
    builder.blob("here", loss.shape, loss.dtype)
    builder.blob("twice", loss.shape, loss.dtype)
    builder.op("here", "Copy", ["loss"], ["here"])
    builder.op("twice", "aten.add.Scalar", ["here"], ["twice"], {"other": 1.0})
    builder.outputs = ["loss", "twice"]
    for one in outputs(builder.graph()):
        assert one["twice"].item() == pytest.approx(one["loss"].item() + 1.0)
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


def test_what_cannot_be_captured_is_called(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.captures = RuntimeError("operation not permitted when stream is capturing")
    step = step_of()
    with caplog.at_level(logging.WARNING, "purine"):
        found = outputs(pu.fuse(pu.to_device(step, "cuda:0")))
    assert_same(found, outputs(step))
    assert not stand_in.replays
    (record,) = caplog.records
    assert "is not captured: RuntimeError: operation not permitted" in record.getMessage()


def test_a_gpu_that_fails_late_is_an_error_of_the_run(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(event: Event) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nlook elsewhere")

    with run_of(pu.to_device(step_of(), "cuda:0")) as run:
        assert next(run.steps(1)).loss > 0
        monkeypatch.setattr(Event, "synchronize", failing)
        with pytest.raises(RunError, match="device-side assert triggered") as caught:
            list(run.steps(3))
        assert "elsewhere" not in str(caught.value)
        with pytest.raises(RunError, match="device-side assert"):
            run.states()


def test_a_recorded_run_has_times_of_all_lanes(stand_in: StandIn) -> None:
    step = pu.to_device(step_of(), "cuda:0")
    with pu.Run(step, data=pu.data.fashion_mini(), record=True) as run:
        list(run.steps(3))
        trace = run.trace
    lanes = {(event.location.rpartition(" ")[2], event.lane) for event in trace.events}
    assert {("cuda:0", "compute"), ("cuda:0", "inbound"), ("cpu:0", "io")} <= lanes
    reads = [event for event in trace.events if event.lane == "outbound"]
    assert {event.location for event in reads} == {str(step.blobs["loss"].location)}
    assert [event.iteration for event in reads if event.op == "loss@host"] == [0, 1, 2]
    assert {event.kind for event in reads} == {"Fetch"}
    ends = {(event.op, event.iteration): event.end for event in trace.events}
    maker = step.producers["loss"].name
    assert (maker, "loss@host", 0) in trace.edges
    assert all(ends[maker, event.iteration] <= event.start for event in reads if "loss" in event.op)
    assert trace.times().keys() <= step.ops.keys()


def test_times_of_events_stay_exact_after_minutes() -> None:
    class Mark:
        def __init__(self, at: float) -> None:
            self.at = at

        def elapsed_time(self, other: Mark) -> float:
            return torch.tensor(other.at - self.at, dtype=torch.float32).item()

    clock = _Clock(0, Mark(0.0))
    marks = [400.0 * k + 0.001 * k for k in range(1000)]
    found = [clock.time(Mark(at)) for at in marks]
    steps = [after - before for before, after in pairwise(found)]
    assert steps == pytest.approx([400_001_000] * 999, abs=200)


@pytest.mark.parametrize("devices", ["cuda:0", "cuda:0-1"])
@pytest.mark.parametrize("compiled", [None, False])
def test_a_job_on_gpus_trains_stops_and_is_measured_as_on_cpus(
    devices: str, compiled: bool | None, stand_in: StandIn, tmp_path: Path
) -> None:
    found = {}
    for kind in ("cpu", "cuda"):
        options = {"net": "mlp", "batch": 40, "iters": 6, "test_every": 3, "data": "fashion-mini"}
        where = {"devices": devices.replace("cuda", kind), "out": str(tmp_path / kind)}
        plan = make_plan(merge({**options, **where, "compile": compiled}))
        folder = RunFolder.create(plan.job, plan.net)
        for stop in (4, 6):
            with Training(plan, folder) as training:
                list(training.events(lambda: training.iteration >= stop))  # noqa: B023
        found[kind] = measure(folder)
    assert bool(stand_in.replays) == (compiled is None)
    assert not stand_in.races, sorted(set(stand_in.races))[:5]
    assert found["cuda"].loss == pytest.approx(found["cpu"].loss, rel=1e-4)
    assert found["cuda"].accuracy == pytest.approx(found["cpu"].accuracy, abs=2e-3)
    assert found["cuda"].iteration == 6
