"""How the gradients of replicas become one: by their owner, along a tree, around a ring, natively.

The graph fixes the order of additions, so the bits are the same in every run. With `native` the
backend fixes it where it has a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.analysis.infer import size_in_bytes
from purine.graph import Attribute, Blob, Builder, Location
from purine.graph.names import reduced_of
from purine.parallel._parts import add_reduction

__all__ = ["TOPOLOGIES", "Reduction", "Topology"]

Topology: TypeAlias = Literal["sharded", "server", "tree", "ring", "native"]
TOPOLOGIES: tuple[str, ...] = get_args(Topology)


class Reduction:
    """Adds the ops of reductions to a graph that has all replicas."""

    def __init__(
        self,
        builder: Builder,
        prefixes: Sequence[str],
        groups: Mapping[Location, Sequence[Location]],
        weights: tuple[float, ...] | None,
    ) -> None:
        self.builder = builder
        self.prefixes = prefixes
        self.groups = groups
        self.weights = weights or (1.0 / len(prefixes),) * len(prefixes)
        self.even = weights is None

    def add(
        self,
        gradients: Mapping[str, tuple[Blob, Location]],
        *,
        topology: Topology,
        bucket: int,
        order: Sequence[str],
    ) -> None:
        """Add the reduction of each gradient, given as the step has it, at its owner."""
        first = self.prefixes[0]
        ops = (self.builder.ops[f"{first}/{name}"] for name in order)
        rank = {name: rank for rank, op in enumerate(ops) for name in op.outputs}
        names = sorted(gradients, key=lambda name: rank[f"{first}/{name}"])
        waiting: dict[Location, list[str]] = {}
        kind = "Reduce" if topology == "native" else "Average"
        for name in names:
            blob, owner = gradients[name]
            small = size_in_bytes(blob) <= bucket
            if topology == "tree":
                self._tree(blob, owner)
            elif topology == "ring" and not small:
                self._ring(blob, owner)
            elif small:
                group = waiting.setdefault(owner, [])
                group.append(name)
                if sum(size_in_bytes(gradients[item][0]) for item in group) >= bucket:
                    self._mean([gradients[item][0] for item in waiting.pop(owner)], owner, kind)
            else:
                self._mean([blob], owner, kind)
        for owner, group in waiting.items():
            self._mean([gradients[item][0] for item in group], owner, kind)

    def _mean(self, blobs: Sequence[Blob], owner: Location, kind: str = "Average") -> None:
        """The parts of all replicas are added up at their owner, by it or by a collective."""
        for blob in blobs:
            self.builder.add(replace(blob, location=owner))
        parts = [f"{prefix}/{blob.name}" for prefix in self.prefixes for blob in blobs]
        settings: dict[str, Attribute] = {} if self.even else {"weights": self.weights}
        if len(blobs) > 1:
            settings["groups"] = len(blobs)
        names = [blob.name for blob in blobs]
        name = reduced_of(names[0])
        add_reduction(self.builder, name, kind, parts, names, settings, location=owner)

    def _scaled(self, blob: Blob) -> list[str]:
        """The parts of all replicas, with their weights where these differ."""
        parts = [f"{prefix}/{blob.name}" for prefix in self.prefixes]
        if self.even:
            return parts
        return [
            self._op(f"{part}/weighted", "Average", [part], self.builder.blobs[part], weight)
            for part, weight in zip(parts, self.weights, strict=True)
        ]

    def _op(
        self, name: str, kind: str, inputs: list[str], like: Blob, weight: float | None = None
    ) -> str:
        self.builder.add(replace(like, name=name))
        settings: dict[str, Attribute] = {}
        if weight is not None:
            settings = {"weights": (weight,)} if kind == "Average" else {"scale": weight}
        location = like.location
        add_reduction(self.builder, name, kind, inputs, [name], settings, location=location)
        return name

    def _tree(self, blob: Blob, owner: Location) -> None:
        """Pairs of neighbours add up, then pairs of pairs; the owner is the root."""
        group = list(self.groups[blob.location])
        parts = self._scaled(blob)
        first = group.index(owner)
        order = [*range(first, len(group)), *range(first)]
        level = [(k, parts[k]) for k in order]
        depth = 0
        while len(level) > 1:
            depth += 1
            above = []
            for (at, one), (_, other) in zip(level[::2], level[1::2], strict=False):
                last = len(level) == 2
                name = blob.name if last else f"{self.prefixes[at]}/{blob.name}/tree{depth}"
                like = replace(blob, location=group[at])
                scale = 1.0 / len(group) if last and self.even else None
                above.append((at, self._op(name, "AddScaled", [one, other], like, scale)))
            level = above + level[2 * (len(level) // 2) :]
            if len(level) == 2 and level[0][0] != first:
                level.reverse()

    def _ring(self, blob: Blob, owner: Location) -> None:
        """Each device adds its share to what its neighbour sends; the owner joins the shares."""
        group = list(self.groups[blob.location])
        count = len(group)
        parts = self._scaled(blob)
        assert blob.shape is not None
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
                name = f"{self.prefixes[at]}/{blob.name}/ring{share}"
                scale = 1.0 / count if hop == count - 1 and self.even else None
                total = self._op(name, "AddScaled", [shares[at][share], total], like, scale)
            joined.append(total)
        self.builder.add(replace(blob, location=owner))
        op, names = reduced_of(blob.name), [blob.name]
        add_reduction(self.builder, op, "aten.cat", joined, names, {"dim": 0}, location=owner)

    def _cut(self, part: str, location: Location, sizes: Sequence[int]) -> list[str]:
        whole = self.builder.blobs[part]
        assert whole.shape is not None
        names = [f"{part}/share{number}" for number in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            shape = (size, *whole.shape[1:])
            self.builder.add(replace(whole, name=name, shape=shape, location=location))
        add_reduction(
            self.builder,
            f"{part}/shares",
            "aten.split_with_sizes",
            [part],
            names,
            {"split_sizes": tuple(sizes)},
            location=location,
            of=part,
        )
        return names
