"""The commands, and how errors leave the program.

A mistake of the user's is one clear message on stderr and exit code 2; anything else that escapes
is a bug and keeps its traceback. Commands import what they need when they are called, so that help
comes at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from purine.cli import check, imports, measure, show, trace, train
from purine.errors import PurineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="purine",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train.train)
app.command("test")(measure.measure)
app.command()(check.check)
app.command()(show.show)
app.command()(trace.trace)
app.add_typer(imports.app, name="import")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code: 0, 2 for a mistake, 130 when interrupted."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="purine")
    except PurineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # Whoever read the output has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        import torch

        import purine

        typer.echo(f"purine {purine.__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions."),
    ] = False,
) -> None:
    """Deep learning as one bipartite graph of ops and blobs, run by an event-driven dispatcher.

    \b
    purine train --net lenet --data fashion-mini --epochs 5 --out runs/a
    purine test runs/a
    purine show --net lenet
    """
