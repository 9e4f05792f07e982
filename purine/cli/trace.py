"""`purine trace`: where the time of a run went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["trace"]


def trace(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="A run or a trace.json.", show_default=False)
    ],
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
) -> None:
    """Sum up a trace: time by kind, busy lanes, the critical path and its longest waits.

    For several devices also: how long each computed, what it waited for, and how much of the
    transfers and reductions was hidden behind compute.

    \b
    purine train --net lenet --iters 50 --trace --out runs/a
    purine trace runs/a --top 5
    """
    from purine.runtime.overlap import devices_of_trace, overlap
    from purine.runtime.trace import Trace, summary

    recorded = Trace.load(path / "trace.json" if path.is_dir() else path)
    found = summary(recorded)
    typer.echo(found.text(top=top), nl=False)
    if len(devices_of_trace(recorded)) > 1:
        report = overlap(recorded, skip=min(1, found.iterations - 1))
        typer.echo(f"\n{report.text()}", nl=False)
