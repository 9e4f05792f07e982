"""Measuring a run: its checkpoint's net on test data, and which run a checkpoint is of.

A checkpoint is only measured with the net, the data settings and the seed it was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from purine.autodiff import losses_of
from purine.data import DataSet
from purine.data.prepare import MEAN_IMAGE
from purine.errors import CheckpointError, DataError
from purine.graph import Graph
from purine.job.caffe import is_prototxt
from purine.job.config import Job
from purine.job.folder import RunFolder
from purine.job.options import OPTIONS
from purine.job.placing import laid_out, measuring_threads, moved, own_gpu, workers_of
from purine.job.plan import measuring, open_for
from purine.registry.clock import ITERATION
from purine.runtime import checkpoint
from purine.runtime.run import Run

__all__ = [
    "RUN",
    "Measured",
    "Measuring",
    "identity_of_run",
    "measure",
    "measuring_run",
    "refuse_foreign",
    "results_of",
    "saved_net",
]

RUN = "run"
"""The field of a checkpoint's `extra` that holds the identity of its run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a net after `iteration` iterations on `samples` test samples of `data`."""

    iteration: int
    data: str
    samples: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Measuring:
    """A `run` with the values of a checkpoint, and the `graph` that it measures on `data`."""

    run: Run
    graph: Graph
    data: DataSet
    spec: str
    iteration: int


def measure(
    folder: RunFolder, *, data: str | None = None, iteration: int | None = None
) -> Measured:
    """Measure a run's newest checkpoint, or that of `iteration`, on its data or on `data`."""
    with measuring_run(folder, data=data, iteration=iteration) as opened:
        loss, accuracy = results_of(opened.graph, opened.run.evaluate(opened.graph))
        assert opened.data.test is not None
        samples = len(opened.data.test)
        return Measured(opened.iteration, opened.spec, samples, loss, accuracy)


@contextmanager
def measuring_run(
    folder: RunFolder,
    *,
    data: str | None = None,
    iteration: int | None = None,
    outputs: Callable[[Graph], Sequence[str]] | None = None,
    any_part: bool = False,
) -> Iterator[Measuring]:
    """A run with a checkpoint's values and the graph of the net's `outputs` (by default, numbers).

    With `any_part`, data that has no test part is measured whole.
    """
    job = folder.read_config()
    spec = job.data if data is None else data
    assert spec is not None, "the job of a run has no open options"
    data_set = open_for(job.net, spec)
    if data_set.test is None and any_part:
        data_set = replace(data_set, test=data_set.train)
    if data_set.test is None:
        what, remedy = "there is nothing to measure on", "name other data with --data"
        raise DataError(what, "data with a test part", "training samples only", remedy, where=spec)
    saved, net = saved_net(folder, iteration)
    wanted = None if outputs is None else outputs(net)
    graph = measuring(job, net, data_set.test, saved.values.get(MEAN_IMAGE), wanted)
    graph = laid_out(job, moved(job, graph) if _has_gpu(job) else graph)
    values = {name: saved.values[name] for name in graph.states if name in saved.values}
    forms = {name: saved.forms[name] for name in values}
    checkpoint.match(replace(saved, forms=forms), graph)
    refuse_foreign(saved, identity_of_run(job, folder.read_net()))
    with Run(graph, data=data_set, seed=job.seed or 0, threads=measuring_threads(job)) as run:
        run.set_states({name: value for name, value in values.items() if name != ITERATION})
        yield Measuring(run, graph, data_set, spec, saved.iteration // workers_of(job))


def saved_net(
    folder: RunFolder, iteration: int | None = None
) -> tuple[checkpoint.Checkpoint, Graph]:
    """The newest checkpoint of a run, or that of `iteration`, and the net that measures it."""
    saved = checkpoint.load(_checkpoint(folder, iteration))
    return saved, folder.read_test_net() or folder.read_net()


def _has_gpu(job: Job) -> bool:
    """Whether this machine has the first GPU of a run, which may have been trained on another."""
    return own_gpu(job) in {f"cuda:{number}" for number in range(torch.cuda.device_count())}


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


def results_of(net: Graph, means: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The loss and the accuracy among the means of a net's outputs; None where it has none.

    Of several accuracies the last with the smallest `top_k` counts.
    """
    ops = [op for op in net.ops.values() if op.kind == "Accuracy" and op.outputs[0] in net.outputs]
    best = min(reversed(ops), key=lambda op: op.whole("top_k", 1), default=None)
    losses = losses_of(net)
    loss = sum(means[name] * weight for name, weight in losses.items()) if losses else None
    return loss, None if best is None else means[best.outputs[0]]


def identity_of_run(job: Job, net: Graph, *, samples: int | None = None) -> dict[str, object]:
    """The identity of the run of a job, as plain JSON; `samples` are those it is trained on.

    It has everything that decides the numbers and stays when a run is resumed: the net, and the
    options that the table marks with `identifies`. Devices, the scheme of parallelism, the end of
    the run and paths of files (a folder may be moved) are not part of it.
    """
    names = [name for name, option in OPTIONS.items() if option.identifies]
    facts: dict[str, object] = {name: getattr(job, name) for name in names}
    if not is_prototxt(job.solver):
        facts["solver"] = job.solver
    if samples is not None:
        facts["samples"] = samples
    facts["workers"] = workers_of(job)  # what a checkpoint calls an iteration depends on it
    plain: dict[str, object] = json.loads(json.dumps({**facts, "net": net.digest}))
    return plain


def refuse_foreign(saved: checkpoint.Checkpoint, own: Mapping[str, object]) -> None:
    extra = saved.extra.get(RUN)  # that of an earlier version has only the seed
    stored = {**(extra if isinstance(extra, dict) else {}), "seed": saved.seed}
    for key, value in own.items():
        if key in stored and stored[key] != value:
            what = f"the checkpoint is of another run: its {key} differs"
            expected, found = f"{key} {value}, as this run has", f"{key} {stored[key]}"
            remedy = f"restore the {key} of this run if it was changed, or move the checkpoint to "
            remedy += "the folder of its own run; this one goes on from what is left"
            raise CheckpointError(what, expected, found, remedy, where=str(saved.path))
