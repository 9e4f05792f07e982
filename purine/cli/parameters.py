"""Parameters of commands, for typer: built from tables instead of written as signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any

import typer

__all__ = ["argument", "complete", "given", "option", "parameter"]


def complete(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion function for an option that takes one of the names.

    >>> complete(("sgd", "adam", "adamw"))("ada")
    ['adam', 'adamw']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def parameter(name: str, kind: Any, info: object, default: object = None) -> Parameter:
    """A parameter of a command; `info` is an argument or an option of typer."""
    annotation = Annotated[kind, info]
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def argument(help: str, **settings: Any) -> Any:
    """An argument of a command, for typer."""
    return typer.Argument(help=help, show_default=False, **settings)


def given(help: str, *flags: str, shown: str | bool = False, **settings: Any) -> Any:
    """An option of a command, for typer; `shown` is the default as the help tells it."""
    return typer.Option(*flags, help=help, show_default=shown, **settings)


def option(name: str, kind: Any, help: str, *flags: str, **settings: Any) -> Parameter:
    """An option that is None if it is not given; one of kind bool is a flag without `--no-`."""
    if kind is bool:
        return parameter(name, bool, typer.Option(f"--{name}", help=help), False)
    return parameter(name, kind | None, given(help, *flags, **settings))
