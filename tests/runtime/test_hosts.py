"""Steps on several hosts give the numbers of the same step on one device."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.transports.inproc import InprocWorld, inproc_worlds
from tests.parallel.nets import Trained, agree, float64, images, trained
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

    threads = [threading.Thread(target=call, args=(world,), daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a host hangs"
    return [results[host] for host in hosts]


def composed(scheme: Mapping[str, object]) -> Graph:
    return pu.compose(net(), solver=solver, devices="host0-1:cpu:0-1", clip=0.5, **scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_hosts_train_as_one_device(scheme: str) -> None:
    step = composed(SCHEMES[scheme])

    def work(world: InprocWorld) -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(5)]
            states = run.states()
        whole = pu.parallel.gather_values(step, states)
        return Trained(losses, dict(whole))

    one, other = on_hosts(work, delay=0.001)
    assert isinstance(one, Trained), one
    assert isinstance(other, Trained), other
    agree(one, serial())
    assert one.losses == other.losses
    assert all(torch.equal(value, other.states[name]) for name, value in one.states.items())


@pytest.mark.parametrize(
    ("net", "scheme", "hosts"),
    [
        ("googlenet", "data", 2),
        ("gpt2", "data-model", 2),
        ("gpt2", "pipeline", 2),
        ("module", "model", 2),
        ("module", "ring", 4),
        ("lenet", "data-pipeline", 4),
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


def test_hosts_with_different_seeds_do_not_start() -> None:
    step = composed({})

    def work(world: InprocWorld) -> None:
        pu.Run(step, data=images(), seed=HOSTS.index(world.host), share_cores=True, world=world)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError)
        assert "differ in their seed" in str(error)
        assert "0 on host0" in str(error)
        assert "1 on host1" in str(error)


def test_all_hosts_stop_at_one_iteration() -> None:
    """Though one of them wants it, and they are at different iterations then."""

    def work(world: InprocWorld) -> int:
        iteration = 0 if world.host == "host1" else 3
        while not world.stops(iteration, wanted=world.host == "host1" and iteration == 5, ahead=9):
            iteration += 1
            time.sleep(0.001)
        return iteration

    assert on_hosts(work) == [15, 15]


def test_a_process_alone_cannot_run_two_hosts() -> None:
    with pytest.raises(ConfigError, match="this process is alone") as caught:
        pu.Run(composed({}), data=images(), share_cores=True)
    assert "purine launch --hosts 2" in str(caught.value)


def test_a_host_that_fails_ends_the_others_by_name() -> None:
    step = composed({})

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
from purine.transports.processes import ProcessWorld
from tests.runtime.test_hosts import composed, images
world = ProcessWorld(sys.argv[1])
try:
    with pu.Run(
        composed({}), data=images(), seed=3, threads=1, share_cores=True, world=world
    ) as run:
        for result in run.steps(int(sys.argv[2])):
            if result.iteration < 5:
                print(result.loss, flush=True)
    world.close()
except pu.PurineError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(2)  # a thread may wait for the lost host
"""


def started(
    transport: str, *words: str, hosts: int = 2, program: Sequence[str] = ("-c", SCRIPT)
) -> list[subprocess.Popen[str]]:
    if transport == "gaspi":
        needs_gpi2()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, *program, transport, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(hosts),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(hosts)
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize("transport", ["shm", "tcp", "torchdist", "gaspi"])
def test_processes_train_as_one_device(transport: str) -> None:
    processes = started(transport, "5")
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        for found, expected in zip(map(float, out.split()), serial().losses, strict=True):
            assert abs(found - expected) < 1e-9


@pytest.mark.multiprocess
def test_four_processes_train_as_one_device() -> None:
    cases = ["module/data-pipeline", "lenet/data-model"]
    program = ("-m", "tests.runtime.host_cases")
    for process in started("shm", *cases, hosts=4, program=program):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        told = [json.loads(line) for line in out.splitlines()]
        assert [row["case"] for row in told] == cases
        assert not [row["wrong"] for row in told if row["wrong"]]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("transport", "number"),
    [
        ("shm", signal.SIGKILL),
        ("shm", signal.SIGSTOP),
        ("tcp", signal.SIGKILL),
        ("tcp", signal.SIGSTOP),
        ("torchdist", signal.SIGKILL),
        ("torchdist", signal.SIGSTOP),
        ("gaspi", signal.SIGKILL),
    ],
)
def test_a_host_that_dies_or_hangs_is_named(transport: str, number: signal.Signals) -> None:
    one, other = started(transport, "100000")
    try:
        assert one.stdout is not None
        assert one.stdout.readline(), "it trains"
        other.send_signal(number)
        begun = time.monotonic()
        _, err = one.communicate(timeout=120)
        assert time.monotonic() - begun < 10.0, "what is promised"
        assert one.returncode == 2
        assert "host 'host1' is lost" in err
        assert re.search("expected: blob '.+' of iteration [0-9]+, for which op '.+' waits", err)
    finally:
        for process in (one, other):
            process.kill()
            process.wait()
