"""Reduction of gradients over replicas: by their owner, along a tree, around a ring, or natively.

The graph fixes the order of additions, so the bits are the same in every run. With `native` the
backend fixes it where it has a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.analysis.infer import size_in_bytes, spec_of
from purine.graph import Attribute, Blob, Builder, Location
from purine.graph.names import reduced_of
from purine.parallel._parts import Part, add_average, add_reduction, weighting
from purine.parallel.routes import Form

__all__ = ["FORMS", "TOPOLOGIES", "Reduction", "Topology"]

Topology: TypeAlias = Literal["sharded", "server", "tree", "ring", "native"]
TOPOLOGIES: tuple[str, ...] = get_args(Topology)
FORMS: Mapping[Topology, Form] = {
    "sharded": "star",
    "server": "star",
    "tree": "tree",
    "ring": "path",
    "native": "flat",
}
"""The tree along which hosts reduce."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Adds the ops of reductions to a graph that has all replicas."""

    builder: Builder
    parts: Sequence[Part]

    def add(
        self,
        gradients: Mapping[str, tuple[Blob, Location]],
        *,
        topology: Topology,
        bucket: int,
        order: Sequence[str],
    ) -> None:
        """Add the reduction of each gradient, given as the step has it, at its owner."""
        first = self.parts[0].name
        ops = (self.builder.ops[first(name)] for name in order)
        rank = {name: rank for rank, op in enumerate(ops) for name in op.outputs}
        names = sorted(gradients, key=lambda name: rank[first(name)])
        waiting: dict[Location, list[Blob]] = {}
        kind = "Reduce" if topology == "native" else "Average"
        for blob, owner in map(gradients.__getitem__, names):
            small = size_in_bytes(blob) <= bucket
            if topology == "tree":
                self._tree(blob, owner)
            elif topology == "ring" and not small:
                self._ring(blob, owner)
            elif small:
                group = waiting.setdefault(owner, [])
                group.append(blob)
                if sum(map(size_in_bytes, group)) >= bucket:
                    self._mean(waiting.pop(owner), owner, kind)
            else:
                self._mean([blob], owner, kind)
        for owner, group in waiting.items():
            self._mean(group, owner, kind)

    def _mean(self, blobs: Sequence[Blob], owner: Location, kind: str = "Average") -> None:
        """The owner adds the parts of all replicas, itself or by a collective."""
        parts = [part.name(blob.name) for part in self.parts for blob in blobs]
        wholes = [replace(blob, location=owner) for blob in blobs]
        add_average(self.builder, parts, wholes, weighting(self.parts), kind)

    def _scaled(self, blob: Blob) -> list[str]:
        """The parts of all replicas, with their weights if these differ."""
        names = [part.name(blob.name) for part in self.parts]
        if not weighting(self.parts):
            return names
        return [
            self._op(f"{name}/weighted", "Average", [name], self.builder.blobs[name], part.share)
            for name, part in zip(names, self.parts, strict=True)
        ]

    def _op(
        self, name: str, kind: str, inputs: list[str], like: Blob, weight: float | None = None
    ) -> str:
        settings: dict[str, Attribute] = {}
        if weight is not None:
            settings = {"weights": (weight,)} if kind == "Average" else {"scale": weight}
        add_reduction(self.builder, kind, inputs, [replace(like, name=name)], settings)
        return name

    def _tree(self, blob: Blob, owner: Location) -> None:
        """Pairs of neighbours add up, then pairs of pairs; the owner is the root."""
        group = [part.located(blob.location) for part in self.parts]
        parts, even = self._scaled(blob), not weighting(self.parts)
        first = group.index(owner)
        order = [*range(first, len(group)), *range(first)]
        level = [(k, parts[k]) for k in order]
        depth = 0
        while len(level) > 1:
            depth += 1
            above = []
            for (at, one), (_, other) in zip(level[::2], level[1::2], strict=False):
                last = len(level) == 2
                name = blob.name if last else self.parts[at].name(f"{blob.name}/tree{depth}")
                like = replace(blob, location=group[at])
                scale = 1.0 / len(group) if last and even else None
                above.append((at, self._op(name, "AddScaled", [one, other], like, scale)))
            level = above + level[2 * (len(level) // 2) :]
            if len(level) == 2 and level[0][0] != first:
                level.reverse()

    def _ring(self, blob: Blob, owner: Location) -> None:
        """Each device adds its share to what its neighbour sends; the owner joins the shares."""
        group = [part.located(blob.location) for part in self.parts]
        parts, even, count = self._scaled(blob), not weighting(self.parts), len(group)
        extent = blob.shape[0] if blob.shape else 1
        if extent < count:
            self._mean([blob], owner)
            return
        sizes = [extent // count + (k < extent % count) for k in range(count)]
        shares = [self._cut(part, group[k], sizes) for k, part in enumerate(parts)]
        joined = []
        for share in range(count):
            total = shares[share][share]
            for hop in range(1, count):
                at = (share + hop) % count
                like = self.builder.blobs[shares[at][share]]
                name = self.parts[at].name(f"{blob.name}/ring{share}")
                scale = 1.0 / count if hop == count - 1 and even else None
                total = self._op(name, "AddScaled", [shares[at][share], total], like, scale)
            joined.append(total)
        whole, name = replace(blob, location=owner), reduced_of(blob.name)
        add_reduction(self.builder, "aten.cat", joined, [whole], {"dim": 0}, name=name)

    def _cut(self, part: str, location: Location, sizes: Sequence[int]) -> list[str]:
        whole = replace(self.builder.blobs[part], location=location)
        shapes = ((size, *spec_of(whole).shape[1:]) for size in sizes)
        shares = [
            replace(whole, name=f"{part}/share{number}", shape=shape)
            for number, shape in enumerate(shapes)
        ]
        kind, settings = "aten.split_with_sizes", {"split_sizes": tuple(sizes)}
        add_reduction(self.builder, kind, [part], shares, settings, name=f"{part}/shares", of=part)
        return [share.name for share in shares]
