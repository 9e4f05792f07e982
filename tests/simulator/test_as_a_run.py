"""A simulation beside a real run: the same order of ops, the same credit, the same form."""

from __future__ import annotations

import pytest

import purine as pu
from purine.lowering import Options, lower, options_for
from purine.lowering.segments import SEGMENT
from purine.simulator.engine import Engine
from purine.simulator.machine import Machine
from purine.simulator.part import make_part
from purine.simulator.prediction import predict, trace_of
from purine.simulator.times import ProfileTimes
from purine.trace.trace import Trace

STEPS = 5
ALONE = Machine(dispatch=0.0, hop=0.0, threads=1)


def step_of(devices: str = "cpu:0") -> pu.Graph:
    net = pu.data.prepare(pu.zoo.mlp(batch=8), pu.data.fashion_mini().train)
    return pu.compose(net, solver=pu.solvers.sgd, devices=devices)


@pytest.mark.parametrize("record", [True, "segments"])
def test_ops_run_in_the_order_of_a_real_run(record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread the order depends on no time: it is the core's, with its credit."""
    monkeypatch.setattr("purine.runtime.executor.available", lambda: [0])
    step = step_of()
    with pu.Run(step, data=pu.data.fashion_mini(), prefetch=2, record=record) as run:
        run._ahead = STEPS  # the caller asks for all, and the credit alone decides
        list(run.steps(STEPS))
    ran = run.trace
    lowered = lower(step, Options() if record is True else options_for(step))
    assert any(op.kind == SEGMENT for op in lowered.graph.ops.values()) == (record == "segments")
    engine = Engine([make_part(lowered, None, lambda op: 1e-5, ALONE)], ALONE, credit=3)
    engine.run(STEPS)
    told = trace_of(engine)

    def order(trace: Trace) -> list[tuple[int, str]]:
        return [(event.iteration, event.op) for event in trace.events]

    assert order(told) == order(ran)
    assert told.edges == ran.edges
    assert {(e.op, e.kind, e.location, e.lane) for e in told.events} == {
        (e.op, e.kind, e.location, e.lane) for e in ran.events
    }


@pytest.mark.parametrize("credit", [1, 2, 4])
def test_no_iteration_opens_without_credit(credit: int) -> None:
    lowered = lower(step_of(), Options())
    machine = Machine(dispatch=0.0, hop=0.0, threads=2)
    part = make_part(lowered, None, lambda op: 1e-6 if op.kind == "Data" else 1e-3, machine)
    engine = Engine([part], machine, credit=credit)
    engine.run(8)
    reads = {e.iteration: e.start for e in trace_of(engine).events if e.kind == "Data"}
    ends = engine.hosts[0].ends
    for iteration in range(credit, 8):
        assert reads[iteration] >= ends[iteration - credit] - 1
    assert reads[credit - 1] < ends[0]


def test_memory_is_what_the_program_decides() -> None:
    lowered = lower(step_of("cpu:0-1"))
    cores = {("", "cpu:0"): (0,), ("", "cpu:1"): (1,)}
    found = predict({None: lowered}, ProfileTimes(), Machine(cores=cores))
    assert found.memory == lowered.peak_memory(credit=3)
    assert Trace(found.trace.events, found.trace.edges) == found.trace


def test_times_decide_the_step_and_not_the_order() -> None:
    """Twice the time of every op is twice the time of the step."""
    lowered = {None: lower(step_of())}
    slow = {("127.0.0.1", "cpu:0"): 0.5}
    machine = Machine(dispatch=0.0, hop=0.0, threads=1)
    one = predict(lowered, ProfileTimes(), machine, memory=False)
    half = Machine(dispatch=0.0, hop=0.0, threads=1, slow=slow)
    other = predict(lowered, ProfileTimes(), half, memory=False)
    assert other.seconds == pytest.approx(2 * one.seconds, rel=1e-6)
    assert [e.op for e in one.trace.events] == [e.op for e in other.trace.events]
