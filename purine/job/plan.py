"""From the options of a job to the graphs that carry it out, before anything is written.

A plan is complete: its job has no option left open, its graphs are checked against its data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from purine.analysis.infer import check, complete, with_batch
from purine.data import (
    DataSet,
    Source,
    open_data,
    prepare,
)
from purine.data.hdf5 import with_classes
from purine.data.open import absolute
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError, DataError, GraphError, KindError
from purine.files import expanded
from purine.graph import Builder, Graph, load_yaml
from purine.importers.caffe import CaffeSolver, Imported
from purine.importers.caffe.weights import StoredLayer
from purine.job.caffe import (
    caffe_data,
    caffe_net,
    caffe_solver,
    is_prototxt,
    with_solver,
    with_transform,
)
from purine.job.config import Job
from purine.job.placing import (
    crowding,
    laid_out,
    locations_of,
    low_precision,
    moved,
    refuse_unfit,
    scheme_of,
    threads_for,
)
from purine.job.start import absolute_weights, read_mean_file, read_start
from purine.kinds.loss_scale import FINITE
from purine.nearest import nearest_name
from purine.optimize import evaluation
from purine.parallel import Scheme
from purine.recipe import Settings, make_step
from purine.registry.lookup import lookup
from purine.runtime.checkpoint import LARGEST
from purine.runtime.feeding import batch_of, data_ops, read_stream
from purine.solvers import SOLVERS, Rate, parse_rate
from purine.zoo import NETS

__all__ = [
    "Plan",
    "find_net",
    "find_test_net",
    "iterations_of",
    "make_plan",
    "measuring",
    "open_for",
    "prepared",
    "rate_of",
    "recipe_of",
    "reported",
]

_BATCH = 64
_TOO_SMALL = ("Output size is too small", "Kernel size can't be greater")  # words of torch's
_DATA = "fashion-mini"
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"weight_decay": 5e-4},
}
"""Where a job differs from the defaults of the solvers themselves."""

_OPEN: Mapping[str, Any] = {
    "lr_policy": "fixed",
    "accumulate": 1,
    "seed": 0,
    "log_every": 10,
    "mirror": False,
}
"""Options that neither the job nor a definition of Caffe's decided."""


@dataclass(frozen=True)
class Plan:
    """A job with everything it needs to run.

    `net` is the net alone, `step` the whole training step, `test` what measures the net (None
    without test data), from `test_net` where that is not the net itself. `notes` tells what of a
    definition or of weights was left out, and what makes it slow; `values` are those of states that
    do not start from their fillers. An iteration reads `images` samples.
    """

    job: Job
    data: DataSet
    net: Graph
    step: Graph
    test: Graph | None
    test_net: Graph | None
    iterations: int
    notes: tuple[str, ...] = ()
    values: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    @property
    def samples(self) -> str:
        """What a sample of the data is called, in the plural."""
        shapes = [item.shape for item in self.data.train.fields[:1]]
        return "images" if shapes and len(shapes[0]) == 3 else "samples"

    @property
    def images(self) -> int:
        return _images(self.job)

    @property
    def has_loss_scale(self) -> bool:
        """Whether an iteration whose gradients are not finite changes no weight."""
        return FINITE in self.step.blobs

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


def make_plan(job: Job, *, net: Graph | None = None, test_net: Graph | None = None) -> Plan:
    """Find everything the job names and build its graphs.

    `net` and `test_net` stand in for those that the job names.
    """
    spec = job.data or (caffe_data(job) if is_prototxt(job.net) and net is None else _DATA)
    data = open_for(job.net, spec)
    job = replace(job, data=absolute(spec))
    found = _Found(job, net, test_net) if net is not None else _found(job, data)
    job, net, test_net = found.job, reported(found.net), found.test_net
    values, notes = _start(job, net, found)
    image = values.get(MEAN_IMAGE)
    caffe = caffe_solver(job)
    job = _settled(job, net, data, caffe, image)
    iterations = iterations_of(job, data)
    ready = prepared(job, net, data.train, image)
    step = check(_updated(job, ready, caffe, iterations))
    read_stream(step, data)  # refuses data that does not fit
    _check_labels(net, data)
    if test_net is not None:
        _check_parameters(test_net, net)
    test = None if data.test is None else measuring(job, test_net or net, data.test, image)
    refuse_unfit(step, job)
    test = None if test is None else laid_out(job, moved(job, test))
    return Plan(
        job=job,
        data=data,
        net=net,
        step=step,
        test=test,
        test_net=test_net,
        iterations=iterations,
        notes=(*crowding(job), *notes),
        values=values,
    )


def open_for(net: str, spec: str) -> DataSet:
    """The data that a text names, in the form that the net of a job reads."""
    data = open_data(spec)
    return with_classes(data) if net in NETS else data


def find_net(job: Job, data: DataSet) -> Graph:
    """The net that `job.net` names, built for samples of the data or read from a file."""
    return _found(job, data).net


def find_test_net(job: Job, data: DataSet) -> Graph | None:
    """The net that measures, where that is not the net itself."""
    return _found(job, data).test_net


@dataclass(frozen=True)
class _Found:
    """The nets that a job names, and the job with what their definition says of the data."""

    job: Job
    net: Graph
    test_net: Graph | None
    notes: tuple[str, ...] = ()
    layers: tuple[StoredLayer, ...] = ()
    mean_image: Tensor | None = None


def _found(job: Job, data: DataSet) -> _Found:
    path = expanded(job.net)
    test: Graph | None = None
    brought: Imported | None = None
    if job.net in NETS:
        net = _built(job, data.train)
    elif is_prototxt(path):
        brought = caffe_net(job, data.train)
        net, test = brought.net, brought.test
        _check_source(net, path)
    elif path.suffix in (".yaml", ".yml"):
        net = complete(check(load_yaml(path)))
        _check_source(net, path)
        net = net if job.batch is None else with_batch(net, job.batch)
    else:
        raise ConfigError(
            f"there is no net {job.net!r}",
            expected=f"{', '.join(NETS)}, a graph in a .yaml file, or a .prototxt file",
            found=repr(job.net),
            remedy=nearest_name(job.net, NETS, "use one of these", cutoff=0.5),
        )
    if job.test_net is not None and not (is_prototxt(path) and is_prototxt(job.test_net)):
        place = expanded(job.test_net)
        test = complete(check(load_yaml(place)))
        _check_source(test, place)
    if brought is None:
        return _Found(job, net, test)
    image = brought.transform.mean_image if job.mean is None and job.mean_file is None else None
    job = with_transform(job, brought)
    return _Found(job, net, test, brought.notes, brought.layers, image)


def _start(job: Job, net: Graph, found: _Found) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The values that the run is given at its start, and all there is to note."""
    values: dict[str, Tensor] = {}
    notes = list(found.notes)
    if job.weights:
        values, more = read_start(job.weights, net, found.layers)
        notes += more
    if job.mean_file is not None:
        values[MEAN_IMAGE] = read_mean_file(job.mean_file)
    elif found.mean_image is not None:
        values[MEAN_IMAGE] = found.mean_image
    return values, tuple(dict.fromkeys(notes))


def _check_source(net: Graph, path: Path) -> None:
    if not any(op.kind == "Data" for op in net.ops.values()):
        raise GraphError(
            "the net has no Data op, so there is nothing to train it on",
            where=str(path),
            expected="an op of kind Data that gives the batches",
            found="kinds " + (", ".join(sorted({op.kind for op in net.ops.values()})) or "none"),
            remedy="give it a Data layer"
            if is_prototxt(path)
            else "add {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}",
        )


def _check_parameters(test: Graph, net: Graph) -> None:
    """Refuse a test net with parameters that training does not give it."""
    for name, state in test.states.items():
        shape = test.blobs[name].shape
        if state.trainable and (name not in net.states or net.blobs[name].shape != shape):
            found = f"{list(net.blobs[name].shape or ())}" if name in net.states else "none"
            raise GraphError(
                f"parameter {name!r} of the test net is not one of the net that is trained",
                where=test.blobs[name].where,
                blob=name,
                expected=f"a parameter of {list(shape or ())} in both nets",
                found=found,
                remedy="give both nets the same layers with parameters",
            )


def _check_labels(net: Graph, data: DataSet) -> None:
    """Refuse labels of more classes than the net has scores for."""
    classes = data.train.classes
    read = {name for op in data_ops(net) for name in op.outputs}
    for op in net.ops.values():
        if op.kind != "SoftmaxLoss" or op.inputs[1] not in read or classes is None:
            continue
        axis = op.attributes.get("axis", 1)
        shape = net.blobs[op.inputs[0]].shape
        assert isinstance(axis, int)
        if shape is not None and shape[axis] < classes:
            raise DataError(
                f"data {data.name!r} has {classes} classes, and the net scores for {shape[axis]}",
                where=op.where,
                op=op.name,
                blob=op.inputs[0],
                expected=f"at most {shape[axis]} classes",
                found=str(classes),
                remedy="use data of fewer classes, or give the net's last layer more outputs",
            )


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


def measuring(job: Job, net: Graph, source: Source, mean_image: Tensor | None) -> Graph:
    """The graph that measures a net on samples of the source: what it reports as one number."""
    numbers = [name for name in net.outputs if prod(net.blobs[name].shape or ()) == 1]
    return check(evaluation(prepared(job, net, source, mean_image), numbers))


def prepared(job: Job, net: Graph, source: Source, mean_image: Tensor | None) -> Graph:
    """The net with the ops between the samples as stored and what it wants to see.

    A mean image takes the place of a mean that is left open.
    """
    mean = mean_image if job.mean is None else job.mean
    assert mean is not None
    assert job.mirror is not None
    return prepare(
        net,
        source,
        mean=mean,
        scale=job.scale,
        crop=job.crop,
        pad=job.pad,
        mirror=job.mirror,
    )


def rate_of(job: Job, iterations: int) -> Rate:
    """The learning-rate policy of a settled job of this length."""
    assert job.lr is not None
    assert job.lr_policy is not None
    return parse_rate(job.lr_policy, lr=job.lr, iterations=max(1, iterations))


def _settled(
    job: Job, net: Graph, data: DataSet, caffe: CaffeSolver | None, mean_image: Tensor | None
) -> Job:
    """The job with its open options decided."""
    job = _with_own_solver(job) if caffe is None else with_solver(job, caffe)
    scheme = scheme_of(job)
    if job.mean is None and mean_image is None:
        job = replace(job, mean=0.0)
    job = replace(
        job,
        batch=batch_of(net, data_ops(net)[0]),
        threads=job.threads or threads_for(job),
        parallel=None if scheme is None else str(scheme),
        weights=absolute_weights(job.weights) if job.weights else None,
        mean_file=str(expanded(job.mean_file).resolve()) if job.mean_file else None,
        **{key: value for key, value in _OPEN.items() if getattr(job, key) is None},
    )
    if _images(job) > len(data.train):
        several = f" (batch {job.batch} times accumulate {job.accumulate})"
        raise ConfigError(
            f"a batch of {_images(job)}{several if job.accumulate != 1 else ''} "
            f"is larger than the training set",
            expected=f"at most {len(data.train)}, the samples of {job.data}",
            found=str(_images(job)),
            remedy="lower --batch or --accumulate",
        )
    if job.epochs is None and job.iters is None:
        job = replace(job, epochs=1)
    return job


def _with_own_solver(job: Job) -> Job:
    """The job with the settings of one of our solvers where it says nothing of its own."""
    if job.solver not in SOLVERS:
        raise ConfigError(
            f"there is no solver {job.solver!r}",
            expected=f"one of {', '.join(SOLVERS)}, or a .prototxt file",
            found=repr(job.solver),
            remedy=nearest_name(job.solver, SOLVERS, "use one of these", cutoff=0.5),
        )
    taken = inspect.signature(SOLVERS[job.solver]).parameters
    own = {key: taken[key].default for key in ("lr", "momentum", "weight_decay") if key in taken}
    own |= _DEFAULTS.get(job.solver, {})
    if job.momentum is not None and "momentum" not in taken:
        raise ConfigError(
            f"solver {job.solver} takes no momentum",
            expected=f"options of {job.solver}: {', '.join(own)}",
            found=f"momentum {job.momentum}",
            remedy="leave --momentum out, or use sgd or lars",
        )
    given = {key: getattr(job, key) for key in own}
    return replace(
        job, **{key: own[key] if value is None else value for key, value in given.items()}
    )


def _updated(job: Job, net: Graph, caffe: CaffeSolver | None, iterations: int) -> Graph:
    """The training step of a net with the settings of a settled job."""
    return make_step(net, recipe_of(job, caffe, iterations))


def recipe_of(job: Job, caffe: CaffeSolver | None, iterations: int) -> Settings:
    """What the recipe is told for a settled job; `recipe.describe` lists the stages that apply."""
    rate = rate_of(job, iterations)
    assert job.accumulate is not None
    scheme = scheme_of(job)
    solver: Callable[[Graph], Graph]
    if caffe is None:
        options: dict[str, object] = {"lr": rate, "weight_decay": job.weight_decay}
        if job.momentum is not None:
            options["momentum"] = job.momentum
        solver, clip, iter_size = partial(SOLVERS[job.solver], **options), job.clip, 1
    else:
        solver, clip = _caffe_solver(job, caffe, rate), None
        iter_size = job.accumulate if scheme is None else 1
    return Settings(
        solver=solver,
        devices=locations_of(job),
        scheme=scheme or Scheme(),
        clip=clip,
        accumulate=job.accumulate // iter_size,
        iter_size=iter_size,
        precision=low_precision(job),
        form=job.layout or ("auto" if "cuda" in job.devices else None),
    )


def _caffe_solver(job: Job, caffe: CaffeSolver, rate: Rate) -> CaffeSolver:
    """The solver of a definition with the job's options, for gradients that are accumulated.

    Caffe clips the sum of the gradients of all batches. Ours is their mean.
    """
    assert job.accumulate is not None
    assert job.momentum is not None
    assert job.weight_decay is not None
    return replace(
        caffe,
        rate=rate,
        momentum=job.momentum,
        weight_decay=job.weight_decay,
        clip_gradients=None if job.clip is None else job.clip / job.accumulate,
        iter_size=1,
    )


def _images(job: Job) -> int:
    """The samples that an iteration of a settled job reads."""
    assert job.batch is not None
    assert job.accumulate is not None
    return job.batch * job.accumulate


def iterations_of(job: Job, data: DataSet) -> int:
    if job.iters is not None:
        iterations = job.iters
    else:
        assert job.epochs is not None
        iterations = -(-job.epochs * len(data.train) // _images(job))
    if iterations > LARGEST:
        key = "epochs" if job.iters is None else "iters"
        raise ConfigError(
            f"{key} is {getattr(job, key)}",
            expected=f"at most {LARGEST:,} iterations",
            found=f"{iterations:,} iterations",
            remedy=f"change --{key}",
        )
    return iterations


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
            remedy="name data of tokens, such as "
            "--data synthetic-tokens:length=64,vocabulary=256,count=1280"
            if "context" in taken
            else "use a net for this kind of data, in a file: --net net.yaml",
        )
    try:
        return make(job.batch or _BATCH, **sizes)
    except KindError as error:
        if not any(words in str(error.found) for words in _TOO_SMALL):
            raise
        raise DataError(
            f"images of {_image_size(sizes)} are too small for net {job.net!r}",
            expected="images that are left with something at every op of the net",
            found=f"{error.what}: {error.found}",
            remedy="use larger images, or a net for small ones, such as lenet or mlp",
        ) from error


def _image_size(sizes: Mapping[str, Any]) -> list[int]:
    return list(sizes["image"])


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
