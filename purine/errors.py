"""The exceptions a user may meet.

    PurineError
    ├── GraphError          a graph that breaks a rule, or text that is no graph
    │   ├── FormatError     the text cannot be read as a graph
    │   └── KindError       an op disagrees with its kind: attributes, shapes, dtypes
    ├── ConfigError         an option, a job file or an argument that cannot be used
    ├── DataError           a data source that is missing, damaged or of the wrong form
    ├── CheckpointError     a checkpoint that is missing, damaged or of another net
    └── RunError            something that went wrong while a graph was running
        ├── KernelError     a kernel raised
        └── StallError      nothing can make progress

Every message says what is wrong and where, then what was expected, what was found and what to do.
The same facts are attributes, for programs. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "FormatError",
    "GraphError",
    "KernelError",
    "KindError",
    "PurineError",
    "RunError",
    "StallError",
    "in_a_line",
]


class PurineError(Exception):
    """A mistake that a user can mend, told in full; `more` are others that were found with it.

    >>> print(PurineError("batch is 0", expected="1 or more", found="0", remedy="pass --batch 64"))
    batch is 0
      expected: 1 or more
      found: 0
      to do: pass --batch 64
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        op: str | None = None,
        blob: str | None = None,
        location: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.op = op
        self.blob = blob
        self.location = location
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.more: tuple[PurineError, ...] = ()
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


class KernelError(RunError):
    """A kernel raised; the original exception is the `__cause__`."""


class StallError(RunError):
    """No op can run and the iteration is not complete."""


def in_a_line(error: BaseException) -> str:
    """What an exception of somebody else says, cut to fit into a message of ours.

    >>> in_a_line(ValueError("too\\nlong"))
    'ValueError: too long'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
