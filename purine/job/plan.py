"""From the options of a job to the graphs that carry it out, before anything is written.

A plan is complete: its job has no option left open, its graphs are checked against its data.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from purine.autodiff import backward
from purine.data import (
    DataSet,
    Source,
    open_data,
    prepare,
)
from purine.data.open import absolute
from purine.errors import ConfigError, DataError, GraphError
from purine.graph import Builder, Graph, load_yaml
from purine.job.config import Job
from purine.ops.infer import check, complete, with_batch
from purine.ops.registry import lookup
from purine.optimize import evaluation
from purine.runtime.feeding import batch_of, data_ops, read_stream
from purine.solvers import SOLVERS, Rate, accumulate, clip_by_norm, parse_rate
from purine.zoo import NETS

__all__ = [
    "Plan",
    "find_net",
    "iterations_of",
    "make_plan",
    "prepared",
    "rate_of",
    "reported",
]

_BATCH = 64
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"weight_decay": 5e-4},
}
"""Where a job differs from the defaults of the solvers themselves."""


@dataclass(frozen=True)
class Plan:
    """A job with everything it needs to run.

    `net` is the net alone, `step` the whole training step, `test` what measures the net (None
    without test data). An iteration reads `images` samples.
    """

    job: Job
    data: DataSet
    net: Graph
    step: Graph
    test: Graph | None
    iterations: int

    @property
    def images(self) -> int:
        assert self.job.batch is not None
        return self.job.batch * self.job.accumulate

    @property
    def epochs(self) -> int:
        """The number of epochs begun when all iterations are complete."""
        return self.epoch(self.iterations)

    def epoch(self, iteration: int) -> int:
        """The epoch, from 1, that the last of `iteration` iterations began in; 0 for none."""
        return (iteration - 1) * self.images // len(self.data.train) + 1

    def next_epoch_end(self, iteration: int) -> int:
        """The first number of iterations above `iteration` that completes an epoch."""
        samples = len(self.data.train)
        return -(-(iteration * self.images // samples + 1) * samples // self.images)


def make_plan(job: Job, *, net: Graph | None = None) -> Plan:
    """Find everything the job names and build its graphs; `net` stands in for `job.net`."""
    data = open_data(job.data)
    job = replace(job, data=absolute(job.data))
    net = reported(find_net(job, data) if net is None else net)
    job = _settled(job, net, data)
    assert job.batch is not None
    iterations = iterations_of(job, data)
    ready = prepared(job, net, data.train)
    step = backward(ready)
    step = accumulate(step, job.accumulate)
    if job.clip is not None:
        step = clip_by_norm(step, job.clip)
    step = check(SOLVERS[job.solver](step, **_solver_options(job, iterations)))
    read_stream(step, data, layout=torch.contiguous_format)  # refuses data that does not fit
    return Plan(
        job=job,
        data=data,
        net=net,
        step=step,
        test=None if data.test is None else check(evaluation(ready)),
        iterations=iterations,
    )


def find_net(job: Job, data: DataSet) -> Graph:
    """The net that `job.net` names, built for samples of the data or read from a file."""
    if job.net in NETS:
        return _built(job, data.train)
    path = Path(job.net).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        close = difflib.get_close_matches(job.net, NETS, n=1, cutoff=0.5)
        raise ConfigError(
            f"there is no net {job.net!r}",
            expected=f"{', '.join(NETS)}, or a graph in a .yaml file",
            found=repr(job.net),
            remedy=f"did you mean {close[0]!r}?" if close else "use one of these",
        )
    net = complete(check(load_yaml(path)))
    sources = [op for op in net.ops.values() if op.kind == "Data"]
    if not sources:
        raise GraphError(
            "the net has no Data op, so there is nothing to train it on",
            where=str(path),
            expected="an op of kind Data that gives the batches",
            found="kinds " + (", ".join(sorted({op.kind for op in net.ops.values()})) or "none"),
            remedy="add {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}",
        )
    return net if job.batch is None else with_batch(net, job.batch)


def reported(net: Graph) -> Graph:
    """The net with the results of all its loss ops among its outputs."""
    losses = [op.outputs[0] for op in net.ops.values() if lookup(op).loss]
    if not losses:
        where = next((op.where for op in net.ops.values() if op.where), None)
        raise GraphError(
            "the net has no loss",
            where=where.rpartition(":")[0] if where else None,
            expected="at least one op of a loss kind",
            found="kinds " + (", ".join(sorted({op.kind for op in net.ops.values()})) or "none"),
            remedy="add for example a SoftmaxLoss",
        )
    builder = Builder(net)
    builder.outputs += [name for name in losses if name not in net.outputs]
    return builder.graph()


def prepared(job: Job, net: Graph, source: Source) -> Graph:
    """The net with the ops between the samples as stored and what it wants to see."""
    return prepare(
        net,
        source,
        mean=job.mean,
        scale=job.scale,
        crop=job.crop,
        pad=job.pad,
        mirror=job.mirror,
    )


def rate_of(job: Job, iterations: int) -> Rate:
    """The learning-rate policy of a settled job of this length."""
    assert job.lr is not None
    return parse_rate(job.lr_policy, lr=job.lr, iterations=max(1, iterations))


def _settled(job: Job, net: Graph, data: DataSet) -> Job:
    """The job with its open options decided."""
    if job.solver not in SOLVERS:
        close = difflib.get_close_matches(job.solver, SOLVERS, n=1, cutoff=0.5)
        raise ConfigError(
            f"there is no solver {job.solver!r}",
            expected=f"one of {', '.join(SOLVERS)}",
            found=repr(job.solver),
            remedy=f"did you mean {close[0]!r}?" if close else "use one of these",
        )
    taken = inspect.signature(SOLVERS[job.solver]).parameters
    own = {key: taken[key].default for key in ("lr", "momentum", "weight_decay") if key in taken}
    own |= _DEFAULTS.get(job.solver, {})
    if job.momentum is not None and "momentum" not in taken:
        raise ConfigError(
            f"solver {job.solver} takes no momentum",
            expected=f"options of {job.solver}: {', '.join(list(taken)[1:])}",
            found=f"momentum {job.momentum}",
            remedy="leave --momentum out, or use sgd or lars",
        )
    given = {key: getattr(job, key) for key in own}
    job = replace(
        job, **{key: own[key] if value is None else value for key, value in given.items()}
    )
    job = replace(
        job, batch=batch_of(net, data_ops(net)[0]), threads=job.threads or torch.get_num_threads()
    )
    assert job.batch is not None
    if job.batch * job.accumulate > len(data.train):
        several = f" (batch {job.batch} times accumulate {job.accumulate})"
        raise ConfigError(
            f"a batch of {job.batch * job.accumulate}{several if job.accumulate > 1 else ''} "
            f"is larger than the training set",
            expected=f"at most {len(data.train)}, the samples of {job.data}",
            found=str(job.batch * job.accumulate),
            remedy="lower --batch or --accumulate",
        )
    if job.epochs is None and job.iters is None:
        job = replace(job, epochs=1)
    return job


def _solver_options(job: Job, iterations: int) -> dict[str, object]:
    options: dict[str, object] = {"lr": rate_of(job, iterations), "weight_decay": job.weight_decay}
    if job.momentum is not None:
        options["momentum"] = job.momentum
    return options


def iterations_of(job: Job, data: DataSet) -> int:
    if job.iters is not None:
        return job.iters
    assert job.epochs is not None
    assert job.batch is not None
    return -(-job.epochs * len(data.train) // (job.batch * job.accumulate))


def _built(job: Job, source: Source) -> Graph:
    """The net of the zoo that `job.net` names, for samples of the source."""
    make = NETS[job.net]
    taken = inspect.signature(make).parameters
    sizes = _sizes(job, source)
    if not sizes or not sizes.keys() <= taken.keys():
        tokens = "tokens [T] and as many targets, of a known vocabulary"
        raise DataError(
            f"net {job.net!r} does not fit data {job.data!r}",
            expected=tokens if "context" in taken else "images [C, H, W] and the labels of classes",
            found=", ".join(map(str, source.fields)),
            remedy="use a net for this kind of data, in a file: --net net.yaml",
        )
    return make(job.batch or _BATCH, **sizes)


def _sizes(job: Job, source: Source) -> dict[str, object]:
    """What the samples decide of a net; nothing where they are of an unknown form."""
    if len(source.fields) != 2 or source.classes is None:
        return {}
    first, second = source.fields
    if len(first.shape) == 3:
        side = first.shape[1:] if job.crop is None else (job.crop, job.crop)
        return {"image": (first.shape[0], *side), "classes": source.classes}
    if len(first.shape) == 1 and first == replace(second, name=first.name):
        return {"context": first.shape[0], "vocabulary": source.classes}
    return {}
