"""Hosts that were started with different jobs do not start to train, and say what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import purine as pu
from purine.data.source import identity_of
from purine.errors import ConfigError
from purine.graph import Graph
from purine.transports.inproc import InprocWorld
from tests.runtime.test_hosts import on_hosts

Settings = dict[str, object]


@cache
def step(lr: float = 0.1, momentum: float = 0.0) -> Graph:
    net = pu.zoo.mlp(batch=8, hidden=(4,))
    return pu.compose(
        net,
        solver=lambda graph: pu.solvers.sgd(graph, lr=lr, momentum=momentum),
        devices="host0-1:cpu:0",
    )


def samples(count: int = 20, seed: int = 0, name: str = "digits") -> pu.data.DataSet:
    generator = np.random.default_rng(seed)
    values = generator.random((count, 1, 28, 28), np.float32)
    return pu.data.DataSet(name, pu.data.ArraySource(values, np.arange(count) % 10, classes=10))


DIFFERENT: dict[str, tuple[Callable[[], Settings], str, str, str]] = {
    "seed": (lambda: {"seed": 1}, "seed", "0 on host0", "1 on host1"),
    "prefetch": (lambda: {"prefetch": 4}, "prefetch", "2 on host0", "4 on host1"),
    "name of the data": (
        lambda: {"data": samples(name="letters")},
        "data set",
        "digits on host0",
        "letters on host1",
    ),
    "number of samples": (
        lambda: {"data": samples(21)},
        "training samples",
        "20 samples of image: float32 1x28x28",
        "21 samples of image: float32 1x28x28",
    ),
    "samples": (lambda: {"data": samples(seed=1)}, "training samples", "hash", "on host1"),
    "test samples": (
        lambda: {"data": replace(samples(), test=samples().train)},
        "test samples",
        "none on host0",
        "20 samples",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_named_on_all_hosts(case: str) -> None:
    change, name, first, second = DIFFERENT[case]
    graph = step()

    def work(world: InprocWorld) -> None:
        settings = {"data": samples(), **(change() if world.host == "host1" else {})}
        pu.Run(graph, world=world, share_cores=True, **settings)  # type: ignore[arg-type]

    for error in on_hosts(work):
        assert isinstance(error, ConfigError), error
        assert error.what == f"host0 and host1 differ in their {name}"
        assert first in str(error.found)
        assert second in str(error.found)


def test_the_first_differing_node_of_a_step_is_shown_for_each_host() -> None:
    one, other = step(), step(lr=0.5)

    def work(world: InprocWorld) -> None:
        own = other if world.host == "host1" else one
        pu.Run(own, data=samples(), world=world, share_cores=True)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError), error
        assert error.what == "host0 and host1 differ in their step"
        first, second = str(error.found).split(" on host0, ")
        assert first.startswith("lr = ")
        assert "0.1" in first
        assert second.startswith("lr = ")
        assert "0.5" in second
        assert second.endswith(" on host1")


def test_a_step_with_more_nodes_shows_the_first_of_them() -> None:
    plain, more = step(), step(momentum=0.9)

    def work(world: InprocWorld) -> None:
        own = more if world.host == "host1" else plain
        pu.Run(own, data=samples(), world=world, share_cores=True)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError), error
        assert "update/" in str(error.found)


def test_three_hosts_name_the_one_that_differs() -> None:
    def work(world: InprocWorld) -> None:
        world.compare({"seed": "1" if world.host == "host2" else "0", "other": world.host})

    for error in on_hosts(work, hosts=("host0", "host1", "host2")):
        assert isinstance(error, ConfigError)
        assert error.what == "host0 and host2 differ in their seed"


def test_an_error_on_one_host_is_raised_on_all() -> None:
    def work(world: InprocWorld) -> None:
        def fail() -> str:
            if world.host == "host1":
                raise ConfigError("no", "yes", "maybe", "say yes", where="here")
            return ""

        world.jointly(fail, op="test")

    for error in on_hosts(work):
        assert isinstance(error, ConfigError)
        assert str(error).splitlines()[0] == "here: host1: no"
        assert (error.expected, error.found, error.remedy) == ("yes", "maybe", "say yes")


def test_builds_of_torch_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from purine.runtime.agreement import facts_of

    own = facts_of(None, seed=0, prefetch=2)
    monkeypatch.setattr(torch, "__version__", str(torch.__version__).partition("+")[0] + "+cu999")
    assert facts_of(None, seed=0, prefetch=2) == own


def test_samples_that_may_change_are_no_part_of_an_identity() -> None:
    random = pu.data.TorchSource([(torch.rand(2), 0), (torch.rand(2), 1)])
    assert identity_of(random) == "2 samples of image: float32 2, label: int64 scalar"
    endless = pu.data.IterableSource([(torch.zeros(2), 0)])
    assert identity_of(endless) == "image: float32 2, label: int64 scalar"
