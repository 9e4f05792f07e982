"""`measure`: the net of a checkpoint on a test set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from purine.data.prepare import MEAN_IMAGE
from purine.errors import CheckpointError, DataError
from purine.job.config import Job
from purine.job.folder import RunFolder
from purine.job.placing import laid_out, measuring_threads, moved
from purine.job.plan import measuring, open_for
from purine.job.training import identity, measured, refuse_foreign
from purine.placement.devices import parse_devices
from purine.registry.clock import ITERATION
from purine.runtime import checkpoint
from purine.runtime.run import Run

__all__ = ["Measured", "measure"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a net after `iteration` iterations on `samples` test samples of `data`."""

    iteration: int
    data: str
    samples: int
    loss: float | None
    accuracy: float | None


def measure(
    folder: RunFolder, *, data: str | None = None, iteration: int | None = None
) -> Measured:
    """Measure a run's newest checkpoint, or that of `iteration`, on its data or on `data`."""
    job = folder.read_config()
    spec = job.data if data is None else data
    assert spec is not None, "the job of a run has no open options"
    data_set = open_for(job.net, spec)
    if data_set.test is None:
        what, remedy = "there is nothing to measure on", "name other data with --data"
        raise DataError(what, "data with a test part", "training samples only", remedy, where=spec)
    saved = checkpoint.load(_checkpoint(folder, iteration))
    net = folder.read_test_net() or folder.read_net()
    graph = measuring(job, net, data_set.test, saved.values.get(MEAN_IMAGE))
    graph = laid_out(job, moved(job, graph) if _has_gpus(job) else graph)
    values = {name: saved.values[name] for name in graph.states if name in saved.values}
    checkpoint.match(replace(saved, values=values), graph)
    refuse_foreign(saved, identity(job, folder.read_net()))
    with Run(graph, data=data_set, seed=job.seed or 0, threads=measuring_threads(job)) as run:
        run.set_states({name: value for name, value in values.items() if name != ITERATION})
        loss, accuracy = measured(graph, run.evaluate(graph))
    return Measured(saved.iteration, spec, len(data_set.test), loss, accuracy)


def _has_gpus(job: Job) -> bool:
    """Whether this machine has the first GPU of a run, which may have been trained on another."""
    available = {f"cuda:{number}" for number in range(torch.cuda.device_count())}
    return not available.isdisjoint(parse_devices(job.devices)[:1])


def _checkpoint(folder: RunFolder, iteration: int | None) -> Path:
    if iteration is None:
        return folder.path
    paths = sorted(folder.checkpoints.glob("[0-9]*"))
    path_of = {int(path.name.partition(".")[0]): path for path in reversed(paths)}
    if iteration in path_of:
        return path_of[iteration]
    known = ", ".join(map(str, reversed(path_of)))
    what = f"there is no checkpoint of iteration {iteration}"
    expected, found = f"one of {known}" if known else "at least one checkpoint", str(iteration)
    remedy = "leave --checkpoint out for the newest one"
    raise CheckpointError(what, expected, found, remedy, where=folder.path)
