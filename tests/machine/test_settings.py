"""Torch's settings for GPUs while a run computes, and as they were before behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.analysis.infer import check
from purine.errors import ConfigError, KernelError
from purine.graph import Builder, Graph
from purine.lowering import lower
from purine.machine.settings import hold, let_go
from purine.registry.clock import add_clock
from purine.runtime.executor import Executor
from purine.runtime.executor import Settings as RunSettings
from purine.runtime.program import compile_program
from purine.runtime.values import initial_states

Settings = tuple[bool | None, bool | None, str, str, bool]


def settings() -> Settings:
    """TF32 in products and convolutions, by both interfaces, None where one is silent; and whether
    convolutions have a fixed order."""
    backends, older = torch.backends, []
    for module in (backends.cuda.matmul, backends.cudnn):
        try:
            older.append(module.allow_tf32)
        except RuntimeError:
            older.append(None)
    newer = (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision)
    return older[0], older[1], *newer, backends.cudnn.deterministic


ON: Settings = (True, True, "tf32", "tf32", True)
OFF: Settings = (False, False, "ieee", "ieee", True)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = settings()
    yield
    torch.backends.cuda.matmul.allow_tf32 = bool(before[0])
    torch.backends.cudnn.allow_tf32 = bool(before[1])
    torch.backends.cuda.matmul.fp32_precision = before[2]
    torch.backends.cudnn.conv.fp32_precision = before[3]
    torch.backends.cudnn.deterministic = before[4]


def observing(seen: list[Settings], fail_at: int | None = None) -> Executor:
    """An executor of a graph that notes the settings when an op of it runs."""

    def source(seed: Tensor, iteration: Tensor) -> Tensor:
        seen.append(settings())
        if int(iteration) == fail_at:
            raise ValueError("broken")
        return torch.ones(1)

    graph = one_source()
    return Executor(
        compile_program(lower(graph), {"source": source}),
        states=initial_states(graph, 0),
        settings=RunSettings(credit=3, tf32=True),
    )


def one_source() -> Graph:
    b = Builder()
    add_clock(b)
    b.op("source", "Data", ["seed", "iteration"], [b.blob("x", (1,))], lane="io")
    b.op("double", "aten.mul.Scalar", ["x"], [b.blob("y", (1,))], {"other": 2.0})
    b.outputs = ["y"]
    return check(b.graph())


def test_it_is_set_while_ops_run_and_put_back_when_none_is_in_flight() -> None:
    before, seen = settings(), list[Settings]()
    executor = observing(seen)
    assert settings() == before
    for limit in (4, 4, 6):
        executor.extend(limit)
        executor.wait(limit - 1)
        assert settings() == before
    executor.close()
    assert seen == [ON] * 6


def test_it_is_put_back_behind_an_op_that_fails() -> None:
    before, seen = settings(), list[Settings]()
    executor = observing(seen, fail_at=1)
    executor.extend(4)
    with pytest.raises(KernelError):
        executor.wait(3)
    assert settings() == before
    executor.close()
    assert settings() == before
    assert set(seen) == {ON}


def test_it_is_put_back_when_a_run_is_closed_in_flight() -> None:
    before = settings()
    executor = observing([])
    executor.extend(1000)
    executor.close()
    assert settings() == before


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("convolutions", [True, False])
def test_the_older_interface_agrees_with_the_newer(
    tf32: bool, products: bool, convolutions: bool
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = products
    torch.backends.cudnn.allow_tf32 = convolutions
    before = settings()
    hold(tf32)
    assert settings() == (ON if tf32 else OFF)
    let_go()
    assert settings() == before


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("products", ["tf32", "ieee"])
@pytest.mark.parametrize("convolutions", ["tf32", "ieee"])
def test_users_of_the_newer_interface_keep_what_they_set(
    tf32: bool, products: str, convolutions: str
) -> None:
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.conv.fp32_precision = convolutions
    before = settings()
    hold(tf32)
    assert settings()[2:] == (ON if tf32 else OFF)[2:]
    let_go()
    assert settings() == before


@pytest.mark.parametrize("fixed_order", [True, False])
def test_convolutions_are_as_users_had_them_behind_a_run(fixed_order: bool) -> None:
    torch.backends.cudnn.deterministic = fixed_order
    hold(False)
    assert torch.backends.cudnn.deterministic
    let_go()
    assert torch.backends.cudnn.deterministic == fixed_order


def test_runs_that_want_the_opposite_wait_for_each_other() -> None:
    before, order = settings(), list[Settings]()
    hold(True)
    hold(True)

    def other() -> None:
        hold(False)
        order.append(settings())
        let_go()

    thread = threading.Thread(target=other)
    thread.start()
    let_go()
    order.append(settings())
    let_go()
    thread.join()
    assert order == [ON, OFF]
    assert settings() == before


def test_a_run_without_gpus_has_no_tf32_and_leaves_torch_alone() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(batch=4), data.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    with pytest.raises(ConfigError, match="no op is on a GPU") as caught:
        pu.Run(step, data=data, tf32=True)
    assert caught.value.found == "devices cpu:0"
    torch.backends.cuda.matmul.allow_tf32 = True
    before = settings()
    with pu.Run(step, data=data, threads=1) as run:
        for _ in run.steps(2):
            assert settings() == before
