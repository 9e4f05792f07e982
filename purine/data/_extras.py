"""Packages that only some sources need: each is imported when it is wanted."""

from __future__ import annotations

import importlib
from typing import Any

from purine.errors import ConfigError

__all__ = ["extra"]


def extra(module: str, name: str, what: str) -> Any:
    """A module of an optional extra of this package; `what` says what it is needed for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {module.partition('.')[0]}, which cannot be imported",
            expected=f"the extra {name!r} of purine",
            found=str(error),
            remedy=f'pip install "purine[{name}]"',
        ) from error
