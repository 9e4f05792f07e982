"""What is known of values without computing them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Inferred", "Spec"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The shape, dtype and torch device of a value."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Inferred:
    """What is known of a call's results without computing them.

    `specs` has None where a result is absent. `aliases` has for each result the first input that it
    shares memory with, or None. `several` says that results come in a sequence, even if it is one.
    """

    specs: tuple[Spec | None, ...]
    aliases: tuple[int | None, ...]
    several: bool
