"""Copies of the batch half of a step, each for its own samples, and the ops that combine them.

A copy draws the random numbers that the whole batch would draw for its samples. `backward` adds a
`BatchReduce` where a value of the whole batch is needed. Each becomes one op that adds up the
parts. Ops that depend on such values and on no sample are computed once for all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from purine.analysis.infer import spec_of
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Lane, Location, Op, Origin
from purine.graph.names import origin_of, reduced_of, replica
from purine.parallel.halves import Halves, follow, samples_of
from purine.placement.devices import devices_of
from purine.registry.lookup import lookup
from purine.solvers.clip import norm_of_norms

BESIDE: Lane = "inbound"
"""The lane for what joins the parts of a batch: it runs beside the compute of its device."""


@dataclass(frozen=True, slots=True)
class Part:
    """One copy: the prefix of its names, its samples, and the location of its nodes."""

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
        """The origin of a copy of an op; it refers to copies where those are `copied`."""
        own = origin_of(op)
        return replace(
            own,
            of=self.name(own.of) if own.of in copied else own.of,
            parts=self.name(own.parts),
            replica=own.replica if self.replica is None else self.replica,
            micro=own.micro if self.micro is None else self.micro,
        )


@dataclass(frozen=True, slots=True)
class Joined:
    """The ops of a step's batch half that exist once, whatever the number of parts."""

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


def replicas_on(steps: Sequence[Graph], places: Sequence[Sequence[Location]]) -> list[Part]:
    """A part of the batch for each of several steps, which differ in their batch alone, with the
    devices of the part in place of those of its step."""
    own, size_of = devices_of(steps[0]), cache(samples_of)
    whole, start = sum(map(size_of, steps)), 0
    parts: list[Part] = []
    for number, (step, onto) in enumerate(zip(steps, places, strict=True)):
        at = dict(zip(own, onto, strict=True)).__getitem__
        parts.append(Part(replica(number), start, size_of(step), whole, number, located=at))
        start += size_of(step)
    return parts


def homes_of(
    step: Graph, halves: Halves, first: Part, owners: Mapping[str, Location]
) -> dict[str, Location]:
    """The location of every op that exists once; those of a parameter are at its owner."""
    homes = {name: first.located(blob.location) for name, blob in step.blobs.items()}
    borders = {border: owners[p] for p, border in halves.gradients.items() if p in owners}
    return follow(step, halves, {**homes, **owners, **borders}, {*owners, *borders})


def add_once(builder: Builder, op: Op, homes: Mapping[str, Location]) -> None:
    """Add an op of the once half at the home of what it makes."""
    home = homes[next(name for name in op.outputs if name != NOTHING)]
    if op.kind == "GlobalNorm":
        op = norm_of_norms(builder, replace(op, lane=BESIDE), homes)
    builder.add(replace(op, location=home, lane="io" if op.lane == "io" else BESIDE))


def add_part(
    builder: Builder,
    graph: Graph,
    halves: Halves,
    part: Part,
    reads: Mapping[str, str] | None = None,
    joined: Joined = NONE,
) -> None:
    """Add a copy of the batch half; `reads` renames blobs from outside of it, such as states.

    Ops that the parts compute together (`joined`) are left out, and read under their own names.
    """
    own = halves.made() - joined.blobs
    names = {name: part.name(name) for name in own} | {NOTHING: NOTHING}
    renamed = {**(reads or {}), **names}
    samples = _samples(graph)
    ops = {op.name for op in halves.batch} - joined.names()
    copied = ops.union(own)
    for name, blob in graph.blobs.items():
        if name in names:
            builder.add(replace(blob, name=names[name], location=part.located(blob.location)))
    for op in (op for op in halves.batch if op.name in ops):
        copy = replace(
            op,
            name=part.name(op.name),
            inputs=tuple(renamed.get(name, name) for name in op.inputs),
            outputs=tuple(names[name] for name in op.outputs),
            attributes=_moved(graph, op, part, samples),
            location=part.located(op.location),
            lane=BESIDE if op.name in joined.early else op.lane,
            origin=part.origin(op, copied),
        )
        builder.add(copy)
    builder.control |= {
        (part.name(before), part.name(after))
        for before, after in graph.control
        if before in ops and after in ops
    }


def add_joined(builder: Builder, graph: Graph, joined: Joined, parts: Sequence[Part]) -> None:
    """Add the ops that the parts compute together, at the devices of the first part."""
    first = parts[0]

    def read(name: str) -> str:
        """A part's name of a blob of the step that is the same in all parts."""
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
    """Add the sum or the mean of the inputs of an op over all parts."""
    (source,) = op.inputs
    location = parts[0].located(op.location)
    blob = replace(graph.blobs[source], name=builder.fresh(f"{op.name}/parts"), location=location)
    values = [part.name(source) for part in parts]
    if "float" in blob.dtype:
        sums = op.attributes["operation"] == "sum"
        weights = tuple(1.0 if sums else part.share for part in parts)
        add_reduction(builder, "Average", values, [blob], {"weights": weights}, of=op.name)
    else:
        add_reduction(builder, "CountSum", values, [blob], of=op.name)
    return blob.name


def _add_gradients(builder: Builder, graph: Graph, op: Op, parts: Sequence[Part]) -> None:
    """Add the mean over all parts of the gradient of an all-reduce, and the gradient of each
    part."""
    (result,) = op.outputs
    mean = replace(op, attributes={**op.attributes, "operation": "mean"})
    total = _reduced(builder, graph, mean, parts)
    like, whole = graph.blobs[result], builder.fresh(f"{result}/whole")
    location = parts[0].located(op.location)
    builder.add(replace(like, name=whole, location=location))
    builder.add(replace(op, inputs=(total,), outputs=(whole,), location=location, lane=BESIDE))
    for part in parts:
        scale = scale_of(replace(op, attributes={**op.attributes, "scale": 1.0}), part.share)
        at, own, origin = part.located(op.location), part.name(result), part.origin(op, ())
        scaled = Op(part.name(op.name), "aten.mul.Scalar", (whole,), (own,), {"other": scale}, at)
        builder.add(replace(scaled, origin=origin))


def add_reduction(
    builder: Builder,
    kind: str,
    values: Sequence[str],
    blobs: Sequence[Blob],
    settings: Mapping[str, Attribute] | None = None,
    *,
    name: str | None = None,
    of: str | None = None,
) -> None:
    """Add blobs, and an op that computes them from values of parts.

    The op is at the location of the first blob, has its name unless one is given, and its origin is
    that blob or `of`.
    """
    for blob in blobs:
        builder.add(blob)
    first, outputs = blobs[0], tuple(blob.name for blob in blobs)
    op = Op(
        name or first.name, kind, tuple(values), outputs, settings or {}, first.location, BESIDE
    )
    builder.add(replace(op, origin=Origin(of or first.name, "reduce")))


def add_average(
    builder: Builder,
    values: Sequence[str],
    means: Sequence[Blob],
    settings: Mapping[str, Attribute],
    kind: str = "Average",
) -> None:
    """Add means of values of parts; of several blobs, the values are in groups of as many."""
    if len(means) > 1:
        settings = {**settings, "groups": len(means)}
    add_reduction(builder, kind, values, means, settings, name=reduced_of(means[0].name))


def weighting(parts: Sequence[Part]) -> dict[str, Attribute]:
    """The attributes of a mean over parts: their shares of the batch, if these differ."""
    shares = tuple(part.share for part in parts)
    return {"weights": shares} if len({part.size for part in parts}) > 1 else {}


def add_next(builder: Builder, blob: Blob, parts: Sequence[Part]) -> None:
    """Add the next value of a state that all parts update: their mean, or the first of counts."""
    values = [part.name(blob.name) for part in parts]
    if "float" in blob.dtype:
        add_reduction(builder, "Average", values, [blob], weighting(parts))
    else:
        add_reduction(builder, "aten.clone", values[:1], [blob])


def add_outputs(
    builder: Builder, graph: Graph, copied: Container[str], parts: Sequence[Part]
) -> None:
    """Add the outputs of a graph; for copied ones the means of scalars, or each copy."""
    for name in graph.outputs:
        blob, copies = graph.blobs[name], [part.name(name) for part in parts]
        if name in copied and not is_scalar(blob):
            builder.outputs += copies
            continue
        if name in copied:
            mean = replace(blob, location=parts[0].located(blob.location))
            add_reduction(builder, "Average", copies, [mean], weighting(parts))
        builder.outputs.append(name)


def is_scalar(blob: Blob) -> bool:
    return blob.shape == () and "float" in blob.dtype


def _moved(graph: Graph, op: Op, part: Part, samples: Mapping[str, int]) -> Mapping[str, Attribute]:
    """The attributes of an op, moved to the samples of its part."""
    if op.kind == "Data":
        return {**op.attributes, "offset": part.start + _offset(op), "whole": part.whole}
    if op.kind == "BatchReduceGradient":
        return {**op.attributes, "scale": scale_of(op, part.share)}
    if part.start and {"offset", "stream"} <= lookup(op).attributes.keys():
        shape = graph.blobs[op.outputs[0]].shape
        if shape and not op.attributes.get("shared"):
            # Rows of the blob for each sample: more than one where places were joined with samples.
            rows = shape[0] // samples[op.name]
            return {**op.attributes, "offset": _offset(op) + part.start * rows}
    return op.attributes


def _offset(op: Op) -> int:
    return op.whole("offset")


def _samples(graph: Graph) -> dict[str, int]:
    """The number of samples of the batch that each op works on.

    In a graph whose batch is already cut, ops work on one part of it, or on several that were
    joined. An op that reads no samples, such as a mask, works on as many as its readers.
    """
    sizes: dict[int | None, int] = {None: samples_of(graph)}
    read: dict[str, frozenset[int | None]] = dict.fromkeys(graph.inputs, frozenset((None,)))
    parts_of: dict[str, frozenset[int | None]] = {}
    nothing: frozenset[int | None] = frozenset()
    for name in graph.order:
        op = graph.ops[name]
        parts = nothing.union(*(read.get(blob, nothing) for blob in op.inputs))
        if op.kind == "Data":
            blob = next(blob for blob in op.outputs if blob != NOTHING)
            sizes[_offset(op)] = spec_of(graph.blobs[blob]).shape[0]
            parts = frozenset((_offset(op),))
        parts_of[name] = parts
        read |= dict.fromkeys(op.outputs, parts)
    for name in reversed(graph.order):
        if not parts_of[name]:
            blobs = graph.ops[name].outputs
            read_by = (parts_of[op.name] for blob in blobs for op in graph.consumers.get(blob, ()))
            parts_of[name] = next(filter(None, read_by), nothing)
    return {
        name: sum(sizes[part] for part in parts) if parts else sizes[None]
        for name, parts in parts_of.items()
    }


def joined_of(graph: Graph, halves: Halves) -> Joined:
    """The ops that the parts of a batch compute together; raises if the batch cannot be cut."""
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
    """The factor of the gradient of an all-reduce in a part with a share of the batch."""
    scale = op.number("scale", 1.0)
    return scale / share if op.attributes["operation"] == "sum" else scale


def _is_gradient(op: Op) -> bool:
    return op.kind == "BatchReduceGradient"


def _mixing(graph: Graph, op: Op) -> GraphError:
    """The error of a batch that cannot be cut, from the op that marks it."""
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
