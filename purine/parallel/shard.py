"""Tensor parallelism: single layers sharded over several devices, on the net, before `backward`.

A layer with parameters is sharded by columns (each device computes a part of the result) or by rows
(each computes a summand of it). Ops that can work on shards follow their inputs, so a column layer,
its activation and a row layer run without a gather between them; before any other op the shards are
gathered. Parameters become states `p/shard0`, `p/shard1`, ..., with the values of their parts of
the whole. The numbers are those of the net, except for the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from purine.analysis.infer import check, complete, spec_of
from purine.arguments import checked
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Location, Op, Origin
from purine.graph.names import shard_name
from purine.parallel import _shard_rules as rules
from purine.parallel._shard_rules import By, Seen, ShardedOp, has_parameters, shard_rule
from purine.parallel._sharding import Cannot, Sharding, reshaped_axis
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import as_locations, devices_of, wrong_devices
from purine.placement.place import matching, refuse_casts, refuse_gradients
from purine.placement.values import merged_spans
from purine.registry.facts import ShardRule
from purine.registry.fillers import Shard, shard_of

__all__ = ["shard"]

_SUCH = "an op with parameters, such as Conv, InnerProduct or Embedding"


@checked
def shard(
    net: Graph,
    devices: str | Iterable[str | Location],
    *,
    ops: Sequence[str] | None = None,
    by: By | Mapping[str, By] | None = None,
) -> Graph:
    """The net with its inner products, convolutions and embeddings sharded over the devices.

    `ops` names the layers to shard, with patterns such as `fc*`; by default all that can be. `by`
    is `columns` or `rows` for all of them, or by pattern. By default a layer whose input is sharded
    along the summed axis is sharded by rows, an embedding by rows of its vocabulary, others by
    columns. Shards may be uneven. Ops that are not sharded stay at their device; a net that is on
    one device is first moved to the first of `devices`. Solvers see shards as parameters of their
    own: those that use a whole parameter, such as `lars`, differ from the unsharded net.

    >>> from purine.zoo import mlp
    >>> net = shard(mlp(batch=8), ["cpu:0", "cpu:1"])
    >>> [name for name in net.states if name.startswith("fc1")]
    ['fc1/weight/shard0', 'fc1/weight/shard1', 'fc1/bias/shard0', 'fc1/bias/shard1']
    """
    places = as_locations(devices)
    _refuse(net, places)
    bare = complete(without_copies(net))
    if len(devices_of(bare)) == 1:
        moved = {name: replace(op, location=places[0]) for name, op in bare.ops.items()}
        blobs = {name: replace(blob, location=places[0]) for name, blob in bare.blobs.items()}
        bare = replace(bare, ops=moved, blobs=blobs)
    if len(places) == 1:
        return check(insert_copies(bare))
    planned = _planned(bare, len(places), ops, by)
    return check(insert_copies(_Emission(bare, places, planned).graph()))


def _refuse(net: Graph, places: Sequence[Location]) -> None:
    if not places or len(set(places)) != len(places):
        what = f"a net cannot be cut over {len(places)} devices, of which {len(set(places))} differ"
        raise wrong_devices(what, "each device once, and at least one", places)
    refuse_gradients(net, "shard")
    refuse_casts(net, "shard")
    cut = next((name for name, state in net.states.items() if shard_of(state.filler)), None)
    if cut is not None:
        what, expected = "the net is sharded already", "a net whose parameters are whole"
        remedy = "shard the net once, over all devices"
        raise GraphError(what, expected, f"state {cut!r}", remedy, blob=cut)


@dataclass(frozen=True, slots=True)
class _Planned:
    """The sharding of each op and blob of a net."""

    ops: dict[str, ShardedOp] = field(default_factory=dict)
    blobs: dict[str, Sharding] = field(default_factory=dict)


def _planned(
    net: Graph, count: int, ops: Sequence[str] | None, by: By | Mapping[str, By] | None
) -> _Planned:
    """Decide in the order of the net; the first op that shards a state decides how."""
    ways = _ways(net, by)
    asked = set() if ops is None else set(matching(net, ops))
    if asked and not any(has_parameters(net.ops[name]) for name in asked):
        raise _refused(net.ops[min(asked)], "it has no parameters to cut it by")
    named = asked | (ways.keys() if isinstance(by, Mapping) else set())
    planned = _Planned()
    for name in net.order:
        op = net.ops[name]
        seen = _seen(net, op, planned.blobs)
        sharded = None
        if has_parameters(op) and (ops is None or name in asked):
            try:
                grain = _grain(net, op)
                sharded = rules.cut_by_parameters(seen, rules.Cut(count, ways.get(name), *grain))
            except Cannot as reason:
                if name in named:
                    raise _refused(op, str(reason)) from None
        if sharded is None and any(seen.shardings):
            sharded = rules.follow(seen)
        if sharded is None:
            continue
        planned.ops[name] = sharded
        for blob, sharding in zip(op.inputs, sharded.inputs, strict=True):
            if sharding is not None and blob in net.states:
                planned.blobs.setdefault(blob, sharding)
        for blob, sharding in zip(op.outputs, sharded.outputs, strict=True):
            if sharding is not None and blob != NOTHING:
                planned.blobs[blob] = sharding
    for name, state in net.states.items():
        if state.next != name and planned.blobs.get(name) != planned.blobs.get(state.next):
            planned.blobs.pop(name, None)
        cut = planned.blobs.get(name)
        spans = () if cut is None else (span for part in cut.parts for span in part)
        if cut is not None and merged_spans(spans) != ((0, _shape(net, name)[cut.axis]),):
            del planned.blobs[name]
    if not any(has_parameters(net.ops[name]) for name in planned.ops):
        expected, remedy = f"{_SUCH}, of {count} or more outputs", "use fewer devices, or replicate"
        found = "kinds " + ", ".join(sorted({op.kind for op in net.ops.values()}))
        raise GraphError("nothing in the net can be cut", expected, found, remedy)
    return planned


def _seen(net: Graph, op: Op, shardings: Mapping[str, Sharding]) -> Seen:
    return Seen(
        op,
        tuple(_shape(net, blob) for blob in op.inputs),
        tuple(_shape(net, blob) if blob else () for blob in op.outputs),
        tuple(None if blob in net.states else shardings.get(blob) for blob in op.inputs),
        tuple(blob in net.states for blob in op.inputs),
    )


def _ways(net: Graph, by: By | Mapping[str, By] | None) -> dict[str, By]:
    if by is None:
        return {}
    given: Mapping[str, By] = by if isinstance(by, Mapping) else {"*": by}
    return {
        name: way
        for pattern, way in given.items()
        for name in matching(net, [pattern])
        if has_parameters(net.ops[name])
    }


def _refused(op: Op, reason: str) -> ConfigError:
    what = f"op {op.name!r} ({op.kind}) at {op.location} cannot be cut: {reason}"
    remedy = "leave it out of ops and by, or use other devices"
    return ConfigError(what, f"{_SUCH}, that can be laid over the devices", reason, remedy, op=op)


def _shape(net: Graph, blob: str) -> tuple[int, ...]:
    return spec_of(net.blobs[blob]).shape


def _grain(net: Graph, op: Op) -> tuple[int, int]:
    """The number of blocks and the units in which a result must be cut for attention by heads.

    Looks ahead through ops that only rearrange; (1, 1) if no attention reads the result.
    """
    blob, axis = op.outputs[0], len(_shape(net, op.outputs[0])) - 1
    blocks, unit, scale = 1, 1, Fraction(1)
    while True:
        readers = [net.ops[reader.name] for reader in net.consumers[blob]]
        if any(shard_rule(reader) is ShardRule.ATTENTION for reader in readers):
            return blocks, unit
        if not readers:
            return 1, 1
        reader = readers[0]
        rule, seen = shard_rule(reader), _seen(net, reader, {})
        cut = rules.blocks_of(seen) if rule is ShardRule.SPLIT else None
        if rule is ShardRule.TRANSPOSE:
            axis = rules.order_of(seen).index(axis)
        elif rule is ShardRule.RESHAPE:
            before, after = seen.inputs[0], seen.outputs[0]
            new = reshaped_axis(before, axis, after)
            if new is None:
                return 1, 1
            scale *= Fraction(math.prod(after[new + 1 :]), math.prod(before[axis + 1 :]))
            axis = new
            unit = math.lcm(unit, scale.numerator)
        elif cut is not None:
            blocks *= cut[1] if cut[0] == axis else 1
        elif rule is not ShardRule.ELEMENTWISE:
            return 1, 1
        if reader.outputs[0] == NOTHING:
            return 1, 1
        blob = reader.outputs[0]


class _Emission:
    """Builds the sharded net, in the order of the net."""

    def __init__(self, net: Graph, places: Sequence[Location], planned: _Planned) -> None:
        self.net, self.places, self.planned = net, places, planned
        self.builder = Builder()
        self.gathered: set[str] = set()
        self.sliced: dict[tuple[str, Sharding], list[str]] = {}

    def graph(self) -> Graph:
        net, builder = self.net, self.builder
        pieces_of: dict[str, list[str]] = {}
        for name in net.states:
            self._add_state(name)
        for name in net.inputs:
            builder.add(net.blobs[name])
        for name in net.order:
            before = set(builder.ops)
            sharded = self.planned.ops.get(name)
            if sharded is not None:
                self._add_pieces(net.ops[name], sharded)
            else:
                inputs = tuple(self._whole(blob) for blob in net.ops[name].inputs)
                for blob in filter(None, net.ops[name].outputs):
                    builder.add(net.blobs[blob])
                builder.add(replace(net.ops[name], inputs=inputs))
            pieces_of[name] = [op for op in builder.ops if op not in before]
        for name, state in net.states.items():
            if name not in self.planned.blobs and state.next in self.planned.blobs:
                self._whole(state.next)
        builder.outputs = [self._whole(name) for name in net.outputs]
        builder.control = {
            (one, other) for a, b in net.control for one in pieces_of[a] for other in pieces_of[b]
        }
        return builder.graph()

    def _add_state(self, name: str) -> None:
        blob, state = self.net.blobs[name], self.net.states[name]
        sharding = self.planned.blobs.get(name)
        if sharding is None:
            readers = [self.net.ops[op.name] for op in self.net.consumers[name]]
            alone = [self._place_of(op, name) for op in readers]
            home = alone[0] if len(alone) == 1 and alone[0] is not None else blob.location
            self.builder.add(replace(blob, location=home))
            self.builder.add(state)
            return
        for number in range(len(self.places)):
            piece = self._add_piece(blob, sharding, number)
            following = piece if state.next == name else shard_name(state.next, number)
            part = Shard(name, _shape(self.net, name), sharding.axis, sharding.parts[number])
            own = replace(state, read=piece, next=following, filler=part.filler(state.filler))
            self.builder.add(own)

    def _place_of(self, op: Op, state: str) -> Location | None:
        """Where a state that is whole is read by a piece alone: the bias of the first summand."""
        sharded = self.planned.ops.get(op.name)
        if sharded is None:
            return None
        at = op.inputs.index(state)
        readers = [number for number, piece in enumerate(sharded.pieces) if at in piece.inputs]
        return self.places[readers[0]] if len(readers) == 1 else None

    def _add_piece(self, blob: Blob, sharding: Sharding, number: int) -> str:
        name = shard_name(blob.name, number)
        shape = sharding.local(spec_of(blob).shape, number)
        self.builder.add(replace(blob, name=name, shape=shape, location=self.places[number]))
        return name

    def _add_pieces(self, op: Op, sharded: ShardedOp) -> None:
        summands: list[str] = []
        for number, piece in enumerate(sharded.pieces):
            location = self.places[number]
            reads = ((op.inputs[item], sharded.inputs[item]) for item in piece.inputs)
            inputs = tuple(self._at(name, sharding, number) for name, sharding in reads)
            outputs = []
            for name, sharding in zip(op.outputs, sharded.outputs, strict=True):
                if name == NOTHING:
                    outputs.append(NOTHING)
                elif sharding is not None:
                    outputs.append(self._add_piece(self.net.blobs[name], sharding, number))
                else:
                    part = f"{name}/summand{number}"
                    self.builder.add(replace(self.net.blobs[name], name=part, location=location))
                    outputs.append(part)
                    summands.append(part)
            name, origin = shard_name(op.name, number), Origin(op.name, shard=number)
            own = replace(op, name=name, kind=piece.kind, location=location, origin=origin)
            own = replace(own, inputs=inputs, outputs=tuple(outputs), attributes=piece.attributes)
            self.builder.add(own)
        if summands:
            (name,) = op.outputs
            self.builder.add(self.net.blobs[name])
            total = Op(op.name, "Eltwise", tuple(summands), (name,), location=op.location)
            self.builder.add(replace(total, where=op.where))

    def _whole(self, name: str) -> str:
        """The whole blob at its location, gathered if it is sharded."""
        sharding = self.planned.blobs.get(name)
        if sharding is None or name in self.gathered:
            return name
        self.gathered.add(name)
        blob = self.net.blobs[name]
        parts: list[tuple[int, str]] = []
        for number, spans in enumerate(sharding.parts):
            piece, start = shard_name(name, number), 0
            for low, high in spans:
                end = start + high - low
                own = self._slice(piece, sharding.axis, start, end, f"{piece}/span")
                parts.append((low, own))
                start = end
        self.builder.add(blob)
        settings: dict[str, Attribute] = {"axis": sharding.axis}
        names = [part for _, part in sorted(parts)]
        self.builder.op(f"{name}/gather", "Concat", names, [name], settings, location=blob.location)
        return name

    def _at(self, name: str, sharding: Sharding | None, number: int) -> str:
        """The input of shard `number` from a blob: all of it, a shard that exists, or a slice."""
        if sharding is None:
            return self._whole(name)
        if self.planned.blobs.get(name) == sharding:
            return shard_name(name, number)
        key = (name, sharding)
        if key not in self.sliced:
            whole = self._whole(name)
            slices, axis = [], sharding.axis
            for spans in sharding.parts:
                parts = [self._slice(whole, axis, s, e, f"{name}/slice") for s, e in spans]
                slices.append(parts[0] if len(parts) == 1 else self._join(parts, axis, name))
            self.sliced[key] = slices
        return self.sliced[key][number]

    def _slice(self, name: str, axis: int, start: int, end: int, label: str) -> str:
        if end - start == spec_of(self.builder.blobs[name]).shape[axis]:
            return name
        settings: dict[str, Attribute] = {"start": start, "end": end}
        return self._resized(label, "Slice", [name], axis, end - start, settings)

    def _join(self, parts: Sequence[str], axis: int, name: str) -> str:
        extent = sum(spec_of(self.builder.blobs[part]).shape[axis] for part in parts)
        return self._resized(f"{name}/slices", "Concat", parts, axis, extent, {})

    def _resized(
        self,
        label: str,
        kind: str,
        inputs: Sequence[str],
        axis: int,
        extent: int,
        settings: Mapping[str, Attribute],
    ) -> str:
        """Add an op whose result differs from its inputs only in the size of `axis`."""
        blob = self.builder.blobs[inputs[0]]
        shape = list(spec_of(blob).shape)
        shape[axis], settings = extent, {"axis": axis, **settings}
        name = self.builder.fresh(label)
        self.builder.add(replace(blob, name=name, shape=tuple(shape)))
        self.builder.op(name, kind, inputs, [name], settings, location=blob.location)
        return name
