"""Reading the files of sources: optional packages, limits, and errors that all readers share."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from purine.errors import ConfigError, DataError
from purine.machine.capacity import available_memory

__all__ = ["extra", "refuse_larger_than_memory", "unreadable"]


def extra(module: str, name: str, what: str) -> ModuleType:
    """A module that only some sources need, of the extra `name`; `what` says what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{what} needs {module.partition('.')[0]}, which cannot be imported"
        expected, remedy = f"the extra {name!r} of purine", f'pip install "purine[{name}]"'
        raise ConfigError(what, expected, str(error), remedy) from error


def refuse_larger_than_memory(path: Path, size: int, what: str) -> None:
    """Raise `DataError` where the values of `what`, of `size` bytes, cannot be held in memory."""
    available = available_memory()
    if size > available:
        expected = f"at most {available:,} bytes, the memory that is available"
        found = f"{size:,} bytes of values, by its header"
        remedy = "check the file, or store the arrays as .npy files, which are read when needed"
        raise DataError(f"{what} is too large", expected, found, remedy, where=path)


def unreadable(path: Path, expected: str, found: str) -> DataError:
    """The error that a file is missing, damaged or of another format."""
    remedy = "check the path and its permissions, or write the file again"
    return DataError("the file cannot be read", expected, found, remedy, where=path)
