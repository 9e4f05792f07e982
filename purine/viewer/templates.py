"""Folding the copies that a scheme of parallelism made of one op: replicas, micro-batches, shards.

A template stands for all of them. Its `names` list them, so that a picture of thousands of ops
stays as small as that of one replica. A template has the kind, the shape and the edges of its
nodes, and the sums of their sizes and costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from purine.analysis.cost import cost
from purine.analysis.infer import size_in_bytes
from purine.graph import Blob, Graph, Location, Op
from purine.graph.names import of_worker, origin_of, template_of
from purine.lowering import Lowered
from purine.registry.clock import ITERATION, SEED

__all__ = ["Template", "Templates", "fold_parts"]


@dataclass(slots=True)
class Template:
    """Nodes whose names differ only in the part of the batch, the shard and the device.

    `node` is the first of them. `inputs` and `outputs` are indices in the other list of
    `Templates`.
    """

    node: Op | Blob
    pieces: tuple[str, ...]
    role: str
    holes: list[tuple[str, ...]] = field(default_factory=list)
    locations: dict[Location, None] = field(default_factory=dict)
    inputs: dict[int, None] = field(default_factory=dict)
    outputs: dict[int, None] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0

    @property
    def name(self) -> str:
        """The common name: without the part of the batch, and with a star for parts that differ."""
        return "*".join(self.pieces).removeprefix("*")

    @property
    def names(self) -> list[str]:
        """The names of all nodes."""
        return [_zipped(self.pieces, holes) for holes in self.holes]


@dataclass(slots=True)
class Templates:
    """The folded graph; `following` has the next value of states, `outputs` what a run returns."""

    ops: list[Template] = field(default_factory=list)
    blobs: list[Template] = field(default_factory=list)
    following: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, None] = field(default_factory=dict)


_Places: TypeAlias = dict[tuple[object, ...], int]
_ROLES: Mapping[str, str] = {"copy": "communication", "reduce": "communication"}


def fold_parts(lowered: Lowered, *, clock: bool = False) -> Templates:
    """Fold the nodes that a scheme made of one node; `clock` keeps the clock and its scalars."""
    graph = lowered.graph
    ticks = _ticks(graph)
    workers = any(op.worker for op in graph.ops.values())
    folded, blob_at = Templates(), {}
    places: _Places = {}
    for name, blob in graph.blobs.items():
        if clock or name not in ticks:
            following = graph.states[name].next if name in graph.states else name
            name_of = template_of(name, graph.producers.get(following), workers=workers)
            role = "clock" if name in ticks else "state" if name in graph.states else "blob"
            key = (name_of[0], blob.dtype, name in graph.producers)
            blob_at[name] = _add(folded.blobs, places, key, blob, role, name_of)
            folded.blobs[blob_at[name]].bytes += size_in_bytes(blob)
    sizes = (lowered.unsegmented or graph).blobs
    places = {}
    for name in dict.fromkeys((*graph.order, *graph.ops)):
        op = graph.ops[name]
        tick = bool(op.outputs) and ticks.issuperset(item for item in op.outputs if item)
        if tick and not clock:
            continue
        role = "clock" if tick else _role(op)
        name_of = template_of(name, op, workers=workers)
        at = _add(folded.ops, places, (name_of[0], op.kind, role), op, role, name_of)
        template = folded.ops[at]
        for part in lowered.members.get(name, (op,)):
            work = cost(part, sizes)
            template.flops += work.flops
            template.bytes += work.bytes
        template.inputs.update((blob_at[item], None) for item in op.inputs if item in blob_at)
        template.outputs.update((blob_at[item], None) for item in op.outputs if item in blob_at)
    _join(folded)
    for read, state in graph.states.items():
        if state.next != read and read in blob_at:
            folded.following[blob_at[read]] = blob_at[state.next]
    folded.outputs.update((blob_at[name], None) for name in graph.outputs if name in blob_at)
    return folded


def _ticks(graph: Graph) -> set[str]:
    """The seed and the iteration, of each worker where there are several, and what follows."""
    known = {
        name
        for name, state in graph.states.items()
        if of_worker(name) in (SEED, ITERATION) or state.shared == ITERATION
    }
    for name in graph.order:
        op = graph.ops[name]
        scalar = all(graph.blobs[blob].shape == () for blob in op.outputs if blob)
        if op.inputs and scalar and known.issuperset(op.inputs):
            known.update(blob for blob in op.outputs if blob)
    return known


def _role(op: Op) -> str:
    purpose = origin_of(op).role
    return "data" if op.kind == "Data" else _ROLES.get(purpose, purpose)


def _add(
    templates: list[Template],
    places: _Places,
    key: tuple[object, ...],
    node: Op | Blob,
    role: str,
    name: tuple[tuple[str, ...], tuple[str, ...]],
) -> int:
    """Count a node in the template of its key, or start a template with it."""
    at = places.setdefault(key, len(templates))
    if at == len(templates):
        templates.append(Template(node, name[0], role))
    templates[at].holes.append(name[1])
    templates[at].locations[node.location] = None
    return at


def _join(folded: Templates) -> None:
    """Give blobs their edges: their writers and readers."""
    for at, op in enumerate(folded.ops):
        for blob in op.inputs:
            folded.blobs[blob].outputs[at] = None
        for blob in op.outputs:
            folded.blobs[blob].inputs[at] = None


def _zipped(pieces: tuple[str, ...], holes: tuple[str, ...]) -> str:
    return pieces[0] + "".join(h + p for h, p in zip(holes, pieces[1:], strict=True))
