"""A graph as a document for pictures: JSON with the folded hierarchy and its layout.

Each node is an op, a blob or a group of them; ops and blobs stand for all replicas, micro-batches
and shards of one name. Groups have the rows of their members, so a browser that opens a group only
has to compute coordinates. Equal graphs have equal documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from purine.graph import Blob, Location, Op
from purine.graph.graph import Graph
from purine.lowering import Lowered
from purine.viewer.arrange import opened
from purine.viewer.columns import Json
from purine.viewer.hierarchy import COLUMNS, Group, Leaf, grown
from purine.viewer.placing import Member, above, rows_of
from purine.viewer.templates import Template, Templates, fold_parts

__all__ = ["Node", "graph_document"]

Node: TypeAlias = dict[str, Json]

_ROLES = ("forward", "backward", "update", "recompute", "communication", "data", "clock")
_LETTER, _LINE, _CHIP, _MARGIN = 6.7, 36, 15, 24
_LONGEST = 30
"""Letters of a line in a box; the whole name is in the details."""


def graph_document(
    graph: Graph | Lowered,
    *,
    title: str = "graph",
    clock: bool = False,
    lines: Mapping[str, str] | None = None,
) -> dict[str, Json]:
    """The document of a net, a step, or a lowered graph. `clock` keeps the clock's scalars.

    `lines` has the source lines of ops that do not have one.

    >>> from purine.zoo import lenet
    >>> document = graph_document(lenet(batch=2))
    >>> document["columns"], document["roles"]
    (['forward'], ['forward', 'data'])
    """
    lowered = graph if isinstance(graph, Lowered) else Lowered(graph)
    return _Writer(lowered, fold_parts(lowered, clock=clock), lines or {}).document(title)


class _Writer:
    """Writes the nodes of a folded graph into one list; node 0 is the root."""

    def __init__(self, lowered: Lowered, folded: Templates, lines: Mapping[str, str]) -> None:
        self.lowered, self.folded, self.lines = lowered, folded, lines
        self.nodes: list[Node] = []
        self.places: dict[tuple[int, ...], int] = {}
        self.variants: dict[tuple[tuple[str, ...], ...], int] = {}
        self.op_ids: dict[int, int] = {}
        self.blob_ids: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.hosts = {node.location.host for node in lowered.graph.ops.values()}
        used = {at for one in (*folded.ops, *folded.blobs) for at in one.locations}
        self.locations = {self._location(at): k for k, at in enumerate(sorted(used, key=_natural))}

    def document(self, title: str) -> dict[str, Json]:
        root = grown(self.folded)
        self._add_group(root, None)
        for at in range(len(self.folded.blobs)):
            if at not in self.blob_ids:
                self._add_blob(at)
        for at, number in self.op_ids.items():
            self._join_op(self.folded.ops[at], self.nodes[number])
        for read, following in self.folded.following.items():
            self.nodes[self.blob_ids[read]]["next"] = self.blob_ids[following]
        self._describe_groups()
        used = [name for name in COLUMNS if any(one.column == name for one in root.members)]
        self._lay_out(used)
        roles = {op.role for op in self.folded.ops}
        graph = self.lowered.graph
        document: dict[str, Json] = {
            "version": 1,
            "title": title,
            "ops": len(graph.ops),
            "blobs": len(graph.blobs),
            "shown": sum(len(op.holes) for op in self.folded.ops),
            "templates": len(self.folded.ops),
            "columns": list(used),
            "roles": [role for role in _ROLES if role in roles],
            "locations": list(self.locations),
            "places": [list(place) for place in self.places],
            "variants": [[list(holes) for holes in variant] for variant in self.variants],
            "nodes": list(self.nodes),
        }
        return document | {"open": sorted(opened(document, None))}

    def _new(self, node: Node, parent: int | None) -> int:
        self.nodes.append(node)
        number = len(self.nodes) - 1
        if parent is not None:
            self.parents[number] = node["parent"] = parent
        return number

    def _add_group(self, group: Group, parent: int | None) -> None:
        node: Node = {"type": "group", **_position(group)}
        number = self._new(node, parent)
        for member in group.members:
            if isinstance(member, Group):
                self._add_group(member, number)
            elif member.is_op:
                self._add_op(member, number)
            else:
                self._add_blob(member.at, member, number)

    def _add_op(self, leaf: Leaf, parent: int) -> None:
        template = self.folded.ops[leaf.at]
        op = template.node
        assert isinstance(op, Op)
        node: Node = {"type": "op", **_position(leaf), "kind": op.kind, "role": template.role}
        node |= self._common(template)
        if template.flops:
            node["flops"] = template.flops
        if op.lane != "compute":
            node["lane"] = op.lane
        line = op.where or self.lines.get(op.name)
        if line:
            node["where"] = line
        self.op_ids[leaf.at] = self._new(node, parent)

    def _add_blob(self, at: int, leaf: Leaf | None = None, parent: int | None = None) -> None:
        """Add a blob; one that an op writes has no box of its own, and so no label or parent."""
        template = self.folded.blobs[at]
        blob = template.node
        assert isinstance(blob, Blob)
        node: Node = {"type": "blob", **({} if leaf is None else _position(leaf))}
        node |= {"shape": blob.type_text, **self._common(template)}
        state = self.lowered.graph.states.get(blob.name)
        if state is not None:
            node["state"] = "parameter" if state.trainable else "state"
        if at in self.folded.outputs:
            node["output"] = True
        if blob.where:
            node["where"] = blob.where
        self.blob_ids[at] = self._new(node, parent)
        if leaf is not None:
            _size(node, [leaf.label, _shape(blob)])

    def _common(self, template: Template) -> Node:
        """Names, locations and bytes. A node without `variant` has one name, that in `pieces`."""
        numbers = self._numbers(template.locations)
        node: Node = {
            "pieces": list(template.pieces),
            "place": self.places.setdefault(numbers, len(self.places)),
            "bytes": template.bytes,
        }
        if len(template.pieces) > 1:
            key = tuple(template.holes)
            node["variant"] = self.variants.setdefault(key, len(self.variants))
        return node

    def _numbers(self, locations: Iterable[Location]) -> tuple[int, ...]:
        return tuple(sorted({self.locations[self._location(location)] for location in locations}))

    def _location(self, location: Location) -> str:
        return f"{location.host} {location.device}" if len(self.hosts) > 1 else location.device

    def _join_op(self, template: Template, node: Node) -> None:
        node["in"] = [self.blob_ids[at] for at in template.inputs]
        node["out"] = [self.blob_ids[at] for at in template.outputs]
        second = f"{_short_kind(str(node['kind']))}{_times(len(template.holes))}"
        shown = [at for at in template.outputs if self._is_read(at)]
        _size(node, [str(node["label"]), second], self._chip(shown))

    def _is_read(self, at: int) -> bool:
        return bool(self.folded.blobs[at].outputs) or at in self.folded.outputs

    def _chip(self, blobs: Sequence[int]) -> str:
        """The shape of the largest blob that leaves a box, and how many others there are."""
        templates = [self.folded.blobs[at] for at in blobs]
        if not templates:
            return ""
        most = max(templates, key=lambda one: one.bytes)
        assert isinstance(most.node, Blob)
        return _shape(most.node) + (f"  +{len(templates) - 1}" if len(templates) > 1 else "")

    def _describe_groups(self) -> None:
        """Sums of groups: ops, costs and parameters, and the blobs that leave them."""
        inside: dict[int, list[Template]] = {}
        states: dict[int, list[Template]] = {}
        for at, number in self.op_ids.items():
            for group in self._above(number):
                inside.setdefault(group, []).append(self.folded.ops[at])
        for at, number in self.blob_ids.items():
            for group in self._above(number):
                states.setdefault(group, []).append(self.folded.blobs[at])
        leaving = self._leaving()
        for number, node in enumerate(self.nodes):
            if node["type"] == "group":
                own = inside.get(number, []), states.get(number, []), leaving.get(number, [])
                self._describe(number, *own)

    def _describe(
        self, number: int, ops: list[Template], states: list[Template], leaving: list[int]
    ) -> None:
        node = self.nodes[number]
        parameters = sum(self._parameters_of(blob) for blob in states)
        node["ops"] = sum(len(op.holes) for op in ops)
        node["flops"] = sum(op.flops for op in ops)
        node["bytes"] = sum(op.bytes for op in ops)
        node["roles"] = [role for role in _ROLES if any(op.role == role for op in ops)]
        places = {location for one in ops or states for location in one.locations}
        numbers = self._numbers(places)
        node["place"] = self.places.setdefault(numbers, len(self.places))
        if parameters:
            node["parameters"] = parameters
        if number == 0:
            return
        second = f"{len(states)} blobs"
        if ops:
            first = ops[0].node
            assert isinstance(first, Op)
            many = f"{len(ops)} ops"
            second = _short_kind(first.kind) if len(ops) == 1 else many
            second += _times(max(len(op.holes) for op in ops))
        elif parameters:
            second = f"{parameters:,} parameters"
        _size(node, [str(node["label"]), second], self._chip(leaving))

    def _parameters_of(self, blob: Template) -> int:
        """The number of trained elements of a blob."""
        assert isinstance(blob.node, Blob)
        state = self.lowered.graph.states.get(blob.node.name)
        return prod(blob.node.shape or ()) if state is not None and state.trainable else 0

    def _leaving(self) -> dict[int, list[int]]:
        """For each group the blobs that its ops write, and that ops outside read or a run
        returns."""
        leaving: dict[int, list[int]] = {}
        groups = {at: set(self._above(number)) for at, number in self.op_ids.items()}
        for at, blob in enumerate(self.folded.blobs):
            makers = set().union(*(groups[maker] for maker in blob.inputs))
            common = set(makers)
            if at not in self.folded.outputs:
                common = {g for g in makers if any(g not in groups[r] for r in blob.outputs)}
            for group in common:
                leaving.setdefault(group, []).append(at)
        return leaving

    def _above(self, number: int) -> list[int]:
        return above(self.parents, number)

    def _lay_out(self, columns: Sequence[str]) -> None:
        members = {
            number: Member(str(node.get("column", "")), str(node.get("block", "")))
            for number, node in enumerate(self.nodes)
        }
        order = {number: 2 * at + 1 for at, number in self.op_ids.items()}
        for at, number in self.blob_ids.items():
            if number in self.parents:  # just before its first reader
                order[number] = 2 * min(self.folded.blobs[at].outputs, default=0)
        found = rows_of(members, self.parents, self._leaf_edges(), order, columns)
        for number, rows in found.items():
            self.nodes[number] |= {"rows": rows.rows, "ways": rows.ways}

    def _leaf_edges(self) -> Iterator[tuple[int, int]]:
        for at, blob in enumerate(self.folded.blobs):
            sources = [self.op_ids[maker] for maker in blob.inputs]
            if self.blob_ids[at] in self.parents:
                sources = [self.blob_ids[at]]
            for source in sources:
                for reader in blob.outputs:
                    yield source, self.op_ids[reader]


def _natural(location: Location) -> list[tuple[int, str]]:
    """An order in which cpu:2 comes before cpu:10."""
    parts = re.split(r"(\d+)", str(location))
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _position(member: Group | Leaf) -> Node:
    node: Node = {"label": member.label, "column": member.column}
    return node | {"block": member.block} if member.block else node


def _size(node: Node, lines: list[str], chip: str = "") -> None:
    """The texts of a node's box, and the width and height that they need."""
    lines = [_shortened(line) for line in lines]
    node["lines"] = list(lines)
    widest = max(len(lines[0]) * 1.15, len(lines[1]), len(chip) + 1)
    node["size"] = [round(max(72.0, widest * _LETTER + _MARGIN)), _LINE + (_CHIP if chip else 0)]
    if chip:
        node["chip"] = chip


def _shortened(text: str) -> str:
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[: 8 * _LONGEST])
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\u2026{text[-half + 1 :]}"


def _shape(blob: Blob) -> str:
    if blob.shape is None:
        return "?"
    return "\u00d7".join(map(str, blob.shape)) or "scalar"


def _short_kind(kind: str) -> str:
    return kind.split(".")[1] if kind.startswith("aten.") else kind


def _times(count: int) -> str:
    return f"  \u00d7{count}" if count > 1 else ""
