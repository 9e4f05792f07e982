"""`purine export`: the trained net of a run in the formats of other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given

__all__ = ["export"]

Format = StrEnum("Format", ["safetensors", "torch", "caffe", "onnx"])
"""The formats of other tools."""


def export(
    run: Annotated[Path, argument("The folder of a run.")],
    format: Annotated[Format, typer.Option(help="The format.", show_default=False)],
    out: Annotated[
        Path | None, given("Where to write.", metavar="FILE", shown="RUN/net.ENDING of the format")
    ] = None,
    output: Annotated[
        list[str] | None,
        given("An output blob; may be repeated.", shown="what its losses read"),
    ] = None,
    checkpoint: Annotated[
        int | None, given("The iteration of a checkpoint.", shown="the newest one")
    ] = None,
) -> None:
    """Write the trained net of a run for other tools, in its test-time form.

    safetensors has the values alone, by the names of states. torch is a program for
    torch.export.load (.pt2), or a state dict for torch.load (.pt). caffe is a definition with its
    caffemodel beside it. onnx needs the extra purine[onnx].

    \b
    purine export runs/a --format onnx --out lenet.onnx
    purine export runs/a --format torch --out lenet.pt2
    purine export runs/a --format caffe --out deploy.prototxt
    """
    from purine.files import write_whole
    from purine.job import RunFolder
    from purine.job.export import SUFFIXES, export

    folder = RunFolder.existing(run)
    path = folder.path / f"net{SUFFIXES[format.value][0]}" if out is None else out
    exported = export(folder, format.value, path, iteration=checkpoint, outputs=output or [])
    for file, data in exported.files.items():
        write_whole(file, data)
        typer.echo(f"{file}: {len(data):,} bytes, after {exported.iteration} iterations")
    for note in exported.notes:
        typer.echo(f"note: {note}", err=True)
