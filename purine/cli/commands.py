"""The commands: where each is, and its line in the list of commands.

A command is imported when it is called, so that help and completion appear at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = ["COMMANDS", "add_commands", "load"]

COMMANDS = {
    "train": (
        "train:train",
        "Train a net and write a run folder: config, net, metrics, summary and checkpoints.",
    ),
    "test": (
        "results:measure",
        "Measure a run's net on test data: loss and accuracy, and which classes it confuses.",
    ),
    "infer": (
        "results:infer",
        "Write what a run's net predicts: index, class and probability of every sample, in order.",
    ),
    "export": (
        "exports:export",
        "Write the trained net of a run for other tools, in its test-time form.",
    ),
    "replay": (
        "reports:replay",
        "Repeat an asynchronous run in the order that it recorded, and compare the parameters.",
    ),
    "launch": (
        "launch:launch",
        "Start several hosts on this machine, each a process with its share of the cores.",
    ),
    "join": (
        "join:join",
        "Train as a worker of a running job, until it ends or Ctrl-C.",
    ),
    "leave": (
        "join:leave",
        "Tell a worker of a running job to send its remaining updates and leave.",
    ),
    "predict": (
        "predict:predict",
        "Predict how fast a job will run, what it needs, and what limits it. Nothing runs.",
    ),
    "plan": (
        "plan:plan",
        "Search the schemes for a job's devices, and write the best one as a job file.",
    ),
    "plot": (
        "plot:plot",
        "Draw loss and accuracy of one or several runs; dots are tests.",
    ),
    "runs": (
        "runs:runs",
        "List the runs in a folder and below it: the settings in which they differ, and their "
        "results.",
    ),
    "compare": (
        "runs:compare",
        "Show how two runs differ: in settings, in numbers, and in time.",
    ),
    "calibrate": (
        "calibrate:calibrate",
        "Measure how long kernels, dispatch and waking a thread take here, and keep the profile.",
    ),
    "explain": (
        "explain:explain",
        "Compare a recorded run with its prediction, op by op.",
    ),
    "check": (
        "reports:check",
        "Check graphs: names, producers, cycles, locations, kinds, attributes, shapes and dtypes.",
    ),
    "show": (
        "show:show",
        "Show a graph: its ops with shapes, parameters, work and memory.",
    ),
    "status": (
        "status:status",
        "Print what each host of a running job does, and what it waits for.",
    ),
    "view": (
        "view:view",
        "Write one HTML file with the graph, timeline, curves, memory and traffic of a run.",
    ),
    "trace": (
        "reports:trace",
        "Sum up a trace: time by kind, busy lanes, the critical path and its longest waits.",
    ),
    "import": (
        "imports:app",
        "Read a net that was written for another framework.",
    ),
}
"""By name a module of this package with a function in it, and the first sentence of its help."""


class _Later(TyperCommand):
    """A command that is loaded when it is called; until then its name and summary stand for it."""

    def make_context(self, info_name: str | None, *args: Any, **extra: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(info_name, *args, **extra)


def add_commands(group: Any) -> None:
    """Add all commands to a group of typer."""
    for name, (_, summary) in COMMANDS.items():
        group.add_command(_Later(name, callback=None, help=summary))


def load(name: str) -> Any:
    """A command as typer makes it, with its parameters."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    what = getattr(import_module(f"purine.cli.{module}"), attribute)
    if isinstance(what, typer.Typer):
        return typer.main.get_command(what)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # The words of the command that `launch` starts are its own, options too.
    app.command(name, context_settings={"allow_interspersed_args": name != "launch"})(what)
    return typer.main.get_command(app)
