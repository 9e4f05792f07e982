"""The result of a lowering pass, and of lowering as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from purine.analysis.memory import Peaks, peaks
from purine.graph import Graph, Location, Op, to_text
from purine.registry.kind import Kernel

__all__ = ["Lowered"]


@dataclass(frozen=True)
class Lowered:
    """A graph in the form in which one machine runs it.

    `kernels` are the kernels of ops whose kind has none of its own, by op name. `members` are the
    ops of each segment in the order in which they run. `unsegmented` is the graph before segments
    were formed: it has the blobs that only exist inside a segment.
    """

    graph: Graph
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    members: Mapping[str, tuple[Op, ...]] = field(default_factory=dict)
    unsegmented: Graph | None = None

    def __str__(self) -> str:
        """The graph as text, then a line for each segment with its ops."""
        segments = (
            f"segment {name}: {', '.join(op.name for op in ops)}"
            for name, ops in self.members.items()
        )
        return "\n".join((to_text(self.graph), *segments))

    def peak_memory(self, *, credit: int = 1) -> Mapping[Location, int]:
        """The bytes that each device holds at its peak, with `credit` iterations in flight."""
        return self.peaks(credit=credit).devices

    def peaks(self, *, credit: int = 1) -> Peaks:
        """The same, and the most that all devices hold together at one moment."""
        return peaks(self.graph, members=self.members, unsegmented=self.unsegmented, credit=credit)
