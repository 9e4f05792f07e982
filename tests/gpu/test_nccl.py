"""Topology `native` over GPUs of several hosts, as far as one GPU allows.

NCCL refuses a GPU that is in a group twice. So hosts are threads that meet in memory, and what
they have made goes through a group of NCCL with one host each. Its streams, events and ends are
those of a real one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.errors import HostLostError
from purine.lowering.together import Group
from purine.transports.communicator import Communicator, Mark
from purine.transports.inproc import InprocWorld
from purine.transports.processes import ProcessWorld
from tests.parallel.nets import Trained, images
from tests.runtime.host_cases import difference, train
from tests.runtime.test_gpu_hosts import run_on, step_of, with_communicators
from tests.runtime.test_hosts import on_hosts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

ALONE = Group("", ("host0",), ("cuda:0",))
LONG = 2_000_000_000
"""Clocks of a GPU in about a second."""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWorld]:
    """A world of one process."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", **where}.items():
        monkeypatch.setenv(name, value)
    world = ProcessWorld("tcp")
    yield world
    world.close()


def communicator_of(world: ProcessWorld) -> Communicator:
    (communicator,) = world.communicators([ALONE])
    assert communicator is not None
    return communicator


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_calls_are_ops_of_the_current_stream(dtype: torch.dtype, world: ProcessWorld) -> None:
    communicator = communicator_of(world)
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        line = torch.zeros(1 << 20, dtype=dtype, device="cuda")
        communicator.reduce(line, "host0")  # connects, and loads the library's kernels
        communicator.broadcast(line, "host0")
        line.add_(1).mul_(2)
        stream.synchronize()
        line.zero_()
        torch.cuda._sleep(LONG)
        line += 1
        communicator.reduce(line, "host0")
        line += 2
        communicator.broadcast(line, "host0")
        line *= 2
        mark = communicator.mark()
    assert mark is not None
    assert not mark.query(), "both calls have returned before the GPU has begun them"
    stream.synchronize()
    assert mark.query()
    assert line.double().unique().tolist() == [6.0]
    communicator.close()


def test_an_ended_group_makes_room_for_another(world: ProcessWorld) -> None:
    for end in ("close", "abort", "close"):
        communicator = communicator_of(world)
        line = torch.ones(1 << 20, device="cuda")
        communicator.reduce(line, "host0")
        torch.cuda.synchronize()
        getattr(communicator, end)()
        communicator.abort()
        assert line.sum().item() == 1 << 20


class Through(Communicator):
    """A meeting of hosts in memory, and then a group of NCCL with one host."""

    enqueues = True

    def __init__(self, inner: Communicator, real: Communicator) -> None:
        self.inner, self.real = inner, real
        self.ends: list[str] = []

    def reduce(self, line: Tensor, root: str) -> None:
        self.inner.reduce(line, root)
        self.real.reduce(line, "host0")

    def broadcast(self, line: Tensor, root: str) -> None:
        self.inner.broadcast(line, root)
        self.real.broadcast(line, "host0")

    def mark(self) -> Mark | None:
        return self.real.mark()

    def close(self) -> None:
        self.real.close()
        self.ends.append("close")

    def abort(self) -> None:
        self.real.abort()
        self.ends.append("abort")


def wrapped(
    world: ProcessWorld, count: int
) -> tuple[list[Through], Callable[[Communicator], Communicator]]:
    """Communicators for some hosts, which are threads and do not all make groups at one time."""
    ready = [communicator_of(world) for _ in range(count)]
    made: list[Through] = []

    def wrap(inner: Communicator) -> Communicator:
        made.append(Through(inner, ready.pop()))
        return made[-1]

    return made, wrap


@pytest.mark.parametrize("name", ["lenet", "module"])
def test_two_hosts_train_as_one_device(name: str, world: ProcessWorld) -> None:
    step = step_of(name, "host0-1:cuda:0")
    made, wrap = wrapped(world, 2)

    def work(own: InprocWorld) -> Trained:
        return train(name, step, with_communicators(own, wrap))

    for found in on_hosts(work):
        assert isinstance(found, Trained), found
        assert difference(name, found) is None
    assert [one.ends for one in made] == [["close"], ["close"]]


def test_captured_steps_meet_too(world: ProcessWorld) -> None:
    """One host compiles and captures, beside the collectives: two in a process cannot at once."""
    step = pu.fuse(step_of("mlp", "host0-1:cuda:0"), devices=["cuda:0"])
    _, wrap = wrapped(world, 2)

    def work(own: InprocWorld) -> list[float]:
        compiled = None if own.first else False
        with run_on(with_communicators(own, wrap), step, compiled=compiled) as run:
            return [result.loss for result in run.steps(6)]

    with pu.Run(step_of("mlp", "cpu:0"), data=images(), seed=3) as run:
        alone = [result.loss for result in run.steps(6)]
    for found in on_hosts(work):
        assert isinstance(found, list), found
        assert found == pytest.approx(alone, rel=1e-9)


def test_a_host_that_leaves_ends_the_others_by_name(world: ProcessWorld) -> None:
    step = step_of("mlp", "host0-1:cuda:0")
    made, wrap = wrapped(world, 2)

    def work(own: InprocWorld) -> None:
        with run_on(with_communicators(own, wrap), step) as run:
            for result in run.steps(50):
                if own.host == "host1" and result.iteration == 3:
                    raise KeyboardInterrupt

    error, interrupt = on_hosts(work)
    assert isinstance(interrupt, KeyboardInterrupt), interrupt
    assert isinstance(error, HostLostError), error
    assert "host 'host1' is lost" in str(error)
    assert [one.ends for one in made] == [["abort"], ["abort"]]
    assert torch.ones(9, device="cuda").sum().item() == 9.0


def test_two_hosts_on_one_gpu_are_refused(tmp_path: Path) -> None:
    words = ["--net", "mlp", "--batch", "40", "--iters", "3", "--data", "fashion-mini"]
    where = ["--devices", "host0-1:cuda:0", "--parallel", "topology=native"]
    where += ["--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "purine", "launch", "--hosts", "2", "--", "train"]
    done = subprocess.run(
        [*command, *words, *where], capture_output=True, text=True, timeout=150, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "cuda:0 of host0 and cuda:0 of host1 are one GPU" in said, said
