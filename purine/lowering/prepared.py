"""A graph in the form in which an executor runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from purine.graph import Graph
from purine.registry.kind import Kernel

__all__ = ["Prepared"]


@dataclass(frozen=True)
class Prepared:
    """A graph, and the kernels of those of its ops that no kind has one for, by name."""

    graph: Graph
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
