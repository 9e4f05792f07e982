"""Lanes as threads: the same bits on any number of them, and clean ends."""

from __future__ import annotations

import threading

import pytest
import torch

from purine.analysis.infer import check
from purine.errors import KernelError, StallError
from purine.graph import Builder, Graph
from purine.lowering import lower
from purine.registry.clock import add_clock
from purine.runtime.executor import Executor, Settings
from purine.runtime.program import compile_program
from purine.runtime.values import initial_states
from tests.runtime.random_graphs import random_graph, same_bits, serial


def feeding(kernel: object, *, lane: str = "compute") -> tuple[Graph, dict[str, object]]:
    """A graph of one source whose kernel is given."""
    b = Builder()
    add_clock(b)
    b.op("source", "Data", ["seed", "iteration"], [b.blob("x", (1,))], lane=lane)
    b.op("double", "aten.mul.Scalar", ["x"], [b.blob("y", (1,))], {"other": 2.0})
    b.outputs = ["y"]
    return check(b.graph()), {"source": kernel}


def executor_of(graph: Graph, sources: dict[str, object], **settings: object) -> Executor:
    return Executor(
        compile_program(lower(graph), sources),  # type: ignore[arg-type]
        states=initial_states(graph, 0),
        settings=Settings(**settings),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("seed", range(12))
def test_lanes_give_the_bits_of_the_serial_run(seed: int, lanes: int) -> None:
    iterations = 20
    graph = random_graph(100 + seed, lanes=lanes)
    outputs, states = serial(graph, iterations)
    executor = Executor(
        compile_program(lower(graph)),
        states=initial_states(graph, 0),
        settings=Settings(credit=3, threads=1),
    )
    try:
        executor.extend(iterations)
        for iteration in range(iterations):
            for name, value in executor.wait(iteration).items():
                assert same_bits(value, outputs[iteration][name]), (iteration, name)
        assert executor.drain() == iterations
        for name, value in executor.states().items():
            assert same_bits(value, states[name]), name
    finally:
        executor.close()


def test_a_source_runs_ahead_by_its_credit_and_no_further() -> None:
    seen: list[int] = []
    gate = threading.Semaphore(0)
    reached = threading.Event()

    def kernel(seed: torch.Tensor, iteration: torch.Tensor) -> torch.Tensor:
        seen.append(int(iteration))
        if int(iteration) == 2:
            reached.set()
        return torch.tensor([float(iteration)])

    graph, sources = feeding(kernel, lane="io")
    b = Builder(graph)
    b.op("slow", "Data", ["seed", "iteration"], [b.blob("z", (1,))])
    b.control.add(("slow", "double"))

    def slow(seed: torch.Tensor, iteration: torch.Tensor) -> torch.Tensor:
        gate.acquire()
        return torch.zeros(1)

    executor = executor_of(b.graph(), {**sources, "slow": slow}, credit=3)
    executor.extend(10)
    assert reached.wait(30)
    assert seen == [0, 1, 2]
    for _ in range(10):
        gate.release()
    assert [executor.wait(i)["y"].item() for i in range(10)] == [2.0 * i for i in range(10)]
    executor.close()


def test_a_kernel_that_raises_stops_the_run_and_names_the_op() -> None:
    def kernel(seed: torch.Tensor, iteration: torch.Tensor) -> torch.Tensor:
        if int(iteration) == 3:
            raise ValueError("the file is gone")
        return torch.ones(1)

    graph, sources = feeding(kernel, lane="io")
    executor = executor_of(graph, sources)
    executor.extend(10)
    with pytest.raises(KernelError) as caught:
        _ = [executor.wait(iteration) for iteration in range(10)]
    text = str(caught.value)
    assert "op 'source' (Data) at host 127.0.0.1, cpu:0, lane io" in text
    assert "failed in iteration 3: the file is gone" in text
    assert "seed: int64 [], iteration: int64 []" in text
    assert caught.value.op == "source"
    executor.close()
    assert not any("lane" in thread.name and thread.is_alive() for thread in executor._threads)


def test_a_run_that_cannot_go_on_reports_itself() -> None:
    graph, sources = feeding(lambda seed, iteration: torch.ones(1))
    executor = executor_of(graph, sources, credit=1)
    double = executor.plan.ops.index("double")
    executor.core._counts[0][double] += 1  # as if something had forgotten to report
    executor.extend(1)
    with pytest.raises(StallError) as caught:
        executor.wait(0)
    assert "op 'double' at host 127.0.0.1, cpu:0 in iteration 0 waits for x from source" in str(
        caught.value
    )
    executor.close()


def test_the_trace_has_every_op_of_every_iteration() -> None:
    graph, sources = feeding(lambda seed, iteration: torch.ones(1), lane="io")
    executor = executor_of(graph, sources, record=True)
    executor.extend(3)
    executor.drain()
    executor.close()
    trace = executor.trace()
    assert sorted((event.op, event.iteration) for event in trace.events) == sorted(
        (name, iteration) for name in graph.ops for iteration in range(3)
    )
    assert {event.lane for event in trace.events if event.op == "source"} == {"io"}
    assert all(event.start <= event.end for event in trace.events)
