"""Completion of option values by the shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["complete"]


def complete(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion function for an option that takes one of the names.

    >>> complete(("sgd", "adam", "adamw"))("ada")
    ['adam', 'adamw']
    """
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]
