"""What is known of values without computing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Inferred", "Settings", "Shape", "Shapes", "Spec"]

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Shape]
Settings: TypeAlias = Mapping[str, Any]
"""The attributes of an op, with the defaults of its kind."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The shape, dtype and torch device of a value."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Inferred:
    """What is known of a call's results without computing them.

    `specs` has None for an absent result. `aliases` has the first input that a result shares memory
    with, or None. `several` says that the call returns a sequence, even of one result.
    """

    specs: tuple[Spec | None, ...]
    aliases: tuple[int | None, ...]
    several: bool
