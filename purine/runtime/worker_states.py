"""Workers in checkpoints: the own states and progress of each, and the record next to them.

A checkpoint has the shared states of workers under the names of the net, so that any other scheme
can load it. The own states of a worker have the worker's name (`worker0/...`), and
`worker0/completed` counts its iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from purine.errors import CheckpointError, ConfigError
from purine.graph import Graph
from purine.graph.names import worker_of
from purine.lowering.workers import has_workers
from purine.machine.cores import on_gpus
from purine.placement.values import starts
from purine.registry.clock import ITERATION
from purine.runtime import checkpoint
from purine.runtime.checkpoint import Checkpoint
from purine.runtime.couriers import is_courier
from purine.runtime.record import Record
from purine.runtime.workers import Reached
from purine.transports.open_world import OpenWorld
from purine.transports.world import World

__all__ = [
    "RECORD",
    "begin_at",
    "beside_net",
    "each_worker",
    "empty_record",
    "for_all_workers",
    "joined",
    "past_of",
    "record_of",
    "refuse_workers",
    "save_record",
]

RECORD = "updates.record"
"""The file in the folder of a run that has the record of its workers."""


def refuse_workers(graph: Graph, world: World | None, replay: Record | None) -> None:
    """Raise `ConfigError` for workers that cannot run here, and for a record of another graph."""
    if not has_workers(graph):
        if replay is not None:
            what, remedy = "there is nothing to replay", "leave replay out: results are the same"
            raise ConfigError(what, "a graph with workers", "a graph without", remedy)
        return
    if on_gpus(graph):
        what, expected = "workers cannot run here", "CPU devices"
        raise ConfigError(what, expected, "ops on GPUs", "name CPU devices")
    if world is not None and not isinstance(world, OpenWorld):
        what, expected = "workers on several hosts join and leave", "a world that allows it"
        remedy = "make one by OpenWorld.serving, and OpenWorld.joining on other hosts"
        raise ConfigError(what, expected, type(world).__name__, remedy)
    if replay is not None and replay.digest != graph.digest:
        what, expected = "the record to replay is of another graph", f"digest {graph.digest[:12]}"
        remedy = "make the graph with the same net, batch, devices and scheme"
        raise ConfigError(what, expected, f"digest {replay.digest[:12]}", remedy)


def for_all_workers(graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of states; a shared value is used for all states that share it."""
    shared = {graph.states[n].shared: value for n, value in values.items()}
    aliases = (name for name, state in graph.states.items() if state.shared)
    others = {
        name: shared[graph.states[name].shared]
        for name in aliases
        if graph.states[name].shared in shared
    }
    return {**values, **others}


def beside_net(
    graph: Graph, values: Mapping[str, Tensor], each: Sequence[int] = ()
) -> dict[str, Tensor]:
    """The parts of a checkpoint besides the states of the net: parameters of earlier iterations,
    and the own states of each worker with its number of complete iterations."""
    own = {name: values[name] for name in starts(graph) if not graph.states[name].shared}
    counts = {worker_of(number, _COMPLETED): torch.tensor(n) for number, n in enumerate(each)}
    return own | counts


_COMPLETED = "completed"


def each_worker(path: Path, forms: Mapping[str, object], workers: int) -> tuple[int, ...]:
    """The number of complete iterations of each worker; empty in checkpoints of other schemes."""
    names = [worker_of(number, _COMPLETED) for number in range(workers)]
    if not all(name in forms for name in names):
        return (0,) * workers
    values = checkpoint.load(path, names=names).values
    return tuple(int(values[name]) for name in names)


def begin_at(
    iteration: int, parts: Mapping[int, Graph], states: dict[str, Tensor], reached: Reached
) -> Reached:
    """Let the workers of this host begin where others in their seats have come to: sets their
    counts among `states`, and returns how many iterations each has complete."""
    each = []
    for number, part in parts.items():
        name = worker_of(number, ITERATION)
        each.append(0 if is_courier(part) else iteration)
        if not is_courier(part) and name in states:
            states[name] = torch.tensor(iteration)
    return Reached(reached.all, tuple(each))


def empty_record(graph: Graph, reached: Reached, workers: Sequence[Graph]) -> Record:
    """The record of a run that has not stepped."""
    return Record(graph.digest, reached.all, reached.each or (0,) * len(workers), 1, ())


def joined(past: Record | None, now: Record | None) -> Record | None:
    """Two consecutive records as one."""
    if past is None or now is None or not past.events:
        return past if now is None else now
    return past.then(now)


def save_record(record: Record, folder: Path) -> None:
    """Write the record of a run to its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / RECORD)


def record_of(folder: Path) -> Record:
    """The record of the run in a folder."""
    if not (folder / RECORD).is_file():
        what, expected = "the run has no record of updates", f"a file {RECORD}"
        remedy = "train it with workers: --parallel asynchronous=ssp"
        raise CheckpointError(what, expected, "none", remedy, where=folder)
    return Record.load(folder / RECORD)


def past_of(saved: Checkpoint, digest: str) -> Record | None:
    """The record next to a checkpoint, up to it, if it belongs to the same graph."""
    try:
        record = record_of(saved.path.parent.parent)
        return record.split(saved.iteration)[0] if record.digest == digest else None
    except CheckpointError:
        return None
