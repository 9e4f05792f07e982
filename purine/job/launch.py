"""Starting and resuming runs: from options to a plan, and from a plan to the folder of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from purine.errors import ConfigError
from purine.job.caffe import caffe_options, is_prototxt
from purine.job.config import Given, merge
from purine.job.file import read_options
from purine.job.folder import RunFolder
from purine.job.plan import JobPlan, make_plan
from purine.job.resume import resume

__all__ = ["job_layers", "open_folder", "plan_run"]


def job_layers(file: Path | None, given: Given) -> list[Given]:
    """The layers of options of a job file (YAML, or a Caffe solver) and of what is given beside it.

    Later layers count more.
    """
    if file is None:
        return [given]
    if is_prototxt(file):
        return [caffe_options(file, net="net" not in given), given]
    return [read_options(file), given]


def plan_run(layers: Sequence[Given], *, resumed: bool) -> tuple[JobPlan, RunFolder | None]:
    """The plan that layers of options describe, and the folder of the run if it is `resumed`.

    Nothing is written.
    """
    if resumed:
        return _plan_resumed(layers)
    job = merge(*layers)
    if job.out is not None:  # before the graphs are built, which may take long
        RunFolder.at(job.out).refuse_run()
    return make_plan(job), None


def open_folder(plan: JobPlan, folder: RunFolder | None) -> RunFolder:
    """The folder that a plan is carried out in: a new one, or that of a resumed run."""
    if folder is None:
        return RunFolder.create(plan.job, plan.net, test_net=plan.test_net, values=plan.values)
    if plan.job != folder.read_config():
        folder.write_config(plan.job)
    return folder


def _plan_resumed(layers: Sequence[Given]) -> tuple[JobPlan, RunFolder]:
    given = {name: value for layer in layers for name, value in layer.items()}
    if "out" not in given:
        raise ConfigError(
            "--resume does not say which run",
            expected="the folder of a run",
            found="no --out",
            remedy="write purine train --resume --out DIR",
        )
    folder = RunFolder.existing(given["out"])
    folder.refuse_lost_checkpoints()
    begins_again = folder.newest_checkpoint() is None
    notes = ("the run has no checkpoint yet, so it begins again",) if begins_again else ()
    return replace(resume(folder, given), notes=notes), folder
