"""Starting and resuming runs: from options to a plan, and from a plan to the folder of its run.

A resumed run has the job that it recorded. Options given now may not contradict it. The table of
options says which may change (`Resume`): the end of the run (later only), saves, tests, logs,
traces, and prefetching. Devices and the scheme of parallelism may change too: a checkpoint has
every state whole, and the numbers stay the same except for rounding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from purine.data import open_data
from purine.data.open import absolute
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError
from purine.job.automatic import settled_layers, without_auto
from purine.job.caffe import caffe_options, is_prototxt, same_solver
from purine.job.config import Given, Job, given_options, merge
from purine.job.file import read_options
from purine.job.folder import RunFolder
from purine.job.nets import find_nets, with_losses
from purine.job.options import OPTIONS, Resume
from purine.job.placing import scheme_of
from purine.job.plan import JobPlan, iterations_of, make_plan, rate_of
from purine.job.start import read_mean_file
from purine.parallel import Scheme
from purine.placement.devices import parse_devices
from purine.transports.processes import RESTARTS

__all__ = ["job_layers", "open_folder", "plan_run", "resume", "started_again"]


def job_layers(file: Path | None, given: Given) -> list[Given]:
    """The options of a job file (YAML, or a Caffe solver), then the given ones, which override
    it."""
    if file is None:
        return [given]
    if is_prototxt(file):
        return [caffe_options(file, net="net" not in given), given]
    return [read_options(file), given]


def started_again(layers: Sequence[Given]) -> bool:
    """Whether `torchrun` has started the job again, so that the run in its folder continues.

    After a failure it gives the same command to all hosts, without `--resume`. A run that had not
    created its folder yet begins anew.
    """
    outs = [layer["out"] for layer in layers if layer.get("out") is not None]
    again = int(os.environ.get(RESTARTS) or 0) > 0
    return again and bool(outs) and RunFolder.at(outs[-1]).config_file.is_file()


def plan_run(layers: Sequence[Given], *, resumed: bool) -> tuple[JobPlan, RunFolder | None]:
    """The plan of layers of options, and the folder of a `resumed` run. Nothing is written."""
    if resumed:
        return _plan_resumed(without_auto(layers))
    layers = settled_layers(layers)
    job = merge(*layers)
    if job.out is not None:  # before the graphs are built, which may take long
        RunFolder.at(job.out).refuse_run()
    return make_plan(job), None


def open_folder(plan: JobPlan, folder: RunFolder | None) -> RunFolder:
    """The folder of a plan: a new one, or that of a resumed run."""
    if folder is None:
        return RunFolder.create(plan.job, plan.net, test_net=plan.test_net, values=plan.values)
    if plan.job != folder.read_config():
        folder.write_config(plan.job)
    return folder


def _plan_resumed(layers: Sequence[Given]) -> tuple[JobPlan, RunFolder]:
    given = {name: value for layer in layers for name, value in layer.items()}
    if "out" not in given:
        what, remedy = "--resume does not say which run", "write purine train --resume --out DIR"
        raise ConfigError(what, "the folder of a run", "no --out", remedy)
    folder = RunFolder.existing(given["out"])
    folder.refuse_lost_checkpoints()
    begins_again = folder.newest_checkpoint() is None
    notes = ("the run has no checkpoint yet, so it begins again",) if begins_again else ()
    return replace(resume(folder, given), notes=notes), folder


def resume(folder: RunFolder, given: Given) -> JobPlan:
    """The plan of the run in `folder`, with the options given now where they may differ."""
    job = _on_given_devices(folder.read_config(), given)
    plan = make_plan(job, net=folder.read_net(), test_net=folder.read_test_net())
    for name, value in given.items():
        if OPTIONS[name].resume is Resume.SAME and not _same(plan, name, value):
            flag, stored = OPTIONS[name].flag, getattr(plan.job, name)
            what = f"{flag} {value} contradicts the run, which was started with {stored}"
            remedy = f"leave {flag} out to go on, or start another run with another --out"
            raise ConfigError(what, f"{name} {stored}", f"{name} {value}", remedy)
    changes = {key: value for key, value in given.items() if OPTIONS[key].resume is Resume.CHANGE}
    return _changed(plan, changes, folder) if changes else plan


def _changed(plan: JobPlan, changes: Given, folder: RunFolder) -> JobPlan:
    """The plan with changed options. The run may not end sooner or change its learning rate."""
    job = merge(given_options(plan.job), changes)
    iterations = iterations_of(job, plan.data)
    if iterations < plan.iterations:
        name = "epochs" if job.epochs is not None else "iters"
        what = f"--{name} {getattr(job, name)} would end before the run does"
        expected = f"{plan.iterations} iterations or more, as the run was started with"
        found, remedy = f"{iterations} iterations", "leave it out, or start another run"
        raise ConfigError(what, expected, found, remedy, where=folder.path)
    before, now = rate_of(plan.job, plan.iterations), rate_of(job, iterations)
    if before != now:
        remedy = "leave --lr-policy out, or start another run"
        if job.lr_policy == plan.job.lr_policy:
            policy = (job.lr_policy or "").partition(":")[0]
            end = f"--lr-policy {policy}:max_iterations={plan.iterations}"
            remedy = f"name the end of the policy as it was: {end}"
        what, expected = "the learning rate would not be that of the run so far", str(before)
        raise ConfigError(what, expected, str(now), remedy, where=folder.path)
    return replace(plan, job=job, iterations=iterations)


def _on_given_devices(job: Job, given: Given) -> Job:
    """The job with the devices and the scheme given now; then its threads are decided anew.

    A scheme of replicas alone adapts to the number of devices.
    """
    kept = {key: given[key] for key in ("share_cores", "compress") if key in given}
    job = replace(job, **kept)
    before = scheme_of(job)
    moved = replace(job, **{key: given[key] for key in ("devices", "parallel") if key in given})
    devices = parse_devices(moved.devices)
    if "parallel" not in given and before is not None:
        scheme = before.over(len(devices))
        if scheme.devices != len(devices):
            count, wanted = len(devices), f"{scheme.devices} devices"
            factors = f"data {scheme.data} * pipeline {scheme.pipeline} * model {scheme.model}"
            what = f"the scheme is for {wanted}, and {count} are named"
            expected = f"{factors} = {wanted}, by the run's own scheme"
            other = f"--parallel data={count}, or another for as many devices"
            remedy = f"replace the scheme: {other}; or name {wanted}"
            raise ConfigError(what, expected, ", ".join(devices[:16]), remedy)
        moved = replace(moved, parallel=None if scheme == Scheme() else str(scheme))
    if (devices, scheme_of(moved)) == (parse_devices(job.devices), before):
        return job
    return replace(moved, threads=given.get("threads"))


def _same(plan: JobPlan, name: str, value: str) -> bool:
    """Whether an option means the same as in the run, even if it is written differently."""
    if name == "data":
        open_data(value)  # refuses what is not there
        return absolute(value) == plan.job.data
    if name == "mean_file":
        image = plan.values.get(MEAN_IMAGE)
        return image is not None and image.equal(read_mean_file(value))
    if name == "net" and value != plan.job.net:
        return with_losses(find_nets(replace(plan.job, net=value), plan.data).net) == plan.net
    if name == "test_net" and value != plan.job.test_net:
        return find_nets(replace(plan.job, test_net=value), plan.data).test_net == plan.test_net
    if name == "solver" and is_prototxt(value) and is_prototxt(plan.job.solver):
        return same_solver(value, plan.job.solver)
    return bool(getattr(plan.job, name) == value)
