"""The commands: where each is, and its line in the list of commands.

A command is imported when it is called, so that help and completion appear at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

import typer
from typer.core import TyperCommand

__all__ = ["COMMANDS", "Command", "add_commands", "load"]

Command: TypeAlias = Any  # of click, which typer may bring itself

_SUMMARIES = {
    "train": "Train a net and write a run folder: config, net, metrics, summary and checkpoints.",
    "test": "Measure a run's net on test data: loss and accuracy, and which classes it confuses.",
    "infer": "Write what a run's net predicts: index, class and probability of every sample, in "
    "order.",
    "export": "Write the trained net of a run for other tools, in its test-time form.",
    "replay": "Repeat an asynchronous run in the order that it recorded, and compare the "
    "parameters.",
    "launch": "Start several hosts on this machine, each a process with its share of the cores.",
    "join": "Train as a worker of a running job, until it ends or Ctrl-C.",
    "leave": "Tell a worker of a running job to send its remaining updates and leave.",
    "predict": "Predict how fast a job will run, what it needs, and what limits it. Nothing runs.",
    "plan": "Search the schemes for a job's devices, and write the best one as a job file.",
    "plot": "Draw loss and accuracy of one or several runs; dots are tests.",
    "runs": "List the runs in a folder and below it: the settings in which they differ, and their "
    "results.",
    "compare": "Show how two runs differ: in settings, in numbers, and in time.",
    "calibrate": "Measure how long kernels, dispatch and waking a thread take here, and keep the "
    "profile.",
    "explain": "Compare a recorded run with its prediction, op by op.",
    "check": "Check graphs: names, producers, cycles, locations, kinds, attributes, shapes and "
    "dtypes.",
    "show": "Show a graph: its ops with shapes, parameters, work and memory.",
    "status": "Print what each host of a running job does, and what it waits for.",
    "view": "Write one HTML file with the graph, timeline, curves, memory and traffic of a run.",
    "trace": "Sum up a trace: time by kind, busy lanes, the critical path and its longest waits.",
    "import": "Read a net that was written for another framework.",
}
"""By name the first sentence of the help of a command, in the order of the list."""
_ELSEWHERE = {
    "test": "results:measure",
    "infer": "results:infer",
    "export": "exports:export",
    "replay": "reports:replay",
    "leave": "join:leave",
    "compare": "runs:compare",
    "check": "reports:check",
    "trace": "reports:trace",
    "import": "imports:app",
}
"""By name a module of this package and a function in it, where these are not called alike."""
COMMANDS = {
    name: (_ELSEWHERE.get(name, f"{name}:{name}"), summary) for name, summary in _SUMMARIES.items()
}
"""By name a module of this package with a function in it, and the first sentence of its help."""


class _Later(TyperCommand):
    """A command that is loaded when it is called; until then its name and summary stand for it."""

    def make_context(self, info_name: str | None, *args: Any, **extra: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(info_name, *args, **extra)


def add_commands(group: Command) -> None:
    """Add all commands to a group of typer."""
    for name, (_, summary) in COMMANDS.items():
        group.add_command(_Later(name, callback=None, help=summary))


def load(name: str) -> Command:
    """A command as typer makes it, with its parameters."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    what = getattr(import_module(f"purine.cli.{module}"), attribute)
    if isinstance(what, typer.Typer):
        return typer.main.get_command(what)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # The words of the command that `launch` starts are its own, options too.
    app.command(name, context_settings={"allow_interspersed_args": name != "launch"})(what)
    return typer.main.get_command(app)
