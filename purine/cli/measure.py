"""`purine test`: measure a trained net."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["measure"]


def measure(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(help="Other data of the same form.", show_default="that of the run"),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(help="The iteration of a checkpoint.", show_default="the newest one"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run's net on test data: loss and accuracy.

    \b
    purine test runs/a
    purine test runs/a --checkpoint 1000 --json
    """
    from dataclasses import asdict
    from json import dumps

    from purine import job

    found = job.measure(job.RunFolder.existing(run), data=data, iteration=checkpoint)
    if json:
        typer.echo(dumps(asdict(found)))
        return
    accuracy = [] if found.accuracy is None else [f"accuracy {found.accuracy:.4f}"]
    loss = [] if found.loss is None else [f"loss {found.loss:.4f}"]
    typer.echo(
        f"{', '.join([*accuracy, *loss])} on {found.samples} samples of {found.data} "
        f"after {found.iteration} iterations"
    )
