"""Commands that report: `purine check` on graphs, `purine replay` and `purine trace` on runs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError, PurineError

__all__ = ["check", "refuse_folder", "replay", "trace"]


def check(
    files: Annotated[
        list[Path], argument("Graphs in YAML, or Caffe's prototxt.", metavar="FILE...")
    ],
    image: Annotated[
        str | None, given("The size of an image, for a Caffe net.", metavar="C,H,W")
    ] = None,
    memory: Annotated[
        str | None,
        given("Memory of each device, for a step on several hosts: 16gb.", metavar="SIZE"),
    ] = None,
) -> None:
    """Check graphs: names, producers, cycles, locations, kinds, attributes, shapes and dtypes.

    For a step on several hosts also: each value that a host sends has the form that its receiver
    expects; hosts cannot wait for each other in a cycle; all hosts have the same order of
    collectives; with --memory, no device needs more memory than it has.
    All mistakes of a graph in YAML are shown, not only the first. With any, the exit code is 2.

    \b
    purine check net.yaml
    purine check train_val.prototxt --image 3,256,256
    """
    from purine.analysis.infer import complete, problems
    from purine.cli.imports import no_image, parse_image
    from purine.graph import load_yaml
    from purine.job.what_if import parse_size
    from purine.lowering.host_rules import host_problems
    from purine.lowering.hosts import hosts_of
    from purine.lowering.proof import prove

    most = None if memory is None else parse_size(memory)
    size = parse_image(image)
    if size is not None and not any(file.suffix == ".prototxt" for file in files):
        raise no_image(str(files[0]), "a graph in YAML says the sizes of its blobs itself")
    wrong = False
    for file in files:
        mistakes: list[PurineError]
        proof = ""
        try:
            refuse_folder(file, "check")
            if file.suffix == ".prototxt":
                from purine.importers.caffe import from_caffe

                graph = from_caffe(file, image=size).net
            else:
                graph = load_yaml(file)
            mistakes = [*problems(graph)]
            mistakes += [] if mistakes else host_problems(complete(graph))
            if not mistakes and len(hosts_of(graph)) > 1:
                proof = f"; {prove(complete(graph), memory=most)}"
        except PurineError as error:
            mistakes = [error, *error.more]
        for mistake in mistakes:
            typer.echo(f"error: {mistake}", err=True)
        if not mistakes:
            typer.echo(f"{file}: ok ({len(graph.ops)} ops, {len(graph.blobs)} blobs){proof}")
        wrong = wrong or bool(mistakes)
    if wrong:
        raise typer.Exit(2)


def refuse_folder(path: Path, command: str) -> None:
    """Raise `ConfigError` if the folder of a run is named instead of a graph."""
    net = path / "net.yaml"
    has_net = os.path.isfile(net)  # false also for a path that cannot be read
    if has_net or os.path.isfile(path / "config.yaml"):
        found, remedy = "a folder, and no net.yaml in it", "name the file of a graph"
        if has_net:
            found = "a folder"
            remedy = f"name the net of the run: purine {command} {shlex.quote(str(net))}"
        what, expected = "this is the folder of a run, not a graph", "the path of a YAML file"
        raise ConfigError(what, expected, found, remedy, where=path)


def replay(run: Annotated[Path, argument("The folder of a run.")]) -> None:
    """Repeat an asynchronous run in the order that it recorded, and compare the parameters.

    Nothing is written. The exit code is 1 if a state differs from the newest checkpoint in any bit.

    \b
    purine train --devices cpu:0-3 --parallel asynchronous=ssp,staleness=2 --out runs/a
    purine replay runs/a
    """
    from purine import job

    replayed = job.replay(job.RunFolder.existing(run))
    on = f"{replayed.iterations} iterations of {replayed.workers} workers"
    if not replayed.different:
        typer.echo(f"{on} replayed: all states are the same, bit for bit")
        return
    names = ", ".join(replayed.different[:4])
    typer.echo(
        f"{on} replayed: {len(replayed.different)} states differ, among them {names}", err=True
    )
    raise typer.Exit(1)


def trace(
    path: Annotated[Path, argument("A run or a trace.json.", metavar="RUN|FILE")],
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
) -> None:
    """Sum up a trace: time by kind, busy lanes, the critical path and its longest waits.

    For GPUs and for several devices also: how long each computed, what it waited for, and how much
    of the transfers and reductions was hidden behind compute. For several hosts also: which blobs
    of which host each device waited for, and the offsets between the clocks of the hosts. Warm-up
    is left out: the first iteration, or the first three with fused ops, which are compiled and
    captured in these.

    \b
    purine train --net lenet --iters 50 --trace --out runs/a
    purine trace runs/a --top 5
    """
    from purine.trace.clocks import clocks_text
    from purine.trace.gaps import devices_of_trace
    from purine.trace.hosts import between_hosts
    from purine.trace.overlap import overlap
    from purine.trace.summary import summary
    from purine.trace.trace import Trace

    recorded = Trace.load(_trace_of(path) if os.path.isdir(path) else path)
    typer.echo(summary(recorded).text(top=top), nl=False)
    devices = devices_of_trace(recorded)
    if len(devices) > 1 or any(", cuda:" in device for device in devices):
        typer.echo(f"\n{overlap(recorded).text()}", nl=False)
    if len(recorded.clocks) > 1:
        typer.echo(f"\n{between_hosts(recorded).text()}", nl=False)
        typer.echo(f"\n{clocks_text(recorded.clocks)}", nl=False)


def _trace_of(run: Path) -> Path:
    file = run / "trace.json"
    if not file.exists():
        names = sorted(entry.name for entry in run.iterdir() if not entry.name.startswith("."))
        expected = "trace.json, which `purine train --trace` writes"
        found = ", ".join(names[:8]) or "an empty folder"
        remedy = "train with --trace, or name the file of a trace"
        raise ConfigError("there is no trace in this folder", expected, found, remedy, where=run)
    return file
