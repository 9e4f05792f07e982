"""The plan of a job: its data, its graphs and its settled options, before anything is written.

A plan is complete: its job has no option left open, and its graphs are checked against its data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from torch import Tensor

from purine.analysis.infer import check
from purine.data import DataSet, Source, open_data, prepare
from purine.data.hdf5 import with_classes
from purine.data.open import absolute
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError
from purine.files import expanded
from purine.graph import Graph
from purine.importers.caffe import CaffeSolver
from purine.job import placing
from purine.job.caffe import caffe_data, caffe_solver, is_prototxt, with_solver
from purine.job.config import Job, fill, given_options
from purine.job.nets import Nets, find_nets, refuse_labels, refuse_other_parameters, with_losses
from purine.job.options import DATA_SET, OPTIONS
from purine.job.start import absolute_weights, start_values
from purine.job.tensorboard import refuse_missing
from purine.kinds.loss_scale import FINITE
from purine.nearest import unknown_name
from purine.optimize import evaluation
from purine.parallel import Scheme
from purine.recipe import Settings, make_step
from purine.runtime.checkpoint import LARGEST
from purine.runtime.feeding import batch_of, data_ops, read_stream
from purine.solvers import SOLVERS, Rate, parse_rate
from purine.transports.processes import rank_and_size
from purine.zoo import NETS

__all__ = ["JobPlan", "iterations_of", "make_plan", "measuring", "open_for", "rate_of"]

_DEFAULTS: Mapping[str, dict[str, float]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"weight_decay": 5e-4},
}
"""Where a job differs from the defaults of the solvers themselves."""


@dataclass(frozen=True)
class JobPlan:
    """A job with everything it needs to run.

    `net` is the net alone, `step` the whole training step. `test` is the graph that measures the
    net (None without test data); it is made from `test_net` where that is not None. `notes` are
    for the user: what was left out of a definition or of weights, and what makes the run slow.
    `values` are the values of states that do not start from their fillers.
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
    def sample_noun(self) -> str:
        """What a sample of the data is called, in the plural."""
        shapes = [item.shape for item in self.data.train.fields[:1]]
        return "images" if shapes and len(shapes[0]) == 3 else "samples"

    @property
    def samples_per_iteration(self) -> int:
        """The samples that an iteration reads."""
        return _samples_per_iteration(self.job)

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
        return (iteration - 1) * self.samples_per_iteration // len(self.data.train) + 1

    def next_epoch_end(self, iteration: int) -> int:
        """The first number of iterations above `iteration` that completes an epoch."""
        epoch, samples = len(self.data.train), self.samples_per_iteration
        return -(-(iteration * samples // epoch + 1) * epoch // samples)


def make_plan(
    job: Job, *, net: Graph | None = None, test_net: Graph | None = None, elsewhere: bool = False
) -> JobPlan:
    """Find everything the job names and build its graphs; `net` and `test_net` replace its own.

    The plan of a job that is to run `elsewhere` may need more than this machine has.
    """
    if job.tensorboard:
        refuse_missing()
    spec = job.data or (caffe_data(job) if is_prototxt(job.net) and net is None else DATA_SET)
    data = open_for(job.net, spec)
    job = replace(job, data=absolute(spec))
    nets = find_nets(job, data) if net is None else Nets(job, net, test_net)
    net, test_net = with_losses(nets.net), nets.test_net
    values, notes = start_values(nets.job, net, nets.layers, nets.mean_image)
    mean_image = values.get(MEAN_IMAGE)
    caffe = caffe_solver(nets.job)
    job = _settled(nets.job, net, data, caffe, mean_image)
    iterations = iterations_of(job, data)
    with_samples = prepared(job, net, data.train, mean_image)
    step = check(make_step(with_samples, recipe_of(job, caffe, iterations)))
    read_stream(step, data)  # refuses data that does not fit
    refuse_labels(net, data)
    if test_net is not None:
        refuse_other_parameters(test_net, net)
    test = None if data.test is None else measuring(job, test_net or net, data.test, mean_image)
    if not elsewhere:
        placing.refuse_unfit(step, job)
    test = None if test is None else placing.laid_out(job, placing.moved(job, test))
    all_notes = tuple(dict.fromkeys((*placing.crowding(job), *nets.notes, *notes)))
    return JobPlan(job, data, net, step, test, test_net, iterations, all_notes, values)


def open_for(net: str, spec: str) -> DataSet:
    """The data that a text names, in the form that the net of a job reads."""
    data = open_data(spec)
    return with_classes(data) if net in NETS else data


def measuring(
    job: Job,
    net: Graph,
    source: Source,
    mean_image: Tensor | None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph that measures a net on samples of the source: its single numbers, or `outputs`."""
    if outputs is None:
        outputs = [name for name in net.outputs if prod(net.blobs[name].shape or ()) == 1]
    return check(evaluation(prepared(job, net, source, mean_image), outputs))


def prepared(job: Job, net: Graph, source: Source, mean_image: Tensor | None) -> Graph:
    """The net with the ops that prepare its samples; a mean image is used if there is no mean."""
    mean = mean_image if job.mean is None else job.mean
    assert mean is not None
    assert job.mirror is not None
    crop, pad = job.crop, job.pad
    return prepare(net, source, mean=mean, scale=job.scale, crop=crop, pad=pad, mirror=job.mirror)


def _settled(
    job: Job, net: Graph, data: DataSet, caffe: CaffeSolver | None, mean_image: Tensor | None
) -> Job:
    """The job with a value for every option, as the run records it.

    The first of these that has a value decides: the options given, a Caffe definition, the defaults
    of the solver, the fallback in the table.
    """
    job = _with_own_solver(job) if caffe is None else with_solver(job, caffe)
    scheme = placing.scheme_of(job)
    job = replace(
        job,
        batch=batch_of(net, data_ops(net)[0]),
        threads=job.threads or placing.threads_for(job),
        parallel=None if scheme is None else str(scheme),
        weights=absolute_weights(job.weights) if job.weights else None,
        mean_file=str(expanded(job.mean_file).resolve()) if job.mean_file else None,
    )
    replaced = {OPTIONS[name].instead_of for name in given_options(job)}
    replaced |= set() if mean_image is None else {"mean"}
    fallbacks = {name: item.fallback for name, item in OPTIONS.items() if name not in replaced}
    job = fill(job, fallbacks)
    samples = _samples_per_iteration(job)
    if samples > len(data.train):
        product = f" (batch {job.batch} times accumulate {job.accumulate})"
        size = f"{samples}{product if job.accumulate != 1 else ''}"
        what = f"a batch of {size} is larger than the training set"
        expected, found = f"at most {len(data.train)}, the samples of {job.data}", str(samples)
        raise ConfigError(what, expected, found, "lower --batch or --accumulate")
    return job


def _samples_per_iteration(job: Job) -> int:
    assert job.batch is not None
    assert job.accumulate is not None
    return job.batch * job.accumulate


def iterations_of(job: Job, data: DataSet) -> int:
    """The number of iterations of a settled job."""
    iterations = job.iters
    if iterations is None:
        assert job.epochs is not None
        iterations = -(-job.epochs * len(data.train) // _samples_per_iteration(job))
    if iterations > LARGEST:
        name = "epochs" if job.iters is None else "iters"
        what, expected = f"{name} is {getattr(job, name)}", f"at most {LARGEST:,} iterations"
        raise ConfigError(what, expected, f"{iterations:,} iterations", f"change --{name}")
    return iterations


def rate_of(job: Job, iterations: int) -> Rate:
    """The learning-rate policy of a settled job of this length."""
    assert job.lr is not None
    assert job.lr_policy is not None
    return parse_rate(job.lr_policy, lr=job.lr, iterations=max(1, iterations))


def _with_own_solver(job: Job) -> Job:
    """The job with the defaults of one of our solvers where it gives no value of its own."""
    if job.solver not in SOLVERS:
        expected = f"one of {', '.join(SOLVERS)}, or a .prototxt file"
        raise unknown_name(ConfigError, "solver", job.solver, SOLVERS, expected=expected)
    parameters = inspect.signature(SOLVERS[job.solver]).parameters
    names = [name for name in ("lr", "momentum", "weight_decay") if name in parameters]
    if job.momentum is not None and "momentum" not in parameters:
        what, found = f"solver {job.solver} takes no momentum", f"momentum {job.momentum}"
        remedy = "leave --momentum out, or use sgd or lars"
        raise ConfigError(what, f"options of {job.solver}: {', '.join(names)}", found, remedy)
    defaults = {name: parameters[name].default for name in names}
    return fill(job, defaults | _DEFAULTS.get(job.solver, {}))


def recipe_of(job: Job, caffe: CaffeSolver | None, iterations: int) -> Settings:
    """The settings of the recipe for a settled job; `recipe.describe` lists the stages that
    apply."""
    rate = rate_of(job, iterations)
    assert job.accumulate is not None
    scheme = placing.scheme_of(job)
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
        devices=placing.locations_of(job),
        scheme=scheme or Scheme(),
        clip=clip,
        accumulate=job.accumulate // iter_size,
        iter_size=iter_size,
        precision=placing.low_precision(job),
        form=job.layout or ("auto" if "cuda" in job.devices else None),
        compress=None if job.compress in (None, "none") else job.compress,
        host=_own_host(job),
    )


def _own_host(job: Job) -> str | None:
    """The host of this process, if it builds its own part of the step alone.

    Compiled steps are built whole. So are those with residuals, which belong to pairs of hosts, and
    those of workers.
    """
    rank, size = rank_and_size()
    host, hosts = f"host{rank}", {location.host for location in placing.locations_of(job)}
    whole = "cuda" in job.devices or job.compile or job.compress in ("int8", "topk")
    whole = whole or placing.over_hosts(job)
    return host if size == len(hosts) > 1 and host in hosts and not whole else None


def _caffe_solver(job: Job, caffe: CaffeSolver, rate: Rate) -> CaffeSolver:
    """The solver of a definition with the job's options, for gradients that are accumulated."""
    momentum, decay = job.momentum, job.weight_decay
    assert job.accumulate is not None
    assert momentum is not None
    assert decay is not None
    # Caffe clips the sum of the gradients of all batches. Ours is their mean.
    clip = None if job.clip is None else job.clip / job.accumulate
    caffe = replace(caffe, rate=rate, momentum=momentum, weight_decay=decay)
    return replace(caffe, clip_gradients=clip, iter_size=1)
