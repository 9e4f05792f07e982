"""Topology `native` over GPUs of several hosts, which are not there: right numbers, no race.

Hosts are threads, GPUs the stand-in of `stand_in`, and NCCL a meeting of the hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.core import Plan, compile_plan
from purine.errors import HostLostError
from purine.graph import Graph
from purine.job import RunFolder, Training, make_plan, merge
from purine.job.hosts import folder_on
from purine.lowering import Options, lower
from purine.lowering.hosts import hosts_of, part_of
from purine.lowering.together import Group, collective_of
from purine.placement.devices import as_locations
from purine.runtime import streams
from purine.runtime.enqueued import Enqueued
from purine.runtime.streams import StreamPlan, stream_plan
from purine.transports.communicator import Communicator, Mark
from purine.transports.inproc import InprocWorld
from tests.dispatch.test_host_core import ITERATIONS, Simulation
from tests.parallel.nets import Trained, images
from tests.runtime.host_cases import difference, subject, train
from tests.runtime.stand_in import PATIENCE, Event, StandIn, stand_in
from tests.runtime.test_hosts import on_hosts
from tests.runtime.test_shares import JOB, plans_of

__all__ = ["stand_in"]

SCHEMES: dict[str, dict[str, object]] = {
    "data": {},
    "pipeline": {"data": 2, "pipeline": 2},
    "shares": {"shares": (3, 1, 2, 2)},
}


def solver(net: Graph) -> Graph:
    return pu.solvers.sgd(net, lr=0.05, momentum=0.9, weight_decay=1e-3)


@cache
def step_of(name: str, devices: str, scheme: str = "data") -> Graph:
    given = {"data": len(as_locations(devices)), "topology": "native", **SCHEMES[scheme]}
    return pu.compose(subject(name).net, solver=solver, devices=devices, clip=0.5, **given)


def assert_trained(name: str, step: Graph) -> None:
    """Hosts train as one device does."""
    for found in on_hosts(partial(train, name, step), hosts=hosts_of(step), delay=0.001):
        assert isinstance(found, Trained), found
        assert difference(name, found) is None


@pytest.mark.parametrize(
    ("name", "devices", "scheme"),
    [
        ("lenet", "host0-1:cuda:0", "data"),
        ("gpt2", "host0-1:cuda:0", "data"),
        ("module", "host0-3:cuda:0", "data"),
        ("lenet", "host0-3:cuda:0", "pipeline"),
        ("lenet", "host0-1:cuda:0-1", "data"),
        ("module", "host0-1:cuda:0-1", "pipeline"),
        ("lenet", "host0-3:cuda:0", "shares"),
        ("module", "host0:cuda:0-1,host1:cuda:0,host2:cuda:0", "shares"),
    ],
)
def test_gpus_of_hosts_train_as_one_device(
    name: str, devices: str, scheme: str, stand_in: StandIn
) -> None:
    assert_trained(name, step_of(name, devices, scheme))
    assert stand_in.streams
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


@pytest.mark.parametrize(
    ("name", "devices", "scheme"),
    [
        ("module", "host0-3:cuda:0", "data"),
        ("module", "host0-1:cuda:0-1", "pipeline"),
        ("lenet", "host0-3:cuda:0", "pipeline"),
    ],
)
def test_hosts_that_wait_for_their_gpus_do_not_deadlock(
    name: str, devices: str, scheme: str
) -> None:
    """Also where replicas put values to each other before their gradients, as "module" does."""
    step = step_of(name, devices, scheme)
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    for seed in range(20):
        simulation = Simulation(parts, seed)
        simulation.run()
        assert {core.completed for core in simulation.cores.values()} == {ITERATIONS}, seed


def test_captured_steps_meet_too(stand_in: StandIn) -> None:
    assert_trained("lenet", pu.fuse(step_of("lenet", "host0-1:cuda:0"), devices=["cuda:0"]))
    assert stand_in.replays
    assert not stand_in.races, sorted(set(stand_in.races))[:5]


def test_a_job_trains_and_is_measured_as_alone(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = {"devices": "host0-1:cuda:0", "parallel": "topology=native"}
    plans = plans_of(monkeypatch, **JOB, **where, out=str(tmp_path / "both"))

    def work(world: InprocWorld) -> dict[str, object]:
        plan = plans[world.host]
        with Training(plan, folder_on(world, plan, None), world) as training:
            list(training.events())
            return training.summary()

    results = on_hosts(work)
    monkeypatch.delenv("RANK")
    alone = make_plan(merge({**JOB, "out": str(tmp_path / "alone")}))
    with Training(alone, RunFolder.create(alone.job, alone.net)) as training:
        list(training.events())
        expected = training.summary()
    for found in results:
        assert isinstance(found, dict), found
        assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
        assert found["parallel"] == "data=2,topology=native"


def collectives(graph: Graph, plan: Plan) -> set[int]:
    return {k for k, name in enumerate(plan.ops) if collective_of(graph.ops[name]) is not None}


def without_begin(graph: Graph, plan: Plan, found: StreamPlan) -> StreamPlan:
    """Collectives wait for nothing."""
    own = collectives(graph, plan)
    waits = (() if k in own else pairs for k, pairs in enumerate(found.waits))
    return replace(found, waits=tuple(waits))


def without_end(graph: Graph, plan: Plan, found: StreamPlan) -> StreamPlan:
    """Nothing waits for collectives."""
    own = collectives(graph, plan)
    waits = (tuple(pair for pair in pairs if pair[0] not in own) for pairs in found.waits)
    return replace(found, waits=tuple(waits))


def without_memory(graph: Graph, plan: Plan, found: StreamPlan) -> StreamPlan:
    """The allocator is not told what collectives read."""
    own = collectives(graph, plan)
    foreign = (() if k in own else blobs for k, blobs in enumerate(found.foreign))
    return replace(found, foreign=tuple(foreign))


@pytest.mark.parametrize("less", [without_begin, without_end, without_memory])
def test_a_wait_that_is_missing_is_a_race(
    less: Callable[[Graph, Plan, StreamPlan], StreamPlan],
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(graph: Graph, plan: Plan, program: object) -> StreamPlan:
        return less(graph, plan, stream_plan(graph, plan, program))  # type: ignore[arg-type]

    monkeypatch.setattr(streams, "stream_plan", planned)
    assert_trained("lenet", step_of("lenet", "host0-1:cuda:0"))
    assert stand_in.races


def test_all_collectives_of_a_gpu_have_one_stream() -> None:
    step = step_of("lenet", "host0-3:cuda:0", "pipeline")
    for host in hosts_of(step):
        graph = lower(step, Options(host=host)).graph
        plan = compile_plan(graph)
        queues = stream_plan(graph, plan).queue
        own = {queues[k] for k in collectives(graph, plan)}
        others = {queue for k, queue in enumerate(queues) if k not in collectives(graph, plan)}
        assert len(own) == 1
        assert not own & others


class Enqueuing(Communicator):
    """Calls return at once, as those of NCCL do. From call `last` on GPUs wait for a peer.

    What such a call leaves in its line is no result of any step.
    """

    enqueues = True

    def __init__(self, inner: Communicator, gpus: StandIn, last: int) -> None:
        self.inner, self.gpus, self.left = inner, gpus, last
        self.ends: list[str] = []

    def reduce(self, line: Tensor, root: str) -> None:
        self._call(self.inner.reduce, line, root)

    def broadcast(self, line: Tensor, root: str) -> None:
        self._call(self.inner.broadcast, line, root)

    def _call(self, call: Callable[[Tensor, str], None], line: Tensor, root: str) -> None:
        self.left -= 1
        if self.left > 0:
            call(line, root)
            return
        self.gpus.going.clear()
        line.fill_(float("nan"))

    def mark(self) -> Mark | None:
        return Event(self.gpus)

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")
        self.gpus.going.set()


def with_communicators(
    world: InprocWorld, wrap: Callable[[Communicator], Communicator]
) -> InprocWorld:
    make = world.communicators

    def communicators(groups: Sequence[Group]) -> list[Communicator | None]:
        return [None if one is None else wrap(one) for one in make(groups)]

    world.communicators = communicators  # type: ignore[method-assign]
    return world


def run_on(world: InprocWorld, step: Graph, compiled: bool | None = None) -> pu.Run:
    options = {"seed": 3, "threads": 1, "share_cores": True, "compiled": compiled}
    return pu.Run(step, data=images(), world=world, **options)  # type: ignore[arg-type]


def test_communicators_are_closed_when_all_hosts_are_through(stand_in: StandIn) -> None:
    step, made = step_of("lenet", "host0-1:cuda:0"), list[Enqueuing]()

    def wrap(inner: Communicator) -> Communicator:
        made.append(Enqueuing(inner, stand_in, last=10**6))
        return made[-1]

    def work(world: InprocWorld) -> list[float]:
        with run_on(with_communicators(world, wrap), step) as run:
            losses = [result.loss for result in run.steps(2)]
            run.set_states({name: value for name, value in run.states().items() if "fc" in name})
            return losses + [result.loss for result in run.steps(2)]

    one, other = on_hosts(work)
    assert isinstance(one, list), one
    assert one == other
    assert [communicator.ends for communicator in made] == [["close"]] * 4


def test_gpus_that_wait_for_a_lost_host_are_let_go(stand_in: StandIn) -> None:
    """The host waits for its GPU, which waits for a peer in the last collective of the run."""
    step, count = step_of("lenet", "host0-1:cuda:0"), 3
    calls = sum(collective_of(op) is not None for op in part_of(step, "host0").ops.values())
    made, leaves, over = list[Enqueuing](), threading.Event(), threading.Event()

    class Surviving(Enqueuing):
        def _call(self, call: Callable[[Tensor, str], None], line: Tensor, root: str) -> None:
            if self.left == 1:
                assert leaves.wait(PATIENCE)
            super()._call(call, line, root)

    class Dying(Enqueuing):
        """It does not come to the last call."""

        enqueues = False

        def _call(self, call: Callable[[Tensor, str], None], line: Tensor, root: str) -> None:
            self.left -= 1
            if self.left > 0:
                call(line, root)
            else:
                leaves.set()
                over.wait(PATIENCE)

    def wrap(kind: type[Enqueuing], inner: Communicator) -> Communicator:
        made.append(kind(inner, stand_in, last=calls * count))
        return made[-1]

    def survive(world: InprocWorld) -> None:
        with run_on(with_communicators(world, partial(wrap, Surviving)), step) as run:
            list(run.steps(count))
            run.states()

    def die(world: InprocWorld) -> None:
        with run_on(with_communicators(world, partial(wrap, Dying)), step) as run:
            next(run.steps(count))
            assert leaves.wait(PATIENCE)
            raise KeyboardInterrupt

    error, interrupt = on_hosts(lambda world: (survive if world.first else die)(world))
    over.set()
    assert isinstance(interrupt, KeyboardInterrupt), interrupt
    assert isinstance(error, HostLostError), error
    assert "host 'host1' is lost" in str(error)
    assert f"of iteration {count - 1}, for which op" in str(error)
    assert [one.ends for one in made if isinstance(one, Surviving)] == [["abort"]]


def test_a_host_that_leaves_ends_the_others_by_name(stand_in: StandIn) -> None:
    step = step_of("lenet", "host0-1:cuda:0")

    def work(world: InprocWorld) -> None:
        with run_on(world, step) as run:
            for result in run.steps(50):
                if world.host == "host1" and result.iteration == 3:
                    raise KeyboardInterrupt

    error, interrupt = on_hosts(work)
    assert isinstance(interrupt, KeyboardInterrupt)
    assert isinstance(error, HostLostError), error
    assert "host 'host1' is lost" in str(error)
    assert "waits" in str(error)


def test_values_of_abandoned_gpus_are_not_sent() -> None:
    class Silent(Enqueuing):
        def abort(self) -> None:
            pass

    group = Group("", ("host0", "host1"), ("cuda:0", "cuda:0"))
    gpus = StandIn()
    enqueued = Enqueued({group: Silent(Silent(None, gpus, 0), gpus, 0)})  # type: ignore[arg-type]
    gpus.going.clear()
    enqueued.add(4, 7, group)
    enqueued.add(5, 7, group)
    assert enqueued.oldest() == (4, 7)
    value = torch.ones(2)
    assert enqueued.right(value) is value
    enqueued.abandon()
    with pytest.raises(RuntimeError, match="stopped waiting"):
        enqueued.right(value)
    assert enqueued.oldest() is None
