"""Workers in checkpoints, and where they can run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import purine as pu
from purine.errors import ConfigError
from purine.graph import Builder, Graph, Location
from purine.runtime import checkpoint
from purine.runtime.worker_states import beside_net, for_all_workers, past_of, refuse_workers

DATA = pu.data.fashion_mini()


def graph_of(scheme: str) -> Graph:
    net = pu.data.prepare(pu.zoo.mlp(batch=4, hidden=(8,)), DATA.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    return pu.parallel.serve(step, "cpu:0-1", scheme)


def test_a_value_that_is_shared_is_that_of_all() -> None:
    graph, one = graph_of("ssp"), torch.ones(10)
    given = for_all_workers(graph, {"worker1/fc2/bias": one})
    assert given == {"worker0/fc2/bias": one, "worker1/fc2/bias": one}


def test_a_checkpoint_has_what_is_shared_once_and_the_rest_for_each(tmp_path: Path) -> None:
    for scheme, own in (("ssp", False), ("easgd", True)):
        with pu.Run(graph_of(scheme), data=DATA, share_cores=True, threads=1) as run:
            list(run.steps(6))
            path = run.save(tmp_path / scheme)
            run.save(tmp_path / "other")
        names = checkpoint.load(path).forms
        assert "fc1/weight" in names
        assert ("worker1/fc1/weight" in names) == own
        counts = checkpoint.load(path, names=["worker0/completed", "worker1/completed"]).values
        assert sum(int(count) for count in counts.values()) == 6
        saved = checkpoint.load(path)
        past = past_of(saved, run.graph.digest)
        assert past is not None
        assert past.iterations == 6
        assert past_of(saved, "another") is None


def test_counts_are_those_of_each_worker() -> None:
    graph = graph_of("easgd")
    values = {name: torch.zeros(()) for name in graph.states}
    own = beside_net(graph, values, (3, 4))
    assert [int(own[f"worker{number}/completed"]) for number in (0, 1)] == [3, 4]
    assert "worker0/fc1/weight" in own
    assert not any("center" in name for name in own)


def test_workers_are_at_cpu_devices_of_one_process() -> None:
    b, at = Builder(), Location(device="cuda:0")
    b.op("y", "aten.relu", ["x"], [b.blob("y", (), location=at)], location=at, worker=1)
    b.state(b.blob("x", (), location=at))
    with pytest.raises(ConfigError, match="workers cannot run here"):
        refuse_workers(b.graph(), None, None)
