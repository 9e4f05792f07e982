"""Hosts with unequal shares of a batch, and of different device sorts, train as one device."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import purine as pu
from purine.core import compile_plan
from purine.graph import Graph
from purine.job import JobPlan, RunFolder, Training, make_plan, merge
from purine.job.hosts import folder_on
from purine.lowering import Options, lower
from purine.lowering.hosts import hosts_of
from purine.runtime.streams import stream_plan
from purine.transports.inproc import InprocWorld
from tests.forked import start_hosts
from tests.parallel.nets import Trained, agree, float64, images, trained
from tests.parallel.test_batch_norm import small
from tests.runtime.stand_in import StandIn, stand_in
from tests.runtime.test_hosts import on_hosts

__all__ = ["stand_in"]

SOLVER = partial(pu.solvers.sgd, lr=0.05, momentum=0.9, weight_decay=1e-3)
BATCH, STEPS = 24, 3
PLACES = {
    "one host": ("cpu:0-2", (3, 1, 2)),
    "two hosts": ("host0-1:cpu:0", (3, 1)),
    "two hosts of several": ("host0:cpu:0-1,host1:cpu:0", (2, 1, 3)),
    "four hosts": ("host0-3:cpu:0", (3, 1, 2, 6)),
}
TOPOLOGIES = ("sharded", "server", "tree", "ring")


def net() -> Graph:
    return float64(pu.zoo.mlp(batch=BATCH))


@cache
def serial() -> Trained:
    step = SOLVER(pu.solvers.clip_by_norm(pu.backward(net()), 0.5))
    return trained(step, steps=STEPS)


def run_on(world: InprocWorld | None, step: Graph, **options: object) -> Trained:
    with pu.Run(step, seed=3, threads=1, share_cores=True, world=world, **options) as run:  # type: ignore[arg-type]
        losses = [result.loss for result in run.steps(STEPS)]
        states = run.states()
    return Trained(losses, dict(pu.parallel.gather_values(step, states)))


def on_all(step: Graph, **options: object) -> list[Trained]:
    hosts = hosts_of(step)
    if len(hosts) == 1:
        return [run_on(None, step, **options)]
    results = on_hosts(lambda world: run_on(world, step, **options), hosts=hosts)
    for found in results:
        assert isinstance(found, Trained), found
    return [found for found in results if isinstance(found, Trained)]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("places", PLACES)
def test_unequal_shares_train_as_one_device(places: str, topology: str) -> None:
    devices, shares = PLACES[places]
    step = pu.compose(
        net(),
        solver=SOLVER,
        devices=devices,
        clip=0.5,
        shares=shares,
        topology=topology,
        unit=1 << 16,
    )
    sizes = [step.blobs[f"replica{k}/data"].shape for k in range(len(shares))]
    assert [size[0] for size in sizes if size] == [BATCH * n // sum(shares) for n in shares]
    for found in on_all(step, data=images()):
        agree(found, serial())


@pytest.mark.parametrize("devices", ["cpu:0-1", "host0-1:cpu:0"])
def test_synchronised_batch_norm_counts_samples(devices: str) -> None:
    solver = partial(pu.solvers.sgd, lr=0.1, momentum=0.9)
    data = images((2, 5, 5))
    step = pu.compose(
        small(12), solver=solver, devices=devices, shares=(1, 2), batch_norm="synchronised"
    )
    expected = trained(solver(pu.backward(small(12))), data=data, steps=STEPS)
    for found in on_all(step, data=data):
        agree(found, expected)


def test_a_host_with_a_share_of_its_own_builds_the_whole_step() -> None:
    made = partial(pu.compose, net(), solver=SOLVER, devices="host0-1:cpu:0")
    assert made(shares=(3, 1), host="host1") == made(shares=(3, 1))
    assert made(shares=(2, 2), host="host1") == made(data=2, host="host1")
    assert made(shares=(2, 2)) == made(data=2)


def test_a_checkpoint_goes_on_with_other_shares_and_hosts(tmp_path: Path) -> None:
    made = partial(pu.compose, net(), solver=SOLVER, clip=0.5)
    first = made(devices="host0-1:cpu:0", shares=(3, 1))

    def work(world: InprocWorld) -> list[float]:
        with pu.Run(first, data=images(), seed=3, share_cores=True, threads=1, world=world) as run:
            losses = [result.loss for result in run.steps(1)]
            run.save(tmp_path)
            return losses

    (losses, _) = on_hosts(work)
    assert isinstance(losses, list), losses
    for shares in ((1, 5), (1, 2, 1)):
        step = made(devices=f"cpu:0-{len(shares) - 1}", shares=shares)
        with pu.Run(step, data=images(), threads=1, share_cores=True) as run:
            run.load(tmp_path)
            rest = [result.loss for result in run.steps(STEPS - 1)]
        assert [*losses, *rest] == pytest.approx(serial().losses, rel=1e-9)


@pytest.mark.multiprocess
def test_processes_with_unequal_shares_train_as_one_device() -> None:
    cases = ["mlp/shares", "mlp/shares-pipeline"]
    for host in start_hosts("-m", "tests.runtime.host_cases", "shm", *cases):
        code, out, err = host.ended(240)
        assert code == 0, err
        told = [json.loads(line) for line in out.splitlines()]
        assert [row["case"] for row in told] == cases
        assert not [row["wrong"] for row in told if row["wrong"]]


MIXED = "host0:cuda:0,host1:cpu:0"


@pytest.mark.parametrize("topology", ["sharded", "ring"])
@pytest.mark.parametrize("fused", [False, True], ids=["op by op", "captured"])
def test_a_gpu_and_the_cores_of_another_host_train_as_one_device(
    topology: str, fused: bool, stand_in: StandIn
) -> None:
    step = pu.compose(
        net(), solver=SOLVER, devices=MIXED, clip=0.5, shares=(3, 1), topology=topology
    )
    step = pu.fuse(step, devices=["cuda:0"]) if fused else step
    for found in on_all(step, data=images()):
        agree(found, serial())
    assert stand_in.streams
    assert not fused or stand_in.replays


def test_what_comes_from_another_host_has_a_stream_of_its_own() -> None:
    step = pu.compose(net(), solver=SOLVER, devices=MIXED, shares=(3, 1))
    graph = lower(step, Options(host="host0")).graph
    plan = compile_plan(graph)
    found = stream_plan(graph, plan)
    at = {name: index for index, name in enumerate(plan.ops)}
    arrivals = [op for op in graph.ops.values() if op.kind == "Arrival" and op.outputs]
    puts = [op for op in graph.ops.values() if op.kind == "Put" and op.inputs]
    assert arrivals
    assert puts
    for op in arrivals:
        assert found.queue[at[op.name]][1]
        readers = graph.consumers.get(op.outputs[0], ())
        for reader in readers:
            assert (at[op.name], 0) in found.waits[at[reader.name]]
            assert op.outputs[0] in found.foreign[at[reader.name]]
    for op in puts:
        maker = graph.producers.get(op.inputs[0])
        if maker is not None and found.queue[at[maker.name]] != found.queue[at[op.name]]:
            assert (at[maker.name], 0) in found.waits[at[op.name]]


def plans_of(monkeypatch: pytest.MonkeyPatch, **options: object) -> dict[str, JobPlan]:
    """The plan of a job of two hosts on each of them."""
    plans = {}
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        plans[f"host{rank}"] = make_plan(merge(options))
    return plans


JOB = {"net": "mlp", "batch": 40, "iters": 6, "test_every": 3, "save_every": 3, "compile": False}


def test_a_host_measures_on_a_device_that_it_has(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = str(tmp_path / "mixed")
    parallel = "data=2,shares=3:1"
    plans = plans_of(monkeypatch, **JOB, devices=MIXED, parallel=parallel, out=out)
    devices = {}
    for host, plan in plans.items():
        assert plan.test is not None
        devices[host] = plan.test.ops["fc1"].location.device
    assert devices == {"host0": "cuda:0", "host1": "cpu:0"}

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
        assert found["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=2e-3)
        assert found["parallel"] == parallel


def test_a_host_needs_no_device_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: the host with the cores is planned, the other one refused."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    job = merge({**JOB, "devices": MIXED, "parallel": "shares=3:1"})
    monkeypatch.setenv("RANK", "1")
    plan = make_plan(job)
    assert plan.job.parallel == "data=2,shares=3:1"
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(pu.PurineError, match="device cuda:0 is not there"):
        make_plan(job)


def test_tf32_is_for_the_hosts_that_have_gpus(stand_in: StandIn) -> None:
    step = pu.compose(net(), solver=SOLVER, devices=MIXED, clip=0.5, data=2)
    for found in on_all(step, data=images(), tf32=True):
        agree(found, serial())
