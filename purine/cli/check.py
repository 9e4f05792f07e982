"""`purine check`: everything that is wrong with graphs in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purine.errors import GraphError

__all__ = ["check"]


def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Graphs in YAML.", show_default=False)
    ],
) -> None:
    """Check graphs: names, producers, cycles, locations, kinds, attributes, shapes and dtypes.

    All mistakes are shown, not only the first, and any makes the exit code 2.

    \b
    purine check net.yaml
    """
    import purine.solvers  # noqa: F401  (registers the kinds of updates)
    from purine.graph import load_yaml
    from purine.ops import problems

    wrong = False
    for file in files:
        try:
            graph = load_yaml(file)
            found = problems(graph)
        except GraphError as error:
            found = [error]
        for problem in found:
            typer.echo(f"error: {problem}", err=True)
        if not found:
            typer.echo(f"{file}: ok ({len(graph.ops)} ops, {len(graph.blobs)} blobs)")
        wrong = wrong or bool(found)
    if wrong:
        raise typer.Exit(2)
