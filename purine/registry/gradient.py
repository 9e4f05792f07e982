"""Gradient rules written by hand, for the few kinds where tracing the joint does not do.

A rule emits ops into the graph that is being built. `lower` emits the forward and returns the names
of what the backward will want; `pull` emits the backward, given the blobs that hold the cotangents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from purine.graph import Attribute, Blob, Location, Op

__all__ = ["RULES", "Emit", "Lower", "Pull", "Rule"]


class Emit(Protocol):
    """Adds an op and its result blobs to the graph being built and returns the results' names.

    `outputs` gives the results' names: NOTHING for those nobody needs, None for those that get a
    fresh name. The op's name ends in `label`, by default in the kind's own name. It is at the
    location of the op that is differentiated, unless another is given.
    """

    def __call__(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        label: str | None = None,
        outputs: Sequence[str | None] | None = None,
        location: Location | None = None,
    ) -> tuple[str, ...]: ...

    def blob(self, name: str) -> Blob:
        """A blob of the graph being built."""
        ...


class Lower(Protocol):
    """Emits the forward of an op, and returns the names of the blobs its backward reads."""

    def __call__(self, emit: Emit, op: Op) -> tuple[str, ...]: ...


class Pull(Protocol):
    """Emits the backward; returns the gradient blob of each input, or None where there is none."""

    def __call__(
        self,
        emit: Emit,
        op: Op,
        saved: Sequence[str],
        cotangents: Sequence[str | None],
        wanted: Sequence[bool],
    ) -> Sequence[str | None]: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """How to lower an op that takes part in differentiation, and how to pull cotangents back."""

    lower: Lower
    pull: Pull


RULES: dict[str, Rule] = {}
"""The rules by kind; every kind that is not here is traced."""
