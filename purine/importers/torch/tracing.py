"""The trace that a thread is in, which every replacement of torch's attributes asks for.

A replacement (see `replacements`) is seen by all threads of the process, and acts in one: where
`current()` is None it calls what it replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["AnyFunction", "Args", "Lines", "Named", "Trace", "current"]

AnyFunction: TypeAlias = Callable[..., Any]
"""A function that a user, torch or Python's library defines: its signature is not known here."""

Args: TypeAlias = tuple[object, ...]
Named: TypeAlias = Mapping[str, object]
"""The arguments that such a function is given."""

Lines: TypeAlias = dict[tuple[int, str], "str | None"]
"""The user's line that assigned an attribute, by the module's id and the attribute's name."""


@dataclass(slots=True)
class Trace:
    """What the replacements learn while a module is traced, and what they need to know."""

    reads_mode: bool = False
    """Whether code other than torch's dropout and batch norm layers read `module.training`."""
    assigned: Lines = field(default_factory=dict)
    in_forward: bool = False
    """Whether the module and its loss are running, rather than the exporter around them."""
    in_rule: bool = False
    """Whether a user's gradient rule is running: functions in it need no rules of their own."""
    seeded: set[object] = field(default_factory=set)
    """The modules (`random`, `numpy.random`) that the forward gave a seed or a state."""
    greatest: Callable[[Tensor], int | None] = lambda lengths: None
    """The greatest of some sequence lengths, None where it depends on data."""

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """Let this be the trace of the calling thread."""
        outer = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(outer)

    @contextmanager
    def forward(self, greatest: Callable[[Tensor], int | None]) -> Iterator[None]:
        """Run the module and its loss."""
        self.in_forward, self.greatest = True, greatest
        self.seeded.clear()
        try:
            yield
        finally:
            self.in_forward = False

    @contextmanager
    def rule(self) -> Iterator[None]:
        """Run a gradient rule of the user's."""
        before, self.in_rule = self.in_rule, True
        try:
            yield
        finally:
            self.in_rule = before


_CURRENT: ContextVar[Trace | None] = ContextVar("current trace", default=None)


def current() -> Trace | None:
    """The innermost trace of the calling thread."""
    return _CURRENT.get()
