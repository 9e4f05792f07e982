"""Checkpoints of several hosts: written by the owners of states, whole or absent, for any hosts."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import purine as pu
from purine.errors import CheckpointError, HostLostError, PurineError
from purine.graph import Builder, Graph, Location
from purine.placement.values import shards_of
from purine.registry.fillers import Shard
from purine.runtime import checkpoint, checkpoint_hosts
from purine.transports.inproc import InprocWorld
from tests.forked import start_hosts
from tests.parallel.nets import images
from tests.runtime.test_hosts import composed, names_of, on_hosts, serial

HOSTS = ("host0", "host1")


def saved_after(step: Graph, folder: Path, steps: int = 3) -> list[float]:
    """The losses of some steps of two hosts, which then save."""

    def work(world: InprocWorld) -> list[float]:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True, world=world) as run:
            losses = [result.loss for result in run.steps(steps)]
            assert run.save(folder).exists()
            return losses

    losses, _ = on_hosts(work)
    assert isinstance(losses, list), losses
    return losses


def keys(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as opened:
        return set(opened.keys())


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != ".lock")


def test_each_host_writes_the_states_that_it_owns(tmp_path: Path) -> None:
    step = composed({})
    saved_after(step, tmp_path)
    path = checkpoint.latest(tmp_path)
    assert path is not None
    files = [path / "states-0.safetensors", path / "states-1.safetensors"]
    assert sorted(path.iterdir()) == [path / "manifest.json", *files]
    shards = shards_of(step)
    for host, file in zip(HOSTS, files, strict=True):
        names = {name for name in step.states if step.blobs[name].location.host == host}
        own = {shards[name][0] if name in shards else name for name in names}
        assert own == keys(file)
        assert file.stat().st_mode == (path / "manifest.json").stat().st_mode
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["version"] == 3
    assert [file["name"] for file in manifest["files"]] == [file.name for file in files]
    assert checkpoint.load(path).values.keys() == serial().states.keys()


@pytest.mark.parametrize("scheme", [{}, {"model": 4}, {"data": 2, "model": 2}])
def test_a_checkpoint_goes_on_on_any_hosts(scheme: dict[str, object], tmp_path: Path) -> None:
    begun = saved_after(composed(scheme), tmp_path)
    others = {
        1: composed({}, "cpu:0"),
        2: composed({"pipeline": 2}, "host0-1:cpu:0"),
        4: composed({"data": 2, "model": 2}, "host0-3:cpu:0"),
    }

    def work(world: InprocWorld) -> list[float]:
        step = others[len(world.hosts)]
        hosts = world if world.peers else None
        with pu.Run(step, data=images(), threads=1, share_cores=True, world=hosts) as run:
            assert run.load(tmp_path) == 3
            return [result.loss for result in run.steps(2)]

    for count in others:
        for rest in on_hosts(work, hosts=names_of(count)):
            assert isinstance(rest, list), rest
            assert [*begun, *rest] == pytest.approx(serial().losses, abs=1e-9)


UNITS = 5


def in_units(hosts: Sequence[str], axis: int = 0) -> Graph:
    """States of a parameter in units along an axis, whose owners alternate, and a whole one."""
    builder, shape = Builder(), [7, 6]
    ends = [0, 1, 3, 4, 5, shape[axis]]
    for number in range(UNITS):
        low, high = ends[number], ends[number + 1]
        size = [*shape]
        size[axis] = high - low
        at = Location(hosts[number % len(hosts)], "cpu:0")
        blob = builder.blob(f"w/unit{number}", tuple(size), location=at)
        shard = Shard("w", tuple(shape), axis, ((low, high),))
        builder.state(blob, filler=shard.filler(pu.graph.Filler("constant")))
    builder.state(builder.blob("n", (), "int64", location=Location(hosts[-1], "cpu:0")))
    return builder.graph()


def save_units(step: Graph, folder: Path, world: InprocWorld, iteration: int = 4) -> Path:
    whole = torch.arange(42.0).reshape(7, 6)
    values = pu.parallel.shard_values(step, {"w": whole, "n": torch.tensor(iteration)})
    own = {n: v for n, v in values.items() if step.blobs[n].location.host == world.host}
    return checkpoint_hosts.save(
        folder, world=world, step=step, iteration=iteration, values=own, seed=1
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_units_with_alternating_owners_are_one_value_in_each_file(
    axis: int, tmp_path: Path
) -> None:
    step = in_units(HOSTS, axis)
    (path, _) = on_hosts(partial(save_units, step, tmp_path))
    assert isinstance(path, Path), path
    assert keys(path / "states-0.safetensors") == {"w"}
    assert keys(path / "states-1.safetensors") == {"w", "n"}
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.values["w"], torch.arange(42.0).reshape(7, 6))
    for other in (step, in_units(HOSTS, 1 - axis), in_units(("host0", "host1", "host2"), axis)):
        cut = checkpoint.load(path, step=other).values
        expected = pu.parallel.shard_values(other, loaded.values)
        assert cut.keys() == expected.keys() == other.states.keys()
        assert all(torch.equal(cut[name], value) for name, value in expected.items())


def test_a_host_reads_the_files_that_it_needs(tmp_path: Path) -> None:
    step = in_units(HOSTS)
    (path, _) = on_hosts(partial(save_units, step, tmp_path))
    assert isinstance(path, Path), path
    damaged = path / "states-1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    own = [name for name in step.states if step.blobs[name].location.host == "host0"]
    assert checkpoint.load(path, step=step, names=own).values.keys() == set(own)
    with pytest.raises(CheckpointError, match=r"states-1\.safetensors is damaged"):
        checkpoint.load(path)
    damaged.unlink()
    with pytest.raises(CheckpointError, match="the values are missing"):
        checkpoint.load(path)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["files"].pop(),
        lambda manifest: manifest["files"][0].update(name="../states-0.safetensors"),
        lambda manifest: manifest["files"].append("states-2.safetensors"),
        lambda manifest: manifest["states"][0]["pieces"].pop(),
        lambda manifest: manifest["states"][0]["pieces"][0].update(spans=[[0, 1], [3, 6]]),
        lambda manifest: manifest["states"][0]["pieces"][0].update(spans=[[0]]),
        lambda manifest: manifest["states"][0]["pieces"][0].update(spans=7),
        lambda manifest: manifest["states"][0].update(pieces=["w"]),
        lambda manifest: manifest["states"][0].update(axis=2),
        lambda manifest: manifest["states"][0].update(axis=1),
        lambda manifest: manifest["states"][1].update(file="states-0.safetensors"),
        lambda manifest: manifest["states"][1].pop("file"),
        lambda manifest: manifest.pop("files"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(change: Change, tmp_path: Path) -> None:
    (path, _) = on_hosts(partial(save_units, in_units(HOSTS), tmp_path))
    assert isinstance(path, Path), path
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    manifest["sha256"] = checkpoint.checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


class Crash(BaseException):
    """A host dies here: nothing that handles errors may see it."""


@pytest.mark.parametrize(
    ("victim", "call"),
    [
        ("host1", "write_values"),
        ("host0", "write_values"),
        ("host1", "_write"),
        ("host0", "_finish"),
        ("host0", "folders.put_in_place"),
    ],
)
def test_a_host_that_dies_in_a_save_leaves_the_previous_checkpoint(
    victim: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = in_units(HOSTS)
    on_hosts(partial(save_units, step, tmp_path))
    original = attrgetter(call)(checkpoint_hosts)

    def dies(*given: object, **options: object) -> object:
        if threading.current_thread().name == victim:
            raise Crash
        return original(*given, **options)

    def work(world: InprocWorld) -> None:
        try:
            save_units(step, tmp_path, world, iteration=5)
        except Crash:
            world.close()
            raise

    with monkeypatch.context() as patch:
        patch.setattr(f"{checkpoint_hosts.__name__}.{call}", dies)
        results = dict(zip(HOSTS, on_hosts(work), strict=True))
    assert isinstance(results.pop(victim), Crash)
    (left,) = results.values()
    assert isinstance(left, HostLostError), left
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["000000004"]
    assert checkpoint.load(tmp_path).iteration == 4
    on_hosts(partial(save_units, step, tmp_path, iteration=6))
    assert names(tmp_path) == ["000000004", "000000006"]


def test_a_host_that_does_not_see_the_folder_is_named_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, write = in_units(HOSTS), checkpoint_hosts._write

    def elsewhere(temporary: Path, world: InprocWorld, values: Any) -> str:
        own = tmp_path / "local" / temporary.name if world.host == "host1" else temporary
        return write(own, world, values)

    monkeypatch.setattr(checkpoint_hosts, "_write", elsewhere)
    for error in on_hosts(partial(save_units, step, tmp_path)):
        assert isinstance(error, CheckpointError), error
        assert "host1: this host does not see the folder of the checkpoint" in error.what
        assert str(tmp_path / "local") in str(error)
    assert names(tmp_path) == []


def test_a_disk_that_is_full_on_one_host_fails_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, flush = in_units(HOSTS), checkpoint_hosts.folders.flush

    def full(path: Path) -> None:
        if path.name == "states-1.safetensors":
            raise OSError("No space left on device")
        flush(path)

    monkeypatch.setattr(checkpoint_hosts.folders, "flush", full)
    for error in on_hosts(partial(save_units, step, tmp_path)):
        assert isinstance(error, CheckpointError), error
        assert "host1: cannot save a checkpoint" in error.what
    assert names(tmp_path) == []


def test_hosts_at_different_iterations_save_nothing(tmp_path: Path) -> None:
    step = in_units(HOSTS)

    def work(world: InprocWorld) -> None:
        save_units(step, tmp_path, world, iteration=HOSTS.index(world.host))

    for error in on_hosts(work):
        assert isinstance(error, PurineError)
        assert "differ in their iteration to save" in str(error)
    assert checkpoint.latest(tmp_path) is None


def test_a_checkpoint_that_one_host_cannot_read_is_refused_on_all(tmp_path: Path) -> None:
    step = composed({})
    saved_after(step, tmp_path)
    path = checkpoint.latest(tmp_path)
    assert path is not None
    (path / "states-1.safetensors").unlink()

    def work(world: InprocWorld) -> None:
        with pu.Run(step, data=images(), threads=1, share_cores=True, world=world) as run:
            run.load(tmp_path)

    for error in on_hosts(work):
        assert isinstance(error, CheckpointError), error
        assert "host1: the values are missing" in error.what


SCRIPT = """
import os, signal, sys, time
import torch
import purine as pu
from purine.runtime import checkpoint_hosts
from purine.transports.processes import ProcessWorld

net = pu.zoo.mlp(batch=4, hidden=(4,))
step = pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0")
data = torch.zeros(20, 1, 28, 28), torch.arange(20) % 10
world, folder, victim = ProcessWorld("tcp"), sys.argv[1], sys.argv[2]

def die(file, values, *target):
    file.write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)

try:
    with pu.Run(step, data=data, threads=1, share_cores=True, world=world) as run:
        list(run.steps(2))
        run.save(folder)
        list(run.steps(2))
        if world.host == victim:
            checkpoint_hosts.write_values = die
        run.save(folder)
except pu.PurineError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(2)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("victim", HOSTS)
def test_a_host_that_is_killed_in_a_save_leaves_the_previous_checkpoint(
    victim: str, tmp_path: Path
) -> None:
    processes = dict(zip(HOSTS, start_hosts("-c", SCRIPT, tmp_path, victim), strict=True))
    try:
        for host, process in processes.items():
            code, _, text = process.ended(120)
            if host == victim:
                assert code == -signal.SIGKILL, text
            else:
                assert code == 2, text
                assert f"host {victim!r} is lost" in text
    finally:
        for process in processes.values():
            process.kill()
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["000000002"]
    assert checkpoint.load(tmp_path).iteration == 2
