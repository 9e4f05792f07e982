"""The exceptions a user may meet.

    PurineError
    ├── GraphError          a graph that breaks a rule, or text that is no graph
    │   ├── FormatError     the text cannot be read as a graph
    │   └── KindError       an op disagrees with its kind: attributes, shapes, dtypes
    ├── ConfigError         an option, a job file or an argument that cannot be used
    ├── DataError           a data source that is missing, damaged or of the wrong form
    ├── CheckpointError     a checkpoint that is missing, damaged or of another net
    └── RunError            something that went wrong while a graph was running
        ├── HostLostError   another host of the job is gone
        ├── KernelError     a kernel raised
        └── StallError      nothing can make progress

A message says what is wrong and where, then what was expected, what was found and what to do. The
same facts are attributes, for programs. Any other exception that escapes is a bug of ours.

Mistakes that occur in many places have one helper each. A helper takes the class of the error and
returns the error, which the caller raises:

    PurineError(what, op=op)        `op` or `blob` as a node also fills in `where` and `location`
    errors.given_twice              an option or a key that is given twice
    errors.reason                   what an exception of the system says, in one line
    nearest.unknown_name            a name that is none of the known ones; suggests the nearest
    arguments.wrong_value           a value that is out of range or of the wrong form
    files.unreadable                a file that cannot be opened, or whose content is wrong
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "FormatError",
    "GraphError",
    "HostLostError",
    "KernelError",
    "KindError",
    "PurineError",
    "RunError",
    "StallError",
    "given_twice",
    "in_a_line",
    "reason",
]


class _Node(Protocol):
    """What an error reads of an op or a blob of a graph."""

    @property
    def name(self) -> str: ...
    @property
    def location(self) -> object: ...
    @property
    def where(self) -> str | None: ...


class PurineError(Exception):
    """A mistake that the user can correct; `more` holds others that were found with it.

    `op` and `blob` are names or nodes of a graph. A node (the op, if both are nodes) also gives
    `where` and `location`, unless they are passed.

    >>> print(PurineError("batch is 0", expected="1 or more", found="0", remedy="pass --batch 64"))
    batch is 0
      expected: 1 or more
      found: 0
      to do: pass --batch 64
    """

    def __init__(
        self,
        what: str,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        *,
        where: str | Path | None = None,
        op: str | _Node | None = None,
        blob: str | _Node | None = None,
        location: str | None = None,
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.op = op if op is None or isinstance(op, str) else op.name
        self.blob = blob if blob is None or isinstance(blob, str) else blob.name
        self.location = location
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.more: tuple[PurineError, ...] = ()
        for node in (op, blob):
            if node is not None and not isinstance(node, str):
                self.where = self.where or node.where
                self.location = self.location or str(node.location)
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        details = (("expected", self.expected), ("found", self.found), ("to do", self.remedy))
        lines += [f"  {label}: {text}" for label, text in details if text is not None]
        return "\n".join(lines)


class GraphError(PurineError):
    """A graph that breaks one of the rules of `purine.graph.verify`."""


class FormatError(GraphError):
    """Text that cannot be read as a graph."""


class KindError(GraphError):
    """An op that disagrees with its kind: an unknown kind, a wrong attribute, shape or dtype."""


class ConfigError(PurineError):
    """An option, a job file or an argument that cannot be used."""


class DataError(PurineError):
    """A data source that is missing, damaged or of the wrong form."""


class CheckpointError(PurineError):
    """A checkpoint that is missing, damaged or belongs to another net."""


class RunError(PurineError):
    """Something that went wrong while a graph was running."""


class HostLostError(RunError):
    """Another host of the job is gone, and an op here waits for it.

    Threads may wait for that host for ever, so a program ends at once: with `os._exit`.
    """


class KernelError(RunError):
    """A kernel raised; the original exception is the `__cause__`."""


class StallError(RunError):
    """No op can run and the iteration is not complete."""


E = TypeVar("E", bound=PurineError)
"""The class of error that a helper is asked for."""


def given_twice(
    error: type[E],
    what: str,
    sort: str = "name",
    *,
    where: str | Path | None = None,
    found: str | None = None,
) -> E:
    """An option or a key that is given twice.

    >>> print(given_twice(ConfigError, "lr", "key", where="job.yaml:3"))
    job.yaml:3: lr is given twice
      expected: every key once
      found: a second lr
      to do: remove one
    """
    found = found or f"a second {what}"
    return error(f"{what} is given twice", f"every {sort} once", found, "remove one", where=where)


def reason(error: BaseException) -> str:
    """What an exception of the system says, without error numbers and paths.

    >>> reason(FileNotFoundError(2, "No such file or directory", "net.yaml"))
    'No such file or directory'
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def in_a_line(error: BaseException) -> str:
    """The type and the text of an exception of another library, in at most 200 characters.

    >>> in_a_line(ValueError("too\\nlong"))
    'ValueError: too long'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
