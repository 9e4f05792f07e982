"""Gradient rules written by hand, for the few kinds whose joint cannot be traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from purine.graph import Attribute, Blob, Location, Op

__all__ = ["RULES", "Emit", "Pull", "Rule", "lower_unchanged"]


class Emit(Protocol):
    """Adds an op and its result blobs to the graph being built and returns the results' names.

    `outputs` are the names of the results: NOTHING drops one, None gives it a fresh name. The name
    of the op ends in `label`, by default in that of its kind. Its location is by default that of
    the op that is differentiated.
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


@dataclass(frozen=True, slots=True)
class Pull:
    """What the backward of an op is emitted from.

    `saved` are the blobs that `lower` returned. `cotangents` are those of the outputs, None for an
    output that no loss depends on. `wanted` says which inputs need a gradient.
    """

    op: Op
    saved: Sequence[str]
    cotangents: Sequence[str | None]
    wanted: Sequence[bool]

    @property
    def cotangent(self) -> str:
        """The cotangent of an op that has one output."""
        (cotangent,) = self.cotangents
        assert cotangent is not None
        return cotangent


@dataclass(frozen=True, slots=True)
class Rule:
    """The gradient of a kind.

    `lower` emits the forward and returns the blobs that the backward reads. `pull` emits the
    backward and returns the gradient blob of each input, or None where there is none.
    """

    lower: Callable[[Emit, Op], tuple[str, ...]]
    pull: Callable[[Emit, Pull], Sequence[str | None]]


def lower_unchanged(emit: Emit, op: Op) -> tuple[str, ...]:
    """Emit the op itself as its forward, for rules that read nothing but its inputs."""
    emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
    return ()


RULES: dict[str, Rule] = {}
"""The rules by kind; every kind that is not here is traced."""
