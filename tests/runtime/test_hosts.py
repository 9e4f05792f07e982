"""Steps on several hosts give the numbers of the same step on one device."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch

import purine as pu
from purine.data.source import Indices, Source
from purine.errors import ConfigError, DataError, PurineError, RunError
from purine.graph import Graph, save_yaml
from purine.parallel.reduce import Topology
from purine.runtime import checkpoint
from purine.transports.inproc import InprocWorld, inproc_worlds
from tests.forked import start_hosts
from tests.parallel.nets import Trained, agree, float64, images, lenet, trained
from tests.runtime.host_cases import SCHEMES, difference, step_of, train
from tests.transports.gpi2 import needs_gpi2

T = TypeVar("T")
HOSTS = ("host0", "host1")


def solver(net: Graph) -> Graph:
    return pu.solvers.sgd(net, lr=0.05, momentum=0.9, weight_decay=1e-3)


@cache
def net() -> Graph:
    return float64(pu.zoo.lenet(batch=8))


@cache
def serial() -> Trained:
    step = solver(pu.solvers.clip_by_norm(pu.backward(net()), 0.5))
    return trained(step)


def on_hosts(
    work: Callable[[InprocWorld], T],
    *,
    hosts: Sequence[str] = HOSTS,
    delay: float = 0.0,
    loss: float = 0.0,
) -> list[T | BaseException]:
    """What each host returns or raises; hosts are threads."""
    worlds = inproc_worlds(hosts, delay=delay, loss=loss)
    results: dict[str, T | BaseException] = {}

    def call(world: InprocWorld) -> None:
        try:
            results[world.host] = work(world)
        except BaseException as error:
            results[world.host] = error

    threads = [
        threading.Thread(target=call, args=(world,), name=world.host, daemon=True)
        for world in worlds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a host hangs"
    return [results[host] for host in hosts]


def composed(scheme: Mapping[str, object], devices: str = "host0-1:cpu:0-1") -> Graph:
    return pu.compose(net(), solver=solver, devices=devices, clip=0.5, **scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_hosts_train_as_one_device(scheme: str, tmp_path: Path) -> None:
    step = composed(SCHEMES[scheme])

    def work(world: InprocWorld) -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            states = run.states()
            run.save(tmp_path)
        whole = pu.parallel.gather_values(step, states)
        return Trained(losses, dict(whole))

    one, other = on_hosts(work, delay=0.001)
    assert isinstance(one, Trained), one
    assert isinstance(other, Trained), other
    agree(one, serial())
    assert one.losses == other.losses
    saved = checkpoint.load(tmp_path).values
    assert saved.keys() == one.states.keys()
    for name, value in one.states.items():
        assert torch.equal(value, other.states[name])
        assert torch.equal(value, saved[name])


def test_gradients_that_are_laid_out_arrive_as_they_are() -> None:
    half = float64(pu.zoo.lenet(batch=4))
    step = solver(pu.solvers.clip_by_norm(pu.backward(half), 0.5))
    step = pu.layout(pu.parallel.replicate(step, "host0-1:cpu:0", unit=1 << 14))

    def work(world: InprocWorld) -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            states = run.states()
        return Trained(losses, dict(pu.parallel.gather_values(step, states)))

    for found in on_hosts(work):
        assert isinstance(found, Trained), found
        agree(found, serial())


def test_with_one_core_the_thread_of_averages_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purine.runtime.executor.available", lambda: (0,))
    step = composed(SCHEMES["data"], devices="host0-3:cpu:0")
    names: set[str] = set()

    def work(world: InprocWorld) -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            names.update(thread.name for thread in threading.enumerate())
            states = run.states()
        return Trained(losses, dict(pu.parallel.gather_values(step, states)))

    for found in on_hosts(work, hosts=[f"host{k}" for k in range(4)], delay=0.001):
        assert isinstance(found, Trained), found
        agree(found, serial())
    assert sum(name.endswith("inbound") for name in names) == 4


@pytest.mark.parametrize(
    ("net", "scheme", "hosts"),
    [
        ("googlenet", "data", 2),
        ("gpt2", "data-model", 2),
        ("gpt2", "pipeline", 2),
        ("module", "model", 2),
        ("module", "ring", 4),
        ("lenet", "data-pipeline", 4),
        ("module", "native", 4),
        ("lenet", "native-pipeline", 4),
    ],
)
def test_nets_train_on_hosts_as_on_one_device(net: str, scheme: str, hosts: int) -> None:
    step, names = step_of(net, scheme, hosts), [f"host{number}" for number in range(hosts)]
    for found in on_hosts(lambda world: train(net, step, world), hosts=names, delay=0.001):
        assert isinstance(found, Trained), found
        assert difference(net, found) is None


def test_delays_do_not_change_a_bit() -> None:
    step = composed({})

    def work(world: InprocWorld) -> list[float]:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            return [result.loss for result in run.steps(6)]

    assert on_hosts(work) == on_hosts(work, delay=0.01)


def test_a_checkpoint_of_two_hosts_goes_on_on_one(tmp_path: Path) -> None:
    step = composed({})

    def work(world: InprocWorld) -> list[float]:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(3)]
            assert run.save(tmp_path).exists()
            return losses

    first, _ = on_hosts(work)
    alone = solver(pu.solvers.clip_by_norm(pu.backward(net()), 0.5))
    with pu.Run(alone, data=images(), threads=1) as run:
        run.load(tmp_path)
        rest = [result.loss for result in run.steps(2)]
    assert isinstance(first, list)
    for found, expected in zip([*first, *rest], serial().losses, strict=True):
        assert abs(found - expected) < 1e-9


def test_a_closed_run_keeps_its_own_states_and_gathers_when_asked() -> None:
    step = composed({})

    def work(world: InprocWorld) -> tuple[int, int, dict[str, torch.Tensor]]:
        gathered: list[object] = []
        gather = world.gather
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            world.gather = lambda *given: (gathered.append(given), gather(*given))[1]  # type: ignore[method-assign]
            list(run.steps(5))
        closing = len(gathered)
        return closing, len(run._settled()[1]), run.states()

    one, other = on_hosts(work)
    assert isinstance(one, tuple), one
    assert isinstance(other, tuple), other
    assert one[0] == other[0] == 0
    assert one[1] + other[1] < 2 * len(step.states)
    whole = pu.parallel.gather_values(step, one[2])
    for name, value in serial().states.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(value, other[2][name]) for name, value in one[2].items())


class Watched(Source):
    """A source that notes which samples it is asked for."""

    def __init__(self, source: Source) -> None:
        self.source, self.fields, self.classes = source, source.fields, source.classes
        self.asked: list[set[int]] = []

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        self.asked.append({int(index) for index in indices})
        return self.source.batch(indices)


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"host{number}" for number in range(count))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_hosts_share_out_one_shuffle_that_is_the_same_for_any_number(count: int) -> None:
    steps, batch, order = 6, 8, pu.data.Order(50, seed=3)
    devices = "cpu:0" if count == 1 else f"host0-{count - 1}:cpu:0"
    small = float64(pu.zoo.mlp(batch=batch, hidden=(4,)))
    step = pu.compose(small, solver=solver, devices=devices)

    def work(world: InprocWorld) -> list[set[int]]:
        source = Watched(images(count=50).train)
        data, hosts = pu.data.DataSet("watched", source), world if count > 1 else None
        settings = {"seed": 3, "prefetch": 0, "threads": 1, "share_cores": True}
        with pu.Run(step, data=data, world=hosts, **settings) as run:  # type: ignore[arg-type]
            source.asked.clear()  # what was compared at the start
            list(run.steps(steps))
        return source.asked

    asked = on_hosts(work, hosts=names_of(count))
    for iteration in range(steps):
        whole = [int(index) for index in order.indices(iteration * batch, batch)]
        for number, own in enumerate(asked):
            assert isinstance(own, list), own
            size = batch // count
            assert own[iteration] == {*whole[number * size : (number + 1) * size]}


@pytest.mark.parametrize(("count", "samples"), [(2, 50), (3, 50), (3, 11), (2, 48)])
def test_hosts_share_out_the_test_set(count: int, samples: int) -> None:
    small = float64(pu.zoo.mlp(batch=12, hidden=(4,)))
    tested, data, testing = images(count=samples).train, images(), pu.evaluation(small)
    alone = pu.compose(small, solver=solver, devices="cpu:0")
    with pu.Run(alone, data=pu.data.DataSet("one", data.train, tested), seed=3) as run:
        expected = run.evaluate(testing)
    step = pu.compose(small, solver=solver, devices=f"host0-{count - 1}:cpu:0")

    def work(world: InprocWorld) -> tuple[dict[str, float], list[set[int]]]:
        source = Watched(tested)
        both = pu.data.DataSet("two", data.train, source)
        with pu.Run(step, data=both, seed=3, threads=1, share_cores=True, world=world) as run:
            source.asked.clear()
            return run.evaluate(testing), source.asked

    results = on_hosts(work, hosts=names_of(count))
    read: list[int] = []
    for result in results:
        assert isinstance(result, tuple), result
        means, asked = result
        assert means == pytest.approx(expected, rel=1e-12)
        assert means == results[0][0]  # type: ignore[index]
        read += [index for indices in asked for index in indices]
    assert sorted(read) == list(range(samples))


def test_an_error_in_a_test_ends_all_hosts() -> None:
    small = float64(pu.zoo.mlp(batch=12, hidden=(4,)))
    step = pu.compose(small, solver=solver, devices="host0-1:cpu:0")
    testing = pu.evaluation(small)

    class Broken(Watched):
        def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
            if max(indices) > 40 and len(indices) == 12:
                raise DataError("sample 41 is damaged")
            return super().batch(indices)

    def work(world: InprocWorld) -> None:
        data = pu.data.DataSet("broken", images().train, Broken(images(count=48).train))
        with pu.Run(step, data=data, seed=3, threads=1, share_cores=True, world=world) as run:
            run.evaluate(testing)

    for error in on_hosts(work):
        assert isinstance(error, PurineError)
        assert "host1: " in str(error)
        assert "sample 41 is damaged" in str(error)


@pytest.mark.parametrize("topology", ["sharded", "tree", "ring", "native"])
def test_hosts_of_unequal_batch_train_as_one_device(topology: Topology) -> None:
    """A fast host takes 6 of 8 samples, on two devices."""
    parts = [lenet(4), lenet(2), lenet(2)]
    devices = ["host0:cpu:0", "host0:cpu:1", "host1:cpu:0"]
    step = pu.parallel.replicate(parts, devices, topology=topology)

    def work(world: InprocWorld) -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            return Trained(losses, pu.parallel.gather_values(step, run.states()))

    for found in on_hosts(work):
        assert isinstance(found, Trained), found
        agree(found, serial())


@pytest.mark.parametrize(("topology", "samples"), [("sharded", 1), ("server", 2), ("native", 2)])
def test_twenty_hosts_train_as_one_device(topology: Topology, samples: int) -> None:
    """More than send to one host, of which each builds its own part where batches are equal."""

    def small(batch: int) -> Graph:
        net = pu.backward(float64(pu.zoo.mlp(batch, classes=10, hidden=(4,))))
        return solver(pu.solvers.clip_by_norm(net, 0.5))

    count, sizes = 20, [1] * 13 + [samples] * 7
    names = names_of(count)
    one = small(1)
    parts = [one if size == 1 else small(size) for size in sizes]
    build = partial(
        pu.parallel.replicate, parts, f"host0-{count - 1}:cpu:0", topology=topology, unit=1 << 13
    )
    whole = build()
    steps = {name: build(only=name) if samples == 1 else whole for name in names}
    data = images(count=40)

    def work(world: InprocWorld) -> Trained:
        step = steps[world.host]
        with pu.Run(step, data=data, seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(2)]
            return Trained(losses, dict(pu.parallel.gather_values(step, run.states())))

    expected = trained(small(sum(sizes)), data=data, steps=2)
    for found in on_hosts(work, hosts=names):
        assert isinstance(found, Trained), found
        agree(found, expected)


@pytest.mark.parametrize("lead", [-5, -1, 0, 3, 9])
def test_all_hosts_stop_at_one_iteration(lead: int) -> None:
    """Though one of them wants it at iteration 5, when the other is `lead` iterations before it."""
    one, other = inproc_worlds(HOSTS)

    def stopped(world: InprocWorld, iterations: range, wanted: int | None = None) -> list[int]:
        return [
            iteration
            for iteration in iterations
            if world.stops(iteration, wanted=iteration == wanted, ahead=9)
        ]

    assert not stopped(one, range(5 + lead))
    assert not stopped(other, range(6), wanted=5)
    assert stopped(one, range(5 + lead, 20), wanted=11)[0] == 15
    assert stopped(other, range(6, 20))[0] == 15


def test_a_process_alone_cannot_run_two_hosts() -> None:
    with pytest.raises(ConfigError, match="this process is alone") as caught:
        pu.Run(composed({}), data=images(), share_cores=True)
    assert "purine launch --hosts 2" in str(caught.value)


@pytest.mark.parametrize("scheme", ["data", "native"])
def test_a_host_that_fails_ends_the_others_by_name(scheme: str) -> None:
    step = composed(SCHEMES[scheme])

    def work(world: InprocWorld) -> None:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            for result in run.steps(50):
                if world.host == "host1" and result.iteration == 3:
                    raise KeyboardInterrupt

    error, interrupt = on_hosts(work)
    assert isinstance(interrupt, KeyboardInterrupt)
    assert isinstance(error, RunError)
    assert "host 'host1' is lost" in str(error)
    assert "waits" in str(error)


SCRIPT = """
import os, sys
import purine as pu
from purine.graph import load_yaml
from purine.transports.processes import ProcessWorld
from tests.parallel.nets import images
transport, steps, step = sys.argv[1:]
world = ProcessWorld(transport)
try:
    with pu.Run(
        load_yaml(step), data=images(), seed=3, threads=1, share_cores=True, world=world
    ) as run:
        for result in run.steps(int(steps)):
            if result.iteration < 5:
                print(result.loss, flush=True)
    world.close()
except pu.PurineError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(2)  # a thread may wait for the lost host
"""


def step_in(folder: Path, scheme: str = "data") -> Path:
    """The file of a step on two hosts."""
    save_yaml(composed(SCHEMES[scheme]), folder / "step.yaml")
    return folder / "step.yaml"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("transport", "scheme"),
    [
        ("shm", "data"),
        ("tcp", "data"),
        ("torchdist", "data"),
        ("gaspi", "data"),
        ("tcp", "native"),
        ("torchdist", "native"),
    ],
)
def test_processes_train_as_one_device(transport: str, scheme: str, tmp_path: Path) -> None:
    if transport == "gaspi":
        needs_gpi2()
    for host in start_hosts("-c", SCRIPT, transport, "5", step_in(tmp_path, scheme)):
        code, out, err = host.ended(120)
        assert code == 0, err
        for found, expected in zip(map(float, out.split()), serial().losses, strict=True):
            assert abs(found - expected) < 1e-9


@pytest.mark.multiprocess
def test_four_processes_train_as_one_device() -> None:
    cases = ["module/data-pipeline", "lenet/data-model", "lenet/native-pipeline"]
    program = ("-m", "tests.runtime.host_cases", "shm", *cases)
    for host in start_hosts(*program, count=4):
        code, out, err = host.ended(120)
        assert code == 0, err
        told = [json.loads(line) for line in out.splitlines()]
        assert [row["case"] for row in told] == cases
        assert not [row["wrong"] for row in told if row["wrong"]]


ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
"""With one core, a host over `shm` computes, puts and receives on one thread."""


@pytest.mark.multiprocess
def test_hosts_with_one_core_train_as_one_device() -> None:
    cases = ["googlenet/shared", "lenet/data", "lenet/data-pipeline", "lenet/native"]
    run = f"import tests.runtime.host_cases as cases; cases.run_host('shm', {cases})"
    for host in start_hosts("-c", ONE_CORE + run, count=4):
        code, out, err = host.ended(120)
        assert code == 0, err
        told = [json.loads(line) for line in out.splitlines()]
        assert [row["case"] for row in told] == cases
        assert not [row["wrong"] for row in told if row["wrong"]]


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_with_one_core_names_one_that_is_lost(
    number: signal.Signals, tmp_path: Path
) -> None:
    words = ("-c", ONE_CORE + SCRIPT, "shm", "100000", step_in(tmp_path, "shared"))
    one, other = start_hosts(*words)
    try:
        assert one.out.readline(), "it trains"
        os.kill(other.pid, number)
        code, _, err = one.ended(10.0)  # what is promised
        assert code == 2
        assert "host 'host1' is lost" in err
    finally:
        for host in (one, other):
            host.kill()


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("transport", "number", "scheme"),
    [
        ("shm", signal.SIGKILL, "data"),
        ("shm", signal.SIGSTOP, "data"),
        ("tcp", signal.SIGKILL, "data"),
        ("tcp", signal.SIGSTOP, "data"),
        ("torchdist", signal.SIGKILL, "data"),
        ("torchdist", signal.SIGSTOP, "data"),
        ("gaspi", signal.SIGKILL, "data"),
        ("tcp", signal.SIGKILL, "native"),
        ("tcp", signal.SIGSTOP, "native"),
    ],
)
def test_a_host_that_dies_or_hangs_is_named(
    transport: str, number: signal.Signals, scheme: str, tmp_path: Path
) -> None:
    if transport == "gaspi":
        needs_gpi2()
    words = ("-c", SCRIPT, transport, "100000", step_in(tmp_path, scheme))
    one, other = start_hosts(*words)
    try:
        assert one.out.readline(), "it trains"
        os.kill(other.pid, number)
        code, _, err = one.ended(10.0)  # what is promised
        assert code == 2
        assert "host 'host1' is lost" in err
        assert re.search("expected: blob '.+' of iteration [0-9]+, for which op '.+' waits", err)
    finally:
        for host in (one, other):
            host.kill()


@pytest.mark.parametrize("topology", ["sharded", "tree", "ring"])
def test_hosts_that_build_their_own_part_alone_train_as_one_device(
    topology: str, tmp_path: Path
) -> None:
    hosts = ("host0", "host1", "host2", "host3")
    scheme = {"data": 4, "topology": topology}
    steps = {host: own_step(host, "host0-3:cpu:0", **scheme) for host in hosts}

    def work(world: InprocWorld) -> Trained:
        step = steps[world.host]
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            run.save(tmp_path)
            return Trained(losses, dict(pu.parallel.gather_values(step, run.states())))

    for found in on_hosts(work, hosts=hosts, delay=0.001):
        assert isinstance(found, Trained), found
        agree(found, serial())
    saved = checkpoint.load(tmp_path).values
    assert saved.keys() == serial().states.keys()


def own_step(host: str, devices: str, **scheme: object) -> Graph:
    return pu.compose(net(), solver=solver, devices=devices, clip=0.5, host=host, **scheme)


def test_hosts_whose_own_parts_do_not_fit_do_not_start() -> None:
    units = {"host0": 1 << 18, "host1": 1 << 16}
    steps = {host: own_step(host, "host0-1:cpu:0", data=2, unit=units[host]) for host in HOSTS}

    def work(world: InprocWorld) -> None:
        step = steps[world.host]
        pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError), error
        assert "differ in their step" in str(error)
