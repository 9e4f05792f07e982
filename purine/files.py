"""Reading and writing files that users name.

A file is written to a temporary file that then replaces it, so a reader sees the old content or the
new one, never a part. Only a regular file is replaced: a link stays and its target is written, a
pipe or a device is written to. Only regular files of limited size are read, because a pipe and some
devices never end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from purine.errors import ConfigError, E, reason

__all__ = [
    "expanded",
    "listing",
    "put_in_place",
    "read_bounded",
    "refuse_own_input",
    "unreadable",
    "write_whole",
]

_SORTS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)


def read_bounded(path: Path, most: int) -> bytes:
    """All bytes of a regular file of at most `most` bytes; raises OSError, also for other files."""
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes to it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        for is_sort, words in _SORTS:
            if is_sort(status.st_mode):
                raise OSError(errno.EINVAL, f"{words}, not a file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes", str(path))
        return file.read()


def unreadable(
    error: type[E],
    path: str | Path,
    cause: BaseException | str,
    expected: str,
    what: str = "cannot read the file",
    remedy: str = "correct the path or its permissions",
) -> E:
    """The error for a file that cannot be read; `cause` is an exception, or what is in the file.

    >>> print(unreadable(ConfigError, "job.yaml", "a folder", "a YAML file"))
    job.yaml: cannot read the file
      expected: a YAML file
      found: a folder
      to do: correct the path or its permissions
    """
    found = cause if isinstance(cause, str) else reason(cause)
    return error(what, expected, found, remedy, where=path)


def expanded(path: str | Path) -> Path:
    """A path that a user wrote, with `~` and `~name` replaced by home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        what = f"there is no user for {user!r}"
        expected = "~ for your own folder, or ~NAME for that of a user of this machine"
        remedy = f"write ./{user} for a folder of this name, or correct the path"
        raise ConfigError(what, expected, user, remedy, where=path) from None


def listing(folder: Path) -> str:
    """The first entries of a folder, for error messages."""
    if not folder.is_dir():
        return "no such folder"
    names = sorted(entry.name for entry in folder.iterdir())
    return (", ".join(names[:8]) or "an empty folder") + (", ..." if len(names) > 8 else "")


def refuse_own_input(output: Path, *inputs: Path) -> None:
    """Raise `ConfigError` if the output is one of the input files, also through a link."""
    for source in inputs:
        try:
            same = os.path.isfile(output) and os.path.samefile(output, source)
        except (OSError, ValueError):
            continue  # reading the input reports it
        if same:
            what, expected = "the output would replace its own input", "the path of another file"
            found = f"{output} and {source}, which are one file"
            raise ConfigError(what, expected, found, "choose another path with -o", where=output)


def put_in_place(path: Path, data: bytes | str) -> None:
    """Write a file, text as UTF-8; raises OSError."""
    data = data.encode() if isinstance(data, str) else data
    path = Path(os.path.realpath(path))
    if not _may_be_replaced(path):  # a pipe, a device or a link to itself
        with open(path, "wb") as file:
            file.write(data)
        return
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file that a user named; raises `ConfigError`."""
    try:
        put_in_place(path, data)
    except (OSError, ValueError) as error:
        found, remedy = reason(error), "free space there, or choose another path"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            found = f"no folder {Path(os.path.realpath(path)).parent}"
            remedy = "make the folder, or choose another path"
        what, expected = "cannot write the file", "a path that can be written"
        raise unreadable(ConfigError, path, found, expected, what, remedy) from error


def _may_be_replaced(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
