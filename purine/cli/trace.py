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

    \b
    purine train --net lenet --iters 50 --trace --out runs/a
    purine trace runs/a --top 5
    """
    from purine.runtime.trace import Trace, summary

    file = path / "trace.json" if path.is_dir() else path
    typer.echo(summary(Trace.load(file)).text(top=top), nl=False)
