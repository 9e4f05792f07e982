"""Runs that threads share, and runs and forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import purine as pu
from purine.errors import RunError


def training() -> tuple[pu.Graph, pu.Graph, pu.data.DataSet]:
    net = pu.Net()
    data, label = net.source([("data", (4, 8), "float32"), ("label", (4,), "int64")])
    x = pu.kinds.inner_product(data, 3, name="fc")
    net.output(pu.kinds.softmax_loss(x, label, name="loss"))
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 8, generator=random), torch.arange(24) % 3
    graph = net.graph()
    step = pu.solvers.sgd(pu.backward(graph), lr=0.1)
    return step, pu.evaluation(graph), pu.data.tensors(*rows, test=rows)


def one_by_one(count: int) -> list[float]:
    step, _, data = training()
    with pu.Run(step, data=data) as run:
        return [result.loss for result in run.steps(count)]


def in_threads(count: int, call: Callable[[int], list[pu.Result]]) -> list[float]:
    """The losses that threads which begin together are given, in the order of iterations."""
    together = threading.Barrier(count)

    def work(number: int) -> list[pu.Result]:
        together.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        results = [result for part in pool.map(work, range(count)) for result in part]
    results.sort(key=lambda result: result.iteration)
    assert [result.iteration for result in results] == list(range(len(results)))
    return [result.loss for result in results]


def test_threads_that_step_one_run_take_turns() -> None:
    step, _, data = training()
    with pu.Run(step, data=data) as run:
        assert in_threads(4, lambda _: list(run.steps(25))) == one_by_one(100)


def test_threads_that_share_one_iterator_take_turns() -> None:
    step, _, data = training()
    with pu.Run(step, data=data) as run:
        steps = run.steps(60)
        assert in_threads(3, lambda _: list(steps)) == one_by_one(60)


def test_other_calls_take_their_turn_too() -> None:
    step, test, data = training()
    with pu.Run(step, data=data) as run:

        def work(number: int) -> list[pu.Result]:
            if number == 0:
                return list(run.steps(30))
            for _ in range(5):
                assert run.evaluate(test)["loss"] > 0
                assert run.states().keys() == step.states.keys()
            run.close()
            return []

        assert in_threads(2, work) == one_by_one(30)


def ends_well(work: Callable[[], None]) -> bool:
    """Whether a forked child does its work; one that hangs is ended by an alarm."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_run_is_refused_in_a_forked_child() -> None:
    step, test, data = training()
    with pu.Run(step, data=data) as run:
        steps = run.steps(9)
        next(steps)  # later iterations are in flight

        def work() -> None:
            for call in (
                lambda: next(steps),
                lambda: run.steps(1),
                run.states,
                lambda: run.set_states({}),
                lambda: run.evaluate(test),
                lambda: run.save("nowhere"),
                lambda: run.load("nowhere"),
            ):
                with pytest.raises(RunError, match="belongs to another process") as caught:
                    call()
                assert str(os.getpid()) in str(caught.value.found)
            run.close()

        assert ends_well(work)
        assert len(list(steps)) == 8


@pytest.mark.usefixtures("threads")
def test_a_forked_child_can_make_runs_of_its_own() -> None:
    step, _, data = training()
    large = torch.ones(1 << 20)
    expected = one_by_one(5)
    with pu.Run(step, data=data) as run:
        for _ in run.steps(4):
            large.clone()  # leaves helpers of OpenMP behind, which a child does not have

            def work() -> None:
                large.clone()
                assert one_by_one(5) == expected

            assert ends_well(work)


def test_a_child_that_drops_the_run_does_not_wait_for_its_lanes() -> None:
    step, _, data = training()
    runs = [pu.Run(step, data=data)]
    next(runs[0].steps(3))
    assert ends_well(runs.clear)
    runs.pop().close()
