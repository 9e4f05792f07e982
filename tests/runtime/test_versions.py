"""States that are read late, ops that run in some iterations, and `Last`, against a serial run."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from purine.analysis.infer import check
from purine.core import Core, compile_plan
from purine.graph import Builder, Filler, Graph
from purine.lowering import lower
from purine.lowering.passes import Options
from purine.registry.lookup import lookup
from purine.runtime.buffers import Buffers
from purine.runtime.executor import Executor, Settings
from purine.runtime.program import compile_program
from purine.runtime.values import initial_states

SIZE = 4
_GAUSSIAN = Filler("gaussian", {"std": 0.5})


def random_versions(seed: int) -> Graph:
    """A graph whose weights are read late, and some of whose updates are made at times only."""
    draw = random.Random(seed)
    b = Builder()
    b.state(b.blob("rate", (), "float64"), filler=Filler("constant", {"value": 0.1}))
    b.state(b.blob("x", (SIZE, SIZE)), filler=_GAUSSIAN)
    value = "x"
    lanes = ["compute", "compute:1"]
    for index in range(draw.randint(1, 3)):
        w, following, late = f"w{index}", f"w{index}/next", f"w{index}/late"
        for name in (w, following):
            b.blob(name, (SIZE, SIZE))
        staleness = draw.randint(0, 3)
        every = draw.choice([1, 1, 2, 3])
        turn = {"every": every, "phase": draw.randrange(every)}
        read = w
        if staleness:
            read = b.blob(late, (SIZE, SIZE))
            b.op(late, "Fetch", [w], [late], lane=draw.choice(lanes))
        for step in range(draw.randint(1, 3)):
            output = b.blob(f"y{index}/{step}", (SIZE, SIZE))
            kind = draw.choice(["aten.mm", "aten.add.Tensor", "aten.mul.Tensor"])
            b.op(output, kind, [value, read], [output], lane=draw.choice(lanes))
            value = output
        gradient = b.blob(f"g{index}", (SIZE, SIZE))
        b.op(gradient, "aten.tanh", [value], [gradient], lane=draw.choice(lanes), **turn)
        b.state(w, following, _GAUSSIAN, staleness=staleness)
        if not staleness and draw.random() < 0.5:  # the weight is set anew at times, and updated
            start, seen = (b.blob(f"{w}/{name}", (SIZE, SIZE)) for name in ("start", "seen"))
            other = b.blob(f"{w}/other", (SIZE, SIZE))
            b.op(other, "aten.sigmoid", [gradient], [other], **turn)
            b.op(start, "Last", [w, other], [start])
            b.op(f"u{index}", "SgdUpdate", [start, value, "rate"], [following])
            b.op(seen, "aten.tanh", [other], [seen], lane="compute:1", **turn)
            last = b.blob(f"{seen}/last", (SIZE, SIZE))
            b.op(last, "Last", [value, seen], [last])
            held, total = b.blob(f"{w}/held", (SIZE, SIZE)), b.blob(f"{w}/sum", (SIZE, SIZE))
            b.op(held, "aten.tanh", [w], [held], lane="compute:1")
            b.op(total, "aten.add.Tensor", [last, held], [total])
            value = total
        else:
            b.op(f"u{index}", "SgdUpdate", [w, gradient, "rate"], [following], **turn)
        if draw.random() < 0.5:  # go on with what the gradient is, in iterations that have one
            last = b.blob(f"last{index}", (SIZE, SIZE))
            b.op(last, "Last", [value, gradient], [last], lane=draw.choice(lanes))
            value = last
            if draw.random() < 0.5:
                value = b.blob(f"end{index}", (SIZE, SIZE))
                b.op(value, "aten.relu", [last], [value])
    b.outputs = [value]
    return check(b.graph())


def serial(graph: Graph, iterations: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """The outputs of every iteration and the last states, one op after the other, all copied."""
    history = [initial_states(graph, 0)]
    outputs = []
    for iteration in range(iterations):
        values: dict[str, Tensor | None] = dict(history[-1])
        for name in graph.order:
            op = graph.ops[name]
            if not op.runs_in(iteration):
                values |= dict.fromkeys(op.outputs)
                continue
            inputs = [values[blob] for blob in op.inputs]
            if op.kind == "Fetch":
                state = graph.states[op.inputs[0]]
                inputs = [history[max(0, iteration - (state.staleness or 0))][state.read]]
            copies = [value if value is None else value.clone() for value in inputs]
            kind = lookup(op)
            call = kind.bind(op) if kind.variants.in_place is None else kind.bind_overwrite(op)
            values[op.outputs[0]] = call(*copies)  # type: ignore[assignment]
        outputs.append({name: values[name] for name in graph.outputs})
        following = {}
        for name, state in graph.states.items():
            value = values[state.next]
            following[name] = history[-1][name] if value is None else value
        history.append(following)
    return outputs, history[-1]  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(40))
def test_any_order_gives_the_serial_values(seed: int) -> None:
    graph, iterations, draw = random_versions(seed), 9, random.Random(seed)
    expected, last = serial(graph, iterations)
    program, credit = compile_program(lower(graph)), draw.randint(1, 4)
    core = Core(program.plan, credit=credit)
    buffers = Buffers(program, states=initial_states(graph, 0), feeds={}, start=0, credit=credit)
    ready, collected = core.extend(iterations), 0
    while ready:
        token = ready.pop(draw.randrange(len(ready)))
        buffers.run(token)
        buffers.release(token)
        ready += core.complete(token)
        while collected < core.completed:
            outputs = buffers.collect(collected)
            for name, value in outputs.items():
                assert torch.equal(value, expected[collected][name]), (name, collected)
            collected += 1
    assert collected == iterations
    for name, value in buffers.states(iterations).items():
        assert torch.equal(value, last[name]), name


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("segments", [False, True])
def test_threads_give_the_serial_values(seed: int, segments: bool) -> None:
    graph, iterations = random_versions(seed), 12
    expected, last = serial(graph, iterations)
    program = compile_program(lower(graph, Options(segments=segments)))
    states = initial_states(graph, 0)
    with Executor(program, states=states, settings=Settings(credit=3, threads=1)) as executor:
        executor.extend(iterations)
        for iteration in range(iterations):
            for name, value in executor.wait(iteration).items():
                assert torch.equal(value, expected[iteration][name])
        assert executor.drain() == iterations
        for name, value in executor.states().items():
            assert torch.equal(value, last[name])


def test_a_late_read_waits_for_an_update_several_iterations_ago() -> None:
    b = Builder()
    for name in ("w", "w/next", "late"):
        b.blob(name, ())
    b.op("fetch", "Fetch", ["w"], ["late"])
    b.op("update", "aten.add.Tensor", ["w", "late"], ["w/next"])
    b.state("w", "w/next", staleness=2)
    plan = compile_plan(b.graph())
    fetch, update = plan.ops.index("fetch"), plan.ops.index("update")
    assert plan.stale[update] == ((fetch, 3),)
    assert plan.later[update] == (update,)
    assert plan.reach == 3
    core = Core(plan, credit=5)
    # Three fetches read the first value; the fourth waits for the first update.
    assert core.extend(5) == [iteration * 2 + fetch for iteration in range(3)]
    core.complete(fetch)
    assert core.complete(update) == [3 * 2 + fetch]


def test_a_run_that_starts_later_reads_its_first_values() -> None:
    b = Builder()
    for name in ("w", "w/next", "late"):
        b.blob(name, ())
    b.op("fetch", "Fetch", ["w"], ["late"])
    b.op("update", "aten.add.Scalar", ["w"], ["w/next"], {"other": 1})
    b.state("w", "w/next", staleness=1)
    b.outputs = ["late"]
    program = compile_program(lower(check(b.graph())))
    start = {"w": torch.tensor(5.0)}
    with Executor(program, states=start, start=7, settings=Settings(credit=2)) as executor:
        executor.extend(11)
        seen = [float(executor.wait(iteration)["late"]) for iteration in range(7, 11)]
    assert seen == [5, 5, 6, 7]
