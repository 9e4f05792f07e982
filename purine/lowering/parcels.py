"""Parcels: small values that are sent from one host to another as one message.

A put and its arrival cost about 40 us at both hosts, however small the value is, and a batch norm
has four values of some hundred bytes. So small vectors between the same two devices become a
parcel: one op joins them, one copy crosses, and one op splits them.

Values share a parcel only if no op then waits for itself through another host:

- values that one op reads, as the average of a bucket does: it waits for all of them anyway;
- states with the same route over hosts: all of them are there when an iteration begins. Those on
  the board are joined once, for all hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from purine.analysis.infer import size_in_bytes
from purine.graph import Attribute, Blob, Builder, Graph, Lane, Location, Op, Origin
from purine.lowering.board import is_posted

__all__ = ["in_parcels"]

_SMALL = 4096
"""Bytes up to which a value goes in a parcel."""
_LANE: Lane = "inbound"

_Key: TypeAlias = tuple[Location, Location, str, str | tuple[Location, ...]]
"""From where to where, the dtype, and the op that reads the values or the way that they took. What
goes over the board goes to all hosts."""


def in_parcels(step: Graph) -> Graph:
    """The step with small values between hosts in parcels.

    >>> import purine as pu
    >>> step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="host0-1:cpu:0")
    >>> count = lambda graph: sum(op.kind == "Copy" for op in graph.ops.values())
    >>> count(in_parcels(step)) < count(step)
    True
    """
    fixed = {name for edge in step.control for name in edge}
    kept = {*step.outputs, *(state.next for state in step.states.values())}
    parcels: dict[_Key, list[Op]] = {}
    for op in step.ops.values():
        if op.kind == "Copy" and op.name not in fixed and op.outputs[0] not in kept:
            key = _key(step, op)
            if key is not None:
                parcels.setdefault(key, []).append(op)
    several = [copies for copies in parcels.values() if len(copies) > 1]
    if not several:
        return step
    builder = Builder(step)
    for copies in several:
        _add(builder, sorted(copies, key=lambda copy: copy.name))
    return builder.graph()


def _key(step: Graph, copy: Op) -> _Key | None:
    """The key that copies of one parcel share; None for a copy that is sent alone."""
    source, target = step.blobs[copy.inputs[0]], step.blobs[copy.outputs[0]]
    if source.location.host == target.location.host or source.dtype != target.dtype:
        return None
    if source.shape is None or len(source.shape) != 1 or size_in_bytes(source) > _SMALL:
        return None
    ends = source.location, target.location, source.dtype
    if is_posted(copy):
        return (*ends, "board")
    way = _way(step, source)
    if way is not None:
        return (*ends, way)
    readers = step.consumers[target.name]
    return (*ends, readers[0].name) if len(readers) == 1 else None


def _way(step: Graph, blob: Blob) -> tuple[Location, ...] | None:
    """The earlier copies of a copied state, the nearest first; None for other blobs."""
    way = [blob.location]
    while (maker := step.producers.get(blob.name)) is not None and maker.kind == "Copy":
        blob = step.blobs[maker.inputs[0]]
        way.append(blob.location)
    return tuple(way) if maker is None and blob.name in step.states else None


def _add(builder: Builder, copies: Sequence[Op]) -> None:
    """Replace copies by a parcel, which is named after the first of them."""
    sources = [builder.blobs[copy.inputs[0]] for copy in copies]
    targets = [builder.blobs[copy.outputs[0]] for copy in copies]
    for copy in copies:
        del builder.ops[copy.name]
    sizes = tuple((blob.shape or (0,))[0] for blob in sources)
    name = f"parcel/{copies[0].name}"
    parcel = f"parcel/{sources[0].name}" if is_posted(copies[0]) else name
    sent, join = f"{parcel}/sent", f"{parcel}/join"
    known = sent in builder.blobs
    for whole, like in ((sent, sources[0]), (name, targets[0]))[known:]:
        builder.add(replace(like, name=whole, shape=(sum(sizes),), where=None))
    of, kind = Origin(sources[0].name, "copy"), "aten.split_with_sizes"
    near, far = sources[0].location, targets[0].location
    reads, writes = ([blob.name for blob in blobs] for blobs in (sources, targets))
    settings: dict[str, Attribute] = {"split_sizes": sizes}
    if not known:
        settle: dict[str, Attribute] = {"dim": 0}
        builder.op(join, "aten.cat", reads, [sent], settle, location=near, lane=_LANE, origin=of)
    builder.add(replace(copies[0], name=name, inputs=(sent,), outputs=(name,), where=None))
    builder.op(f"{name}/split", kind, [name], writes, settings, location=far, lane=_LANE, origin=of)
