"""Settling a job: the options that are left open get the values that the run records.

The first of these that has a value decides: the options given, a Caffe definition, the defaults of
the solver, the fallback in the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from purine.data import DataSet
from purine.errors import ConfigError
from purine.files import expanded
from purine.graph import Graph
from purine.importers.caffe import CaffeSolver
from purine.job.caffe import with_solver
from purine.job.config import Job, fill, given_options
from purine.job.options import OPTIONS
from purine.job.placing import scheme_of, threads_for
from purine.job.start import absolute_weights
from purine.nearest import unknown_name
from purine.runtime.checkpoint import LARGEST
from purine.runtime.feeding import batch_of, data_ops
from purine.solvers import SOLVERS, Rate, parse_rate

__all__ = ["iterations_of", "rate_of", "samples_per_iteration", "settle"]

_DEFAULTS: Mapping[str, dict[str, float]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"weight_decay": 5e-4},
}
"""Where a job differs from the defaults of the solvers themselves."""


def settle(
    job: Job, net: Graph, data: DataSet, caffe: CaffeSolver | None, mean_image: Tensor | None
) -> Job:
    """The job with its open options decided."""
    job = _with_own_solver(job) if caffe is None else with_solver(job, caffe)
    scheme = scheme_of(job)
    job = replace(
        job,
        batch=batch_of(net, data_ops(net)[0]),
        threads=job.threads or threads_for(job),
        parallel=None if scheme is None else str(scheme),
        weights=absolute_weights(job.weights) if job.weights else None,
        mean_file=str(expanded(job.mean_file).resolve()) if job.mean_file else None,
    )
    job = fill(job, _fallbacks(job, mean_image))
    samples = samples_per_iteration(job)
    if samples > len(data.train):
        product = f" (batch {job.batch} times accumulate {job.accumulate})"
        raise ConfigError(
            f"a batch of {samples}{product if job.accumulate != 1 else ''} "
            f"is larger than the training set",
            expected=f"at most {len(data.train)}, the samples of {job.data}",
            found=str(samples),
            remedy="lower --batch or --accumulate",
        )
    return job


def samples_per_iteration(job: Job) -> int:
    """The samples that an iteration of a settled job reads."""
    assert job.batch is not None
    assert job.accumulate is not None
    return job.batch * job.accumulate


def iterations_of(job: Job, data: DataSet) -> int:
    """The number of iterations of a settled job."""
    iterations = job.iters
    if iterations is None:
        assert job.epochs is not None
        iterations = -(-job.epochs * len(data.train) // samples_per_iteration(job))
    if iterations > LARGEST:
        name = "epochs" if job.iters is None else "iters"
        raise ConfigError(
            f"{name} is {getattr(job, name)}",
            expected=f"at most {LARGEST:,} iterations",
            found=f"{iterations:,} iterations",
            remedy=f"change --{name}",
        )
    return iterations


def rate_of(job: Job, iterations: int) -> Rate:
    """The learning-rate policy of a settled job of this length."""
    assert job.lr is not None
    assert job.lr_policy is not None
    return parse_rate(job.lr_policy, lr=job.lr, iterations=max(1, iterations))


def _fallbacks(job: Job, mean_image: Tensor | None) -> dict[str, object]:
    """The fallbacks of the options that no other option replaces."""
    replaced = {OPTIONS[name].instead_of for name in given_options(job)}
    if mean_image is not None:
        replaced.add("mean")
    return {name: item.fallback for name, item in OPTIONS.items() if name not in replaced}


def _with_own_solver(job: Job) -> Job:
    """The job with the defaults of one of our solvers where it gives no value of its own."""
    if job.solver not in SOLVERS:
        expected = f"one of {', '.join(SOLVERS)}, or a .prototxt file"
        raise unknown_name(ConfigError, "solver", job.solver, SOLVERS, expected=expected)
    parameters = inspect.signature(SOLVERS[job.solver]).parameters
    names = [name for name in ("lr", "momentum", "weight_decay") if name in parameters]
    if job.momentum is not None and "momentum" not in parameters:
        raise ConfigError(
            f"solver {job.solver} takes no momentum",
            expected=f"options of {job.solver}: {', '.join(names)}",
            found=f"momentum {job.momentum}",
            remedy="leave --momentum out, or use sgd or lars",
        )
    defaults = {name: parameters[name].default for name in names}
    return fill(job, defaults | _DEFAULTS.get(job.solver, {}))
