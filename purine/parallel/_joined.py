"""What the parts of a batch compute together: all-reduces, and the ops between them.

`backward` adds a `BatchReduce` where a value of the whole batch is needed. When the batch is cut,
each becomes one op that adds up the parts. Ops that depend on such values and on no sample are
computed once for all parts. Everything else is copied for every part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from purine.errors import GraphError
from purine.graph import Graph, Op
from purine.parallel.halves import Halves
from purine.registry.lookup import lookup


@dataclass(frozen=True, slots=True)
class Joined:
    """The ops of a step's batch half that are there once, whatever the number of parts."""

    ops: tuple[Op, ...] = ()
    blobs: frozenset[str] = frozenset()
    """What these ops make."""
    early: frozenset[str] = frozenset()
    """Ops of a part that feed all-reduces from data alone, such as counts of labels. They run ahead
    of the part's compute, so that no part waits for another."""
    varying: frozenset[str] | None = None
    """Blobs that differ from part to part; None where nobody looked."""

    def names(self) -> frozenset[str]:
        return frozenset(op.name for op in self.ops)

    def varies(self, blob: str) -> bool:
        return self.varying is None or blob in self.varying


NONE = Joined()
"""For parts that have nothing to do with each other."""


def joined_of(graph: Graph, halves: Halves) -> Joined:
    """What the parts of a batch compute together; an error where its samples cannot be parted."""
    batch = {op.name for op in halves.batch}
    joined: dict[str, Op] = {}
    blobs: set[str] = set()
    varying = set(graph.inputs)
    from_data = set(graph.inputs)
    for name in graph.order:
        if name not in batch:
            continue
        op = graph.ops[name]
        if op.kind == "WholeBatch":
            raise _mixing(graph, op)
        drawn = op.kind == "Data" or "offset" in lookup(op).attributes
        if op.kind == "BatchReduce" or (_is_gradient(op) and not op.attributes.get("shared")):
            joined[name] = op
            if op.kind == "BatchReduce":
                blobs.update(op.outputs)
            else:
                varying.update(op.outputs)
        elif drawn or _is_gradient(op) or not varying.isdisjoint(op.inputs):
            varying.update(op.outputs)
            read = (item for item in op.inputs if item in graph.producers and item in varying)
            if op.kind == "Data" or (not drawn and all(item in from_data for item in read)):
                from_data.update(op.outputs)
        elif not blobs.isdisjoint(op.inputs):
            joined[name] = op
            blobs.update(op.outputs)
    early: set[str] = set()
    for name in reversed(graph.order):
        op = graph.ops[name]
        if name in batch and op.kind != "Data" and from_data.issuperset(op.outputs):
            after = graph.successors[name]
            if after and all(r in early or graph.ops[r].kind == "BatchReduce" for r in after):
                early.add(name)
    return Joined(tuple(joined.values()), frozenset(blobs), frozenset(early), frozenset(varying))


def scale_of(op: Op, share: float) -> float:
    """What the gradient of an all-reduce is multiplied by in a part with a share of the batch."""
    scale = op.attributes.get("scale", 1.0)
    assert isinstance(scale, float | int)
    return scale / share if op.attributes["operation"] == "sum" else float(scale)


def _is_gradient(op: Op) -> bool:
    return op.kind == "BatchReduceGradient"


def _mixing(graph: Graph, op: Op) -> GraphError:
    """Why a batch cannot be cut, by the op that marks it."""
    name, because = str(op.attributes["op"]), str(op.attributes["because"])
    return GraphError(
        f"the batch cannot be cut: op {name!r} at {op.location} reads samples together",
        where=str(op.attributes.get("line") or "") or None,
        op=replace(op, name=name),
        blob=op.inputs[0],
        expected="ops that treat samples one by one, and sums or means over the batch",
        found=f"{because} (in blob {op.inputs[0]!r})",
        remedy="use plain replicas (compose with data=N alone computes such ops on the whole "
        "batch), cut layers with model=N, or train on one device without micro-batches",
    )
