"""Files that appear whole or not at all, and files that are read with a bound.

What is written is a draft on disk that takes the place of the file. Only a regular file is ever
replaced: a link stays, and what it points to is written; a pipe or a device is written to. What is
read is a regular file of limited size: a pipe may never end, and neither do some devices.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from purine.errors import ConfigError

__all__ = ["expanded", "put_in_place", "read_bounded", "refuse_own_input", "write_whole"]

_SORTS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)


def read_bounded(path: Path, most: int) -> bytes:
    """All bytes of a regular file of at most `most` bytes; an OSError is the caller's to tell."""
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes to it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        for is_sort, words in _SORTS:
            if is_sort(status.st_mode):
                raise OSError(errno.EINVAL, f"{words}, not a file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes", str(path))
        return file.read()


def expanded(path: str | Path) -> Path:
    """A path that a user wrote, with `~` and `~name` as the folders they stand for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ConfigError(
            f"{user!r} is the folder of nobody",
            where=str(path),
            expected="~ for your own folder, or ~NAME for that of a user of this machine",
            found=user,
            remedy=f"write ./{user} for a folder of this name, or correct the path",
        ) from None


def refuse_own_input(output: Path, *inputs: Path) -> None:
    """Raise `ConfigError` where an output is one of the files it is made from, by whatever name."""
    for source in inputs:
        try:
            same = os.path.isfile(output) and os.path.samefile(output, source)
        except (OSError, ValueError):
            continue  # what cannot be read is told when it is read
        if same:
            raise ConfigError(
                "the output would replace its own input",
                where=str(output),
                expected="the path of another file",
                found=f"{output} and {source}, which are one file",
                remedy="choose another path with -o",
            )


def put_in_place(path: Path, data: bytes | str) -> None:
    """Write a file, text as UTF-8; an OSError is the caller's to tell."""
    data = data.encode() if isinstance(data, str) else data
    path = Path(os.path.realpath(path))
    if not _may_be_replaced(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file that a user named."""
    try:
        put_in_place(path, data)
    except (OSError, ValueError) as error:
        found = (error.strerror if isinstance(error, OSError) else None) or str(error)
        remedy = "free space there, or choose another path"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            found = f"no folder {Path(os.path.realpath(path)).parent}"
            remedy = "make the folder, or choose another path"
        raise ConfigError(
            "cannot write the file",
            where=str(path),
            expected="a path that can be written",
            found=found,
            remedy=remedy,
        ) from error


def _may_be_replaced(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
