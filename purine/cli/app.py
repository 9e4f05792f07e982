"""The commands, and how errors leave the program.

A mistake of the user's is one clear message on stderr and exit code 2; anything else that escapes
is a bug and keeps its traceback. Commands import what they need when they are called, and no module
of this package imports torch at its top, so that help and completion come at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from purine.cli import check, imports, measure, show, trace, train
from purine.errors import ConfigError, PurineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="purine",
    no_args_is_help=True,
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
        try:
            app(args=None if arguments is None else list(arguments), prog_name="purine")
        finally:
            print(end="", flush=True)
    except PurineError as error:
        _tell(error)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has gone
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if not _is_of_output(error):
            raise
        _drop_output()
        _tell(
            ConfigError(
                "cannot write the output",
                expected="a terminal, a file or a pipe that takes it",
                found=error.strerror or str(error),
                remedy="free space there, or send the output elsewhere",
            )
        )
        sys.exit(2)


def _tell(error: PurineError) -> None:
    print(f"error: {error}", file=sys.stderr)


def _is_of_output(error: OSError) -> bool:
    """Whether it was standard output that failed: then it fails again."""
    try:
        print(flush=True)
    except OSError as again:
        return again.errno == error.errno
    return False


def _drop_output() -> None:
    """Let what is left of the output go nowhere, for it is written again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        import purine

        typer.echo(f"purine {purine.__version__} (torch {version('torch')})")
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
