"""`purine check`: everything that is wrong with graphs in files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError, PurineError

__all__ = ["check", "refuse_folder"]


def check(
    files: Annotated[
        list[Path], argument("Graphs in YAML, or Caffe's prototxt.", metavar="FILE...")
    ],
    image: Annotated[
        str | None, given("The size of an image, for a Caffe net.", metavar="C,H,W")
    ] = None,
) -> None:
    """Check graphs: names, producers, cycles, locations, kinds, attributes, shapes and dtypes.

    All mistakes of a graph in YAML are shown, not only the first; any makes the exit code 2.

    \b
    purine check net.yaml
    purine check train_val.prototxt --image 3,256,256
    """
    from purine.analysis.infer import problems
    from purine.cli.imports import no_image, parse_image
    from purine.graph import load_yaml

    size = parse_image(image)
    if size is not None and not any(file.suffix == ".prototxt" for file in files):
        raise no_image(str(files[0]), "a graph in YAML says the sizes of its blobs itself")
    wrong = False
    for file in files:
        mistakes: list[PurineError]
        try:
            refuse_folder(file, "check")
            if file.suffix == ".prototxt":
                from purine.importers.caffe import from_caffe

                graph = from_caffe(file, image=size).net
            else:
                graph = load_yaml(file)
            mistakes = [*problems(graph)]
        except PurineError as error:
            mistakes = [error, *error.more]
        for mistake in mistakes:
            typer.echo(f"error: {mistake}", err=True)
        if not mistakes:
            typer.echo(f"{file}: ok ({len(graph.ops)} ops, {len(graph.blobs)} blobs)")
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
