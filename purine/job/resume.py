"""Going on with a run: its own job counts, and what is asked now may not contradict it.

Options that leave the numbers alone may change: where to stop (later only), what to save, test,
log and trace, and how many batches ahead to use. So may the devices and the scheme of parallelism:
checkpoints have the states of the net whole, and the numbers stay the same but for rounding.
Weights to start from do not count any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from purine.data import open_data
from purine.data.open import absolute
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError
from purine.job.caffe import is_prototxt, same_solver
from purine.job.config import Job, Options, merge
from purine.job.folder import RunFolder
from purine.job.placing import scheme_of
from purine.job.plan import (
    Plan,
    find_net,
    find_test_net,
    iterations_of,
    make_plan,
    rate_of,
    reported,
)
from purine.job.start import read_mean_file
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["resume"]

_FREE = frozenset(
    (
        *("keep", "log_every", "out", "prefetch", "save_every"),
        *("test_every", "trace", "trace_iters"),
    )
)
_PLACE = frozenset(("devices", "parallel", "share_cores"))
_LENGTH = frozenset(("epochs", "iters"))


def resume(folder: RunFolder, given: Options) -> Plan:
    """The plan of the run in `folder`, with the options given now where they may differ."""
    job = _moved(folder.read_config(), given)
    plan = make_plan(job, net=folder.read_net(), test_net=folder.read_test_net())
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key in _FREE or key in _LENGTH or key == "lr_policy":
            changes[key] = value
        elif key not in _PLACE and key != "weights" and not _same(plan, key, value):
            raise _contradiction(key, getattr(plan.job, key), value)
    if not changes:
        return plan
    job = merge(_options(plan.job), changes)
    iterations = iterations_of(job, plan.data)
    if iterations < plan.iterations:
        key = "epochs" if job.epochs is not None else "iters"
        raise ConfigError(
            f"--{key} {getattr(job, key)} would end before the run does",
            where=str(folder.path),
            expected=f"{plan.iterations} iterations or more, as the run was started with",
            found=f"{iterations} iterations",
            remedy="leave it out, or start another run",
        )
    assert plan.job.lr_policy is not None
    before, now = rate_of(plan.job, plan.iterations), rate_of(job, iterations)
    if before != now:
        raise ConfigError(
            "the learning rate would not be that of the run so far",
            where=str(folder.path),
            expected=str(before),
            found=str(now),
            remedy="name the end of the policy as it was: "
            f"--lr-policy {plan.job.lr_policy.partition(':')[0]}:max_iterations={plan.iterations}"
            if job.lr_policy == plan.job.lr_policy
            else "leave --lr-policy out, or start another run",
        )
    return replace(plan, job=job, iterations=iterations)


def _moved(job: Job, given: Options) -> Job:
    """The job on the devices and by the scheme given now.

    Replicas alone spread over other devices by themselves, and other devices may have another
    number of threads.
    """
    job = replace(job, share_cores=given.get("share_cores", job.share_cores))
    devices = given.get("devices", job.devices)
    before = scheme_of(job)
    now = replace(job, devices=devices, parallel=given.get("parallel", job.parallel))
    if "parallel" not in given and before is not None:
        scheme = before.over(len(parse_devices(devices)))
        _refuse_devices(scheme, parse_devices(devices))
        now = replace(now, parallel=None if scheme == Scheme() else str(scheme))
    if (parse_devices(devices), scheme_of(now)) == (parse_devices(job.devices), before):
        return job
    return replace(now, threads=given.get("threads"))


def _refuse_devices(scheme: Scheme, devices: Sequence[str]) -> None:
    """Refuse a number of devices that the run's own scheme is not for."""
    if scheme.devices != len(devices):
        factors = f"data {scheme.data} * pipeline {scheme.pipeline} * model {scheme.model}"
        raise ConfigError(
            f"the scheme is for {scheme.devices} devices, and {len(devices)} are named",
            expected=f"{factors} = {scheme.devices} devices, by the run's own scheme",
            found=", ".join(devices[:16]),
            remedy=f"replace the scheme: --parallel data={len(devices)}, or another for as many "
            f"devices; or name {scheme.devices} devices",
        )


def _same(plan: Plan, key: str, value: Any) -> bool:
    if key == "data":
        open_data(value)  # refuses what is not there
        return absolute(value) == plan.job.data
    if key == "mean_file":
        image = plan.values.get(MEAN_IMAGE)
        return image is not None and image.equal(read_mean_file(value))
    if key == "net":
        asked = replace(plan.job, net=value)
        return asked == plan.job or reported(find_net(asked, plan.data)) == plan.net
    if key == "test_net":
        asked = replace(plan.job, test_net=value)
        return asked == plan.job or find_test_net(asked, plan.data) == plan.test_net
    if key == "solver" and is_prototxt(value) and is_prototxt(plan.job.solver):
        return same_solver(value, plan.job.solver)
    return bool(getattr(plan.job, key) == value)


def _contradiction(key: str, stored: object, given: object) -> ConfigError:
    option = f"--{key.replace('_', '-')}"
    return ConfigError(
        f"{option} {given} contradicts the run, which was started with {stored}",
        expected=f"{key} {stored}",
        found=f"{key} {given}",
        remedy=f"leave {option} out to go on, or start another run with another --out",
    )


def _options(job: Job) -> dict[str, Any]:
    values = {key: getattr(job, key) for key in job.__dataclass_fields__}
    return {key: value for key, value in values.items() if value is not None}
