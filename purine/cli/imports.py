"""`purine import`: definitions of other frameworks as graphs in YAML."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError
from purine.files import refuse_own_input, write_whole

if TYPE_CHECKING:
    from purine.importers.caffe import Imported

__all__ = ["app", "caffe", "no_image", "parse_image"]

_WEIGHTS = "Weights (caffemodel), written beside the graph as .safetensors; later ones win."

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _imports() -> None:
    """Read a net that was written for another framework."""


@app.command()
def caffe(
    file: Annotated[Path, argument("A net (prototxt).")],
    output: Annotated[Path, given("Where to write the graph.", "--output", "-o")],
    solver: Annotated[Path | None, given("A solver (prototxt) to report on.")] = None,
    image: Annotated[
        str | None, given("The size of an image of the database.", metavar="C,H,W")
    ] = None,
    batch: Annotated[int | None, given("Samples in a batch.", shown="the net's own", min=1)] = None,
    weights: Annotated[list[Path] | None, given(_WEIGHTS)] = None,
    test: Annotated[bool, typer.Option("--test", help="Write the net of the test phase.")] = False,
) -> None:
    """Write a Caffe net as a graph, and report the other settings of its files.

    \b
    purine import caffe lenet_train_test.prototxt --image 1,28,28 -o net.yaml
    purine import caffe train_val.prototxt --solver solver.prototxt --image 3,256,256 -o net.yaml
    purine import caffe deploy.prototxt --weights net.caffemodel -o net.yaml
    """
    from purine.graph import save_yaml
    from purine.importers.caffe import from_caffe

    weights, values = weights or [], output.with_suffix(".safetensors")
    for path in (output, values) if weights else (output,):
        refuse_own_input(path, file, *weights, *([solver] if solver else []))
    size = parse_image(image)
    imported = from_caffe(file, solver=solver, weights=weights, batch=batch, image=size)
    graph = imported.test if test else imported.net
    if graph is None:
        what, expected = "the net has no test phase", "a source or an input in phase TEST"
        raise ConfigError(what, expected, "none", "leave --test out", where=file)
    if weights:
        _save_values(imported, weights, values)
    save_yaml(graph, output)
    typer.echo(f"{output}: {len(graph.ops)} ops, {len(graph.blobs)} blobs")
    if weights:
        count = sum(value.numel() for value in imported.values.values())
        typer.echo(f"{values}: {count:,} values of states")
    for line in _settings_lines(imported):
        typer.echo(line)
    for note in imported.notes:
        typer.echo(f"note: {note}", err=True)


def _save_values(imported: Imported, weights: list[Path], path: Path) -> None:
    from safetensors.torch import save

    if not imported.values:
        what = "nothing in these weights fits the net"
        expected = f"values of layers: {', '.join(layer.name for layer in imported.layers[:8])}"
        found = "; ".join(imported.notes) or "no values"
        remedy = "take the weights of this net, or leave --weights out"
        raise ConfigError(what, expected, found, remedy, where=", ".join(map(str, weights)))
    write_whole(path, save(dict(imported.values)))


def _settings_lines(imported: Imported) -> list[str]:
    """What the files say besides the net: settings of the data and of the solver."""
    transform, mean = imported.transform, imported.transform.mean_image
    settings: dict[str, object] = {k: v for k, v in transform.settings().items() if k != "mean"}
    settings["mean"] = transform.mean if mean is None else f"an image {list(mean.shape)}"
    items = [] if imported.solver is None else fields(imported.solver)
    solver = {item.name: getattr(imported.solver, item.name) for item in items}
    lines = []
    for label, values in (("data", settings), ("solver", solver)):
        text = ", ".join(f"{key}={value}" for key, value in values.items() if value)
        if text:
            lines.append(f"{label}: {text}")
    return lines


def no_image(what: str, why: str) -> ConfigError:
    """What is wrong with --image for something that has no use for it."""
    expected = "a Caffe net (.prototxt), whose text leaves the size of images open"
    found, remedy = f"{what}: {why}", "leave --image out"
    return ConfigError(f"--image does not go with {what}", expected, found, remedy)


def parse_image(text: str | None) -> tuple[int, ...] | None:
    """The size of an image as it is written on the command line."""
    if text is None:
        return None
    try:
        size = tuple(int(part) for part in text.split(","))
    except ValueError:
        size = ()
    if len(size) != 3 or min(size) < 1:
        expected = "channels, height and width, each 1 or more, with commas between them"
        remedy = "write for example --image 3,32,32"
        raise ConfigError(f"--image is {text!r}", expected, repr(text), remedy)
    return size
