"""Workers on several hosts, which are threads here: they join, train, leave and are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import purine as pu
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.parallel import serve
from purine.transports.open_world import OpenWorld

DATA = pu.data.fashion_mini()
HOSTS = "host0:cpu:0,host1:cpu:0,host2:cpu:0"
PACE = 2


def graph_of(scheme: str, **changes: Any) -> Graph:
    net = pu.data.prepare(pu.zoo.mlp(batch=6, hidden=(8,)), DATA.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.05, momentum=0.5)
    pace = {"push" if scheme == "downpour" else "every": PACE}
    return serve(step, HOSTS, scheme, **{"servers": 1, **pace, **changes})


def run_of(graph: Graph, world: OpenWorld) -> pu.Run:
    return pu.Run(graph, data=DATA, seed=3, share_cores=True, threads=1, world=world)


@contextmanager
def serving(graph: Graph) -> Iterator[tuple[OpenWorld, pu.Run]]:
    """A server that lets workers join."""
    world = OpenWorld.serving()
    run = run_of(graph, world)
    run.serve(lambda run: True)
    try:
        yield world, run
    finally:
        world.end()
        run.close()


class Worker(threading.Thread):
    """A worker that trains so many iterations and leaves."""

    def __init__(self, graph: Graph, port: int, steps: int, transport: str = "shm") -> None:
        super().__init__(daemon=True)
        self.graph, self.port, self.count, self.transport = graph, port, steps, transport
        self.own: list[int] = []
        self.staleness: list[int] = []
        self.rounds = 0
        self.begun_at = -1
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            world = OpenWorld.joining("127.0.0.1", self.port, transport=self.transport)
            self.begun_at = world.begin
            with run_of(self.graph, world) as run:
                for result in run.steps(self.count):
                    self.own.append(result.own or 0)
                    self.staleness.append(result.staleness)
                run.states()  # all is carried
                self.rounds = run.rounds
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        self.join(60)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("scheme", ["downpour", "easgd", "local", "diloco"])
def test_every_push_of_every_worker_is_applied_once(scheme: str) -> None:
    graph = graph_of(scheme)
    with serving(graph) as (world, run):
        before = {name: value.clone() for name, value in run.states().items()}
        workers = [Worker(graph, world.port, count) for count in (9, 14)]
        for worker in workers:
            worker.end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        assert set(run.versions.values()) == {sum(w.rounds for w in workers)}
        assert not run.states()["worker2/fc1/weight"].equal(before["worker2/fc1/weight"])
    assert all(worker.own == list(range(worker.count)) for worker in workers)
    assert all(worker.rounds >= 2 for worker in workers)


@pytest.mark.parametrize("transport", ["tcp", "torchdist"])
def test_a_worker_that_joins_goes_on_where_another_one_was(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    graph = graph_of("easgd")
    with serving(graph) as (world, run):
        first = Worker(graph, world.port, 8)
        first.end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        assert first.begun_at == 0
        second = Worker(graph, world.port, 4, transport)
        second.end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        assert second.begun_at == first.rounds * PACE
        assert second.own[0] == second.begun_at
        assert run.greeter is not None
        (one, two) = (run.greeter.pushes(life) for life in run.greeter.lives)
        assert set(one.values()) == {first.rounds}
        assert set(two.values()) == {second.rounds}


def test_no_worker_is_further_ahead_than_its_bound() -> None:
    graph = graph_of("downpour", staleness=3)
    with serving(graph) as (world, _):
        worker = Worker(graph, world.port, 20)
        worker.end()
    assert max(worker.staleness) <= 3


def test_a_server_may_train_too() -> None:
    graph = graph_of("local", servers=0)
    with serving(graph) as (world, run):
        other = Worker(graph, world.port, 6)
        assert len(list(run.steps(10))) == 10
        other.end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        run.states()
        assert set(run.versions.values()) >= {run.rounds}
        net = pu.data.prepare(pu.zoo.mlp(batch=6, hidden=(8,)), DATA.train)
        scores = run.evaluate(pu.evaluation(net))
        assert 0 <= scores["accuracy"] <= 1


def test_the_server_measures_with_the_running_statistics_of_workers() -> None:
    net = pu.kinds.Net()
    x, label = net.data((6, 1, 28, 28))
    x = pu.kinds.batch_norm(pu.kinds.conv(x, 2, kernel=5, stride=4, name="conv"), name="bn")
    net.output(pu.kinds.softmax_loss(pu.kinds.inner_product(x, 10, name="fc"), label))
    step = pu.solvers.sgd(pu.backward(pu.data.prepare(net.graph(), DATA.train)), lr=0.05)
    graph = serve(step, HOSTS, "easgd", servers=1, every=PACE)
    with serving(graph) as (world, run):
        (name,) = (n for n in run.states() if n.endswith("bn/mean") and n.startswith("worker2/"))
        before = run.states()[name].clone()
        Worker(graph, world.port, 12).end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        first = run.states()[name].clone()
        assert not first.equal(before)
        Worker(graph, world.port, 2).end()  # begins with those of the server
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        assert run.states()[name].norm() > first.norm() / 2


def test_another_graph_and_a_missing_server_are_refused() -> None:
    with serving(graph_of("easgd")) as (world, _):
        with pytest.raises(ConfigError, match="another graph"):
            Worker(graph_of("easgd", alpha=0.125), world.port, 2).end()
        own, other = OpenWorld.joining("127.0.0.1", world.port), {"seed": 4, "share_cores": True}
        with pytest.raises(ConfigError, match="differ in their seed"):
            pu.Run(graph_of("easgd"), data=DATA, threads=1, world=own, **other)
        with pytest.raises(RunError, match="no seat"):
            OpenWorld.joining("127.0.0.1", world.port, seat=7)
    with pytest.raises(ConfigError, match="did you mean"):
        OpenWorld.joining("127.0.0.1", 1, transport="tpc")


def test_a_server_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    graph, name = graph_of("downpour"), "worker2/fc1/weight"
    with serving(graph) as (world, run):
        Worker(graph, world.port, 8).end()
        run.serve(lambda run: run.greeter is not None and not run.greeter.present)
        run.save(tmp_path)
        weight = run.states()[name]
    with run_of(graph, OpenWorld.serving()) as again:
        assert again.load(tmp_path) > 0
        assert again.states()[name].equal(weight)
