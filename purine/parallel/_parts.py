"""Copies of the batch half of a step, each for its own samples, and what joins them.

A copy draws the random numbers that the whole batch would draw for its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Location, Op, Origin
from purine.graph.names import origin_of
from purine.parallel._joined import NONE, Joined, scale_of
from purine.parallel.halves import Halves, samples_of
from purine.registry.lookup import lookup

BESIDE = "inbound"
"""The lane for what joins the parts of a batch: it runs beside the compute of its device."""


@dataclass(frozen=True, slots=True)
class Part:
    """One copy: the prefix of its names, its samples, and where its nodes are put."""

    prefix: str
    start: int
    size: int
    whole: int
    replica: int | None = None
    micro: int | None = None
    located: Callable[[Location], Location] = lambda location: location

    @property
    def share(self) -> float:
        return self.size / self.whole

    def name(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def origin(self, op: Op, copied: Container[str]) -> Origin:
        """What a copy of an op is for: the copy of what the op is for, where that is `copied`."""
        own = origin_of(op)
        return Origin(
            self.name(own.of) if own.of in copied else own.of,
            own.role,
            f"{self.prefix}/{own.parts}",
            own.replica if self.replica is None else self.replica,
            own.micro if self.micro is None else self.micro,
            own.stage,
            own.shard,
        )


def add_part(
    builder: Builder,
    graph: Graph,
    halves: Halves,
    part: Part,
    reads: Mapping[str, str] | None = None,
    joined: Joined = NONE,
) -> None:
    """Add a copy of the batch half; `reads` renames blobs from outside of it, such as states.

    What the parts compute together (`joined`) is left out, and read under its own names.
    """
    own = halves.made() - joined.blobs
    together = joined.names()
    names = {name: part.name(name) for name in own} | {NOTHING: NOTHING}
    outside = reads or {}
    samples = _samples(graph)
    ops = {op.name for op in halves.batch} - together
    copied = ops.union(own)
    for name in graph.blobs:
        if name in names:
            blob = graph.blobs[name]
            builder.add(replace(blob, name=names[name], location=part.located(blob.location)))
    for op in halves.batch:
        if op.name in together:
            continue
        builder.add(
            replace(
                op,
                name=part.name(op.name),
                inputs=tuple(names.get(name) or outside.get(name, name) for name in op.inputs),
                outputs=tuple(names[name] for name in op.outputs),
                attributes=_moved(graph, op, part, samples),
                location=part.located(op.location),
                lane=BESIDE if op.name in joined.early else op.lane,
                origin=part.origin(op, copied),
            )
        )
    builder.control |= {
        (part.name(before), part.name(after))
        for before, after in graph.control
        if before in ops and after in ops
    }


def add_joined(builder: Builder, graph: Graph, joined: Joined, parts: Sequence[Part]) -> None:
    """Add what the parts compute together, at the devices of the first part."""
    first = parts[0]

    def read(name: str) -> str:
        """A blob of the step that all parts have alike, as one of them has it."""
        own = name in joined.blobs or first.name(name) not in builder.blobs
        return name if own else first.name(name)

    for op in joined.ops:
        location = first.located(op.location)
        for name in op.outputs:
            if name in joined.blobs:
                builder.add(replace(graph.blobs[name], location=location))
        if op.kind == "BatchReduce":
            total = _reduced(builder, graph, op, parts)
            builder.add(replace(op, inputs=(total,), location=location, lane=BESIDE))
        elif op.kind == "BatchReduceGradient":
            _add_gradients(builder, graph, op, parts)
        else:
            inputs = tuple(map(read, op.inputs))
            builder.add(replace(op, inputs=inputs, location=location, lane=BESIDE))


def _reduced(builder: Builder, graph: Graph, op: Op, parts: Sequence[Part]) -> str:
    """Add the sum or the mean over all parts of what an op reads."""
    (source,) = op.inputs
    blob, name = graph.blobs[source], builder.fresh(f"{op.name}/parts")
    location = parts[0].located(op.location)
    values = [part.name(source) for part in parts]
    shares = tuple(part.share for part in parts)
    if "float" in blob.dtype:
        weights = (1.0,) * len(parts) if op.attributes["operation"] == "sum" else shares
        average(builder, blob, name, values, location=location, weights=weights, of=op.name)
        return name
    builder.add(replace(blob, name=name, location=location))
    add_reduction(builder, name, "CountSum", values, [name], location=location, of=op.name)
    return name


def _add_gradients(builder: Builder, graph: Graph, op: Op, parts: Sequence[Part]) -> None:
    """Add the mean over all parts of the gradient behind an all-reduce, and what each part gets."""
    (result,) = op.outputs
    mean = replace(op, attributes={**op.attributes, "operation": "mean"})
    total = _reduced(builder, graph, mean, parts)
    like, whole = graph.blobs[result], builder.fresh(f"{result}/whole")
    location = parts[0].located(op.location)
    builder.add(replace(like, name=whole, location=location))
    builder.add(replace(op, inputs=(total,), outputs=(whole,), location=location, lane=BESIDE))
    for part in parts:
        scale = scale_of(replace(op, attributes={**op.attributes, "scale": 1.0}), part.share)
        builder.op(
            part.name(op.name),
            "aten.mul.Scalar",
            [whole],
            [part.name(result)],
            {"other": scale},
            location=part.located(op.location),
            origin=part.origin(op, ()),
        )


def average(
    builder: Builder,
    like: Blob,
    name: str,
    parts: list[str],
    *,
    location: Location,
    weights: tuple[float, ...] | None = None,
    of: str | None = None,
) -> None:
    """Add the mean of several blobs as blob and op `name`, which belongs to the blob or to `of`."""
    builder.add(replace(like, name=name, location=location))
    settings: dict[str, Attribute] = {} if weights is None else {"weights": weights}
    add_reduction(builder, name, "Average", parts, [name], settings, location=location, of=of)


def add_reduction(
    builder: Builder,
    name: str,
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    settings: Mapping[str, Attribute] | None = None,
    *,
    location: Location,
    of: str | None = None,
) -> None:
    """Add an op that joins values of parts; it belongs to its first output, or to `of`."""
    origin = Origin(of or outputs[0], "reduce")
    builder.op(name, kind, inputs, outputs, settings, location=location, lane=BESIDE, origin=origin)


def add_next(
    builder: Builder,
    blob: Blob,
    parts: Sequence[Part],
    location: Location,
    weights: tuple[float, ...] | None = None,
) -> None:
    """Add the next value of a state that all parts update: their mean, or the first of counts."""
    name, values = blob.name, [part.name(blob.name) for part in parts]
    if "float" in blob.dtype:
        average(builder, blob, name, values, location=location, weights=weights)
    else:
        builder.add(replace(blob, location=location))
        add_reduction(builder, name, "aten.clone", values[:1], [name], location=location)


def add_outputs(
    builder: Builder,
    graph: Graph,
    copied: Container[str],
    parts: Sequence[Part],
    weights: tuple[float, ...] | None = None,
) -> None:
    """Add the outputs of a graph; of those that are copied, the means of scalars, or each copy."""
    for name in graph.outputs:
        blob, copies = graph.blobs[name], [part.name(name) for part in parts]
        if name in copied and not is_scalar(blob):
            builder.outputs += copies
            continue
        if name in copied:
            location = parts[0].located(blob.location)
            average(builder, blob, name, copies, location=location, weights=weights)
        builder.outputs.append(name)


def is_scalar(blob: Blob) -> bool:
    return blob.shape == () and "float" in blob.dtype


def _moved(graph: Graph, op: Op, part: Part, samples: Mapping[str, int]) -> Mapping[str, Attribute]:
    """The attributes of an op, moved to the samples of its part."""
    if op.kind == "Data":
        offset = op.attributes.get("offset", 0)
        assert isinstance(offset, int)
        return {**op.attributes, "offset": part.start + offset, "whole": part.whole}
    if op.kind == "BatchReduceGradient":
        return {**op.attributes, "scale": scale_of(op, part.share)}
    if part.start and {"offset", "stream"} <= lookup(op).attributes.keys():
        offset = op.attributes.get("offset", 0)
        shape = graph.blobs[op.outputs[0]].shape
        assert isinstance(offset, int)
        if shape and not op.attributes.get("shared"):
            # Rows of the blob for each sample: more than one where places were joined with samples.
            rows = shape[0] // samples[op.name]
            return {**op.attributes, "offset": offset + part.start * rows}
    return op.attributes


def _samples(graph: Graph) -> dict[str, int]:
    """How many samples of the batch each op works on.

    In a graph that has cut its batch already, ops work on one part of it, or on several that were
    joined. What reads no samples itself, such as a mask, works on as many as those who read it.
    """
    sizes: dict[int | None, int] = {None: samples_of(graph)}
    read: dict[str, frozenset[int | None]] = dict.fromkeys(graph.inputs, frozenset((None,)))
    parts_of: dict[str, frozenset[int | None]] = {}
    nothing: frozenset[int | None] = frozenset()
    for name in graph.order:
        op = graph.ops[name]
        parts = nothing.union(*(read.get(blob, nothing) for blob in op.inputs))
        if op.kind == "Data":
            offset = op.attributes.get("offset", 0)
            assert isinstance(offset, int)
            shape = graph.blobs[next(blob for blob in op.outputs if blob != NOTHING)].shape
            assert shape
            sizes[offset] = shape[0]
            parts = frozenset((offset,))
        parts_of[name] = parts
        read.update(dict.fromkeys(op.outputs, parts))
    for name in reversed(graph.order):
        if not parts_of[name]:
            blobs = graph.ops[name].outputs
            read_by = (parts_of[op.name] for blob in blobs for op in graph.consumers.get(blob, ()))
            parts_of[name] = next(filter(None, read_by), nothing)
    return {
        name: sum(sizes[part] for part in parts) if parts else sizes[None]
        for name, parts in parts_of.items()
    }
