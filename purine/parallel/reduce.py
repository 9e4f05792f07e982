"""How the gradients of replicas become one: by their owner, along a tree, around a ring, natively.

Every way gives blob `g` at its owner from the blobs `replica0/g`, `replica1/g`, ... The order of
additions is fixed by the graph, so the bits are the same in every run; that of `native` is the
backend's where it has a collective, and else that of `sharded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.analysis.infer import size_in_bytes
from purine.graph import Attribute, Blob, Builder, Location, Origin
from purine.graph.names import reduced_of
from purine.parallel._parts import BESIDE

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
        made = {
            name: place
            for place, op in enumerate(order)
            for name in self.builder.ops[f"{self.prefixes[0]}/{op}"].outputs
        }
        names = sorted(gradients, key=lambda name: made[f"{self.prefixes[0]}/{name}"])
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
        self.builder.op(
            reduced_of(blobs[0].name),
            kind,
            parts,
            [blob.name for blob in blobs],
            settings,
            location=owner,
            lane=BESIDE,
            origin=Origin(blobs[0].name, "reduce"),
        )

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
        self.builder.op(
            name,
            kind,
            inputs,
            [name],
            settings,
            location=like.location,
            lane=BESIDE,
            origin=Origin(name, "reduce"),
        )
        return name

    def _tree(self, blob: Blob, owner: Location) -> None:
        """Pairs of neighbours add up, then pairs of pairs; the owner is the root."""
        group = list(self.groups[blob.location])
        parts = self._scaled(blob)
        first = group.index(owner)
        level = [
            ((k + first) % len(group), parts[(k + first) % len(group)]) for k in range(len(group))
        ]
        depth = 0
        while len(level) > 1:
            depth += 1
            above = []
            for place in range(0, len(level) - 1, 2):
                (at, one), (_, other) = level[place], level[place + 1]
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
        self.builder.op(
            reduced_of(blob.name),
            "aten.cat",
            joined,
            [blob.name],
            {"dim": 0},
            location=owner,
            lane=BESIDE,
            origin=Origin(blob.name, "reduce"),
        )

    def _cut(self, part: str, place: Location, sizes: Sequence[int]) -> list[str]:
        whole = self.builder.blobs[part]
        assert whole.shape is not None
        names = []
        for number, size in enumerate(sizes):
            name = f"{part}/share{number}"
            self.builder.add(
                replace(whole, name=name, shape=(size, *whole.shape[1:]), location=place)
            )
            names.append(name)
        self.builder.op(
            f"{part}/shares",
            "aten.split_with_sizes",
            [part],
            names,
            {"split_sizes": tuple(sizes)},
            location=place,
            lane=BESIDE,
            origin=Origin(part, "reduce"),
        )
        return names
