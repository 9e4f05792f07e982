"""`purine test`: measure a trained net."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given

__all__ = ["measure"]


def measure(
    run: Annotated[Path, argument("The folder of a run.")],
    data: Annotated[
        str | None, given("Other data of the same form.", shown="that of the run")
    ] = None,
    checkpoint: Annotated[
        int | None, given("The iteration of a checkpoint.", shown="the newest one")
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

    result = job.measure(job.RunFolder.existing(run), data=data, iteration=checkpoint)
    if json:
        typer.echo(dumps(asdict(result)))
        return
    accuracy = [] if result.accuracy is None else [f"accuracy {result.accuracy:.4f}"]
    loss = [] if result.loss is None else [f"loss {result.loss:.4f}"]
    typer.echo(
        f"{', '.join([*accuracy, *loss])} on {result.samples} samples of {result.data} "
        f"after {result.iteration} iterations"
    )
