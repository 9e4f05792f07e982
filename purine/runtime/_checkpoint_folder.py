"""The folder of a run's checkpoints: names, the lock of its writer, renaming and deleting.

A folder has the name of a checkpoint only while it is complete. The name is given last, by a
rename, and removed before the folder is deleted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from purine.errors import CheckpointError

FOLDER = "checkpoints"
"""The folder of a run that holds its checkpoints."""

_DIGITS = 9
LARGEST = 10**_DIGITS - 1
"""The largest iteration that a checkpoint can have."""

_TEMPORARY = ".tmp-"
_LOCK = ".lock"
# A folder cannot be renamed over another, so the previous checkpoint of an iteration gets this
# suffix while the new one takes its name. It is complete: it counts while the new one is missing.
_REPLACED = ".replaced"
_NAME = re.compile(rf"([0-9]{{{_DIGITS}}})({re.escape(_REPLACED)})?")
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


def path_of(parent: Path, iteration: int) -> Path:
    """The path of the checkpoint of an iteration."""
    return parent / f"{iteration:0{_DIGITS}}"


def iteration_of(path: Path) -> int | None:
    """The iteration that the name of a checkpoint's folder says; None for another name."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


def checkpoints_in(parent: Path) -> dict[int, Path]:
    """The complete checkpoints in a folder by iteration."""
    paths: dict[int, Path] = {}
    with os_errors("cannot look for checkpoints", parent):
        for path in sorted(parent.iterdir()) if parent.is_dir() else ():
            iteration = iteration_of(path)
            if iteration is not None and path.is_dir():
                paths.setdefault(iteration, path)  # a plain name sorts before a replaced one
    return paths


def os_errors(
    what: str, path: Path, remedy: str = "check the permissions and the health of the disk"
) -> AbstractContextManager[None]:
    """Turn errors of the system into `CheckpointError`."""
    expected = "a folder that can be read and written"
    return refusing(what, path, expected, remedy, OSError, SafetensorError)


@contextmanager
def refusing(
    what: str, path: Path, expected: str, remedy: str, *errors: type[Exception]
) -> Iterator[None]:
    """Turn exceptions of these classes into a `CheckpointError` with their text."""
    try:
        yield
    except errors as error:
        raise CheckpointError(
            what, where=path, expected=expected, found=str(error), remedy=remedy
        ) from error


@contextmanager
def only_writer(parent: Path) -> Iterator[None]:
    """Create the folder and hold its lock; the system releases the lock when the process dies."""
    new = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for folder in new:
        flush(folder.parent)
    with open(parent / _LOCK, "ab") as lock, ExitStack() as unlocking:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what, expected = "another save is writing checkpoints here", "one run for one folder"
            found, remedy = "a lock held by another save", "give each run a folder of its own"
            raise CheckpointError(what, expected, found, remedy, where=parent) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{parent}: no file locks here, so a second run in this folder goes unnoticed",
                stacklevel=2,
            )
        else:
            # A process forked meanwhile holds the file open: closing would not release the lock.
            unlocking.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        yield


def start(target: Path, suffix: str = "") -> Path:
    """The path of a temporary folder in which to write a checkpoint, under the lock."""
    for stale in target.parent.glob(f"{_TEMPORARY}*"):  # left by a save that died
        shutil.rmtree(stale)
    return target.with_name(f"{_TEMPORARY}{target.name}{suffix}")


def put_in_place(temporary: Path, target: Path) -> None:
    """Give a complete checkpoint its name; an older one of the same name is deleted."""
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        _remove(replaced)
        os.rename(target, replaced)
    os.rename(temporary, target)
    flush(target.parent)
    _remove(replaced)


def remove_older(newest: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints of the iterations up to that of `newest`."""
    numbers = (path_of(newest.parent, number) for number in sorted(checkpoints_in(newest.parent)))
    for path in [path for path in numbers if path <= newest][:-keep]:
        # The replaced one first: it would count again once the other is gone.
        _remove(path.with_name(path.name + _REPLACED))
        _remove(path)


def _remove(path: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that no part of it is ever seen."""
    if path.exists():
        nameless = path.with_name(f"{_TEMPORARY}removed-{path.name}")
        os.rename(path, nameless)
        shutil.rmtree(nameless)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
