"""The commands, and how errors end the program.

A user's mistake gives one clear message on stderr and exit code 2. Any other exception is a bug and
keeps its traceback. Commands import torch only when they are called, so that help and completion
appear at once.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from textwrap import shorten
from typing import Annotated, Any

import typer

from purine.cli.commands import Command, add_commands
from purine.cli.output import drop_output, prepare_output, unwritable
from purine.errors import ConfigError, HostLostError, PurineError, StallError
from purine.nearest import nearest_name

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code: 0, 2 for a mistake, 130 when interrupted."""
    prepare_output()
    try:
        try:
            words = None if arguments is None else list(arguments)
            code = _commands()(args=words, prog_name="purine", standalone_mode=False)
        finally:
            print(end="", flush=True)
        sys.exit(code or 0)
    except PurineError as error:
        _print_error(error)
        if isinstance(error, HostLostError | StallError):
            os._exit(2)  # threads may wait for another host for ever
        sys.exit(2)
    except _UsageError as error:
        sys.exit(_print_usage_error(error, sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:  # whoever read the output has gone
        drop_output()
        sys.exit(1)
    except OSError as error:
        if not _is_of_output(error):
            raise
        drop_output()
        remedy = "free space there, or send the output elsewhere"
        _print_error(unwritable(error, "cannot write the output", remedy))
        sys.exit(2)


_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of click, which typer may bring itself


def _print_error(error: PurineError) -> None:
    with suppress(OSError):  # if stderr is broken too, only the exit code is left
        print(f"error: {error}", file=sys.stderr, flush=True)


def _print_usage_error(error: Any, arguments: Sequence[str]) -> int:
    """Print a usage error in the form of our own errors; returns the exit code."""
    context = error.ctx
    if "NoArgs" in type(error).__name__:  # its message is the help
        error.show()
        return int(error.exit_code)
    wrong = getattr(error, "option_name", None)
    known = [] if context is None else [name for p in context.command.params for name in p.opts]
    remedy = f"see {'purine' if context is None else context.command_path} --help"
    usage = "purine COMMAND [OPTIONS] [ARGS]..." if context is None else context.get_usage()
    remedy = nearest_name(wrong, known, remedy) if wrong else remedy
    message = " ".join((error.message if wrong else error.format_message()).split()).rstrip(".")
    expected, found = " ".join(usage.split()), shorten(shlex.join(arguments), 200)
    _print_error(ConfigError(message, expected.removeprefix("Usage: "), found, remedy))
    return 2


def _is_of_output(error: OSError) -> bool:
    """Whether standard output failed: then it fails again."""
    try:
        print(flush=True)
    except OSError as again:
        return again.errno == error.errno
    return False


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        import purine

        typer.echo(f"purine {purine.__version__} (torch {version('torch')})")
        raise typer.Exit


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


def _commands() -> Command:
    app = typer.Typer(
        name="purine",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    group: Command = typer.main.get_command(app)
    add_commands(group)
    return group
