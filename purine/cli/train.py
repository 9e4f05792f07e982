"""`purine train`: the arguments. Its options are those of the table in `purine.job.options`."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from pathlib import Path

import typer

from purine.cli.parameters import argument, complete, given, parameter
from purine.job.options import OPTIONS, Option

__all__ = ["given_options", "job_parameters", "train"]


def train(
    job: Path | None,
    *,
    resume: bool = False,
    dry_run: bool = False,
    live: bool = False,
    **options: object,
) -> None:
    """Train a net and write a run folder: config, net, metrics, summary and checkpoints.

    Ctrl-C (or SIGTERM, or SIGHUP unless nohup ignores it) ends a run after the iterations in flight
    with a checkpoint to resume from; a second one ends it at once. If output cannot be written (a
    closed pipe, a full disk), the run also ends with a checkpoint, a message and exit code 2.

    \b
    purine train --net lenet --epochs 5 --out runs/a
    purine train --net nin --data cifar.npz --crop 28 --mirror --solver adam --lr 0.001
    purine train --resume --out runs/a --epochs 10
    purine train --devices cpu:0-7 --parallel data=2,pipeline=4 --batch 256 --dry-run
    purine train --net resnet50 --precision bf16
    purine train --net lenet --epochs 20 --live
    purine train runs/a/config.yaml --seed 1 --out runs/b
    purine train lenet_solver.prototxt --data fashion-mini --iters 1500
    purine train solver.prototxt --weights trained.caffemodel --lr 0.001
    """
    from purine.cli.progress import run_job

    code = run_job(job, given_options(options), resumed=resume, dry=dry_run, live=live)
    if code:
        raise typer.Exit(code)


def given_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options of a job that were given, with their values as a job has them."""
    return {
        name: OPTIONS[name].from_command_line(value)
        for name, value in options.items()
        if value is not None and value != []  # what an option that may be repeated has by default
    }


def _signature() -> Signature:
    """The parameters of the command, for typer: the job file, the options, and two flags."""
    resume = typer.Option(
        "--resume",
        help="Continue the run in --out from its newest checkpoint; "
        "--epochs or --iters may be raised to train longer.",
    )
    dry_run = typer.Option(
        "--dry-run",
        help="Only print what the job needs: memory, bytes moved, schedule, time.",
    )
    live = typer.Option(
        "--live",
        help="Serve a page of the run on 127.0.0.1 until it ends, and print its address.",
    )
    parameters = job_parameters()
    # The help shows the flags behind what is saved and logged.
    at = next(k for k, one in enumerate(parameters) if one.name == "trace")
    flags = (("resume", resume), ("dry_run", dry_run), ("live", live))
    parameters[at:at] = [parameter(name, bool, flag, default=False) for name, flag in flags]
    return Signature(parameters)


def job_parameters() -> list[Parameter]:
    """The job file and the options of a job, as parameters of a command."""
    job = argument(
        "A YAML file with the options below as keys (`lr_policy: cosine`), or a Caffe solver "
        "(.prototxt); options on the command line override it. A run's config.yaml repeats "
        "that run.",
        metavar="JOB",
    )
    of_job = [parameter(name, *_argument(option)) for name, option in OPTIONS.items()]
    return [parameter("job", Path | None, job), *of_job]


def _argument(option: Option) -> tuple[object, object]:
    """The type and description of an option. Its default is shown; None means it is not given."""
    names, shown = option.names, option.shown_default or False
    completion = complete(names) if names else None
    info = given(option.help, shown=shown, metavar=option.metavar, autocompletion=completion)
    return option.argument_type | None, info


train.__dict__["__signature__"] = _signature()  # what typer reads in place of `**options`
