"""Large parameters cut into units along their first axis, each with an update of its own.

Hosts reduce, update and return one unit at a time, so these three overlap within a parameter. A
step in units trains to the same bits: only elementwise updates are cut. States are shards of the
parameter, so checkpoints hold whole values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from purine.analysis.infer import size_in_bytes
from purine.graph import NOTHING, Blob, Builder, Graph, Op, Origin, State
from purine.graph.names import unit_of
from purine.parallel.halves import Halves, halve
from purine.registry.facts import Role
from purine.registry.fillers import Shard, shard_of
from purine.registry.lookup import lookup

__all__ = ["Cut", "in_units"]

_ELEMENTWISE = (Role.ELEMENTWISE, Role.ELEMENTWISE_UPDATE)


@dataclass(frozen=True, slots=True)
class Cut:
    """A parameter in units: the op that joins them, and the op that cuts its gradient.

    `join` makes the blob `parameter` of the blobs `units`, which are states. `split` makes the
    gradients of the units of the whole gradient.
    """

    parameter: str
    units: tuple[str, ...]
    join: Op
    split: Op

    @property
    def gradient(self) -> str:
        return self.split.inputs[0]


@dataclass(slots=True)
class _Chain:
    """The ops of the update half of a parameter that are all cut."""

    blobs: set[str]
    flags: set[str]
    """Scalars of which every unit has its own."""
    ops: list[Op]
    combining: list[Op]
    """Ops that read the units of several parameters, as a norm does."""


def in_units(step: Graph, unit: int) -> tuple[Graph, dict[str, Cut]]:
    """The step with parameters of two or more units of `unit` bytes cut, and how each is cut.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    >>> cut, cuts = in_units(step, 1 << 18)
    >>> [(name, len(one.units)) for name, one in cuts.items()]
    [('fc1/weight', 4)]
    """
    halves = halve(step)
    once = {op.name for op in halves.once}
    builder, cuts = Builder(step), {}
    for parameter, border in halves.gradients.items():
        rows = _rows(step, parameter, unit)
        chain = _chain(step, once, parameter, border) if len(rows) > 1 else None
        if chain is not None:
            cuts[parameter] = _divide(builder, step, chain, rows, parameter, border)
    return (builder.graph(), cuts) if cuts else (step, cuts)


def without_joins(halves: Halves, cuts: Mapping[str, Cut]) -> Halves:
    """Halves whose batch half begins with whole parameters and ends with whole gradients."""
    apart = {op.name for cut in cuts.values() for op in (cut.join, cut.split)}
    return replace(halves, batch=tuple(op for op in halves.batch if op.name not in apart))


def _rows(step: Graph, parameter: str, unit: int) -> list[int]:
    """How many rows of the first axis each unit has; at most one where it is not cut."""
    blob, shard = step.blobs[parameter], shard_of(step.states[parameter].filler)
    size = size_in_bytes(blob)
    if not blob.shape or not unit or size < 2 * unit or (shard is not None and shard.axis != 0):
        return []
    extent = blob.shape[0]
    count = min(extent, math.ceil(size / unit))
    return [extent * (k + 1) // count - extent * k // count for k in range(count)]


def _chain(step: Graph, once: Set[str], parameter: str, border: str) -> _Chain | None:
    """The ops of a parameter from its gradient to its next value, if they can be cut."""
    shape = step.blobs[parameter].shape
    if step.blobs[border].shape != shape:
        return None
    chain = _Chain({parameter, border}, set(), [], [])
    for name in step.order:
        op = step.ops[name]
        mine = chain.blobs.intersection(op.inputs)
        if name not in once or not (mine or chain.flags.intersection(op.inputs)):
            continue
        role = lookup(op).facts.role
        if role is Role.COMBINATION:
            chain.combining.append(op)
            continue
        if role not in _ELEMENTWISE:
            return None
        chain.ops.append(op)
        chain.blobs.update(blob for blob in op.inputs if step.blobs[blob].shape == shape)
        for blob in op.outputs:
            if blob != NOTHING:
                same = step.blobs[blob].shape == shape
                (chain.blobs if same else chain.flags).add(blob)
    return chain if _is_closed(step, chain, once, parameter, border) else None


def _is_closed(step: Graph, chain: _Chain, once: Set[str], parameter: str, border: str) -> bool:
    """Whether no other op reads or writes the blobs that are cut."""
    inside = {op.name for op in chain.ops}
    known = inside.union(op.name for op in chain.combining)
    cut = chain.blobs | chain.flags
    if not cut.isdisjoint(step.outputs) or not inside.isdisjoint(
        name for edge in step.control for name in edge
    ):
        return False
    for name in cut:
        maker = step.producers.get(name)
        readers = {op.name for op in step.consumers[name]}
        if name == parameter:
            readers &= once
        if not readers <= known or (name in chain.flags and readers & inside):
            return False
        if maker is None and name not in step.states:
            return False
        if maker is not None and maker.name not in inside and name != border:
            return False
    states = step.states.values()
    return all((state.read in chain.blobs) == (state.next in chain.blobs) for state in states)


def _divide(
    builder: Builder, step: Graph, chain: _Chain, rows: Sequence[int], parameter: str, border: str
) -> Cut:
    """Replace the ops of a parameter by one copy for each of its units."""
    numbers = range(len(rows))
    for name in chain.blobs | chain.flags:
        blob = builder.blobs[name]
        if name not in (parameter, border):
            del builder.blobs[name]
        for number, count in enumerate(rows):
            shape = (count, *(blob.shape or ())[1:]) if name in chain.blobs else blob.shape
            builder.add(replace(blob, name=unit_of(name, number), shape=shape, where=None))
    for op in chain.ops:
        del builder.ops[op.name]
        for number in numbers:
            builder.add(_unit(op, number, chain.blobs | chain.flags))
    for op in chain.combining:
        now = builder.ops[op.name]
        builder.ops[op.name] = replace(now, inputs=tuple(_expanded(now, chain, numbers)))
    for state in [state for state in builder.states.values() if state.read in chain.blobs]:
        del builder.states[state.read]
        for unit in _states(state, step.blobs[state.read], rows, parameter):
            builder.add(unit)
    units = tuple(unit_of(parameter, number) for number in numbers)
    gradients = tuple(unit_of(border, number) for number in numbers)
    at = step.blobs[parameter].location
    origin = Origin(parameter, "copy")
    join = Op(f"join/{parameter}", "aten.cat", units, (parameter,), {"dim": 0}, at, origin=origin)
    sizes = {"split_sizes": tuple(rows)}
    kind = "aten.split_with_sizes"
    split = Op(f"units/{border}", kind, (border,), gradients, sizes, at, origin=origin)
    builder.add(join)
    builder.add(split)
    return Cut(parameter, units, join, split)


def _unit(op: Op, number: int, cut: Set[str]) -> Op:
    """An op of the chain, for one of the units."""

    def own(name: str) -> str:
        return unit_of(name, number) if name in cut else name

    origin = None if op.origin is None else replace(op.origin, of=own(op.origin.of))
    return replace(
        op,
        name=unit_of(op.name, number),
        inputs=tuple(map(own, op.inputs)),
        outputs=tuple(map(own, op.outputs)),
        origin=origin,
    )


def _expanded(op: Op, chain: _Chain, numbers: Sequence[int]) -> Iterator[str]:
    """The inputs of an op, with units in place of blobs that are cut."""
    for name in op.inputs:
        if name in chain.blobs or name in chain.flags:
            yield from (unit_of(name, number) for number in numbers)
        else:
            yield name


def _states(state: State, blob: Blob, rows: Sequence[int], parameter: str) -> Iterator[State]:
    start = 0
    for number, count in enumerate(rows):
        filler, origin = state.filler, state.origin
        if state.read == parameter:
            filler = _shard(state, blob, start, start + count).filler(state.filler)
        elif origin is not None:
            origin = replace(origin, of=unit_of(parameter, number))
        read, following = unit_of(state.read, number), unit_of(state.next, number)
        yield replace(state, read=read, next=following, filler=filler, origin=origin, where=None)
        start += count


def _shard(state: State, blob: Blob, start: int, end: int) -> Shard:
    """The part of the whole parameter that rows `start` to `end` of a state are."""
    shard = shard_of(state.filler)
    if shard is None:
        assert blob.shape is not None
        return Shard(state.read, blob.shape, 0, ((start, end),))
    spans, before = [], 0
    for low, high in shard.spans:
        first, last = max(start - before, 0), min(end - before, high - low)
        if first < last:
            spans.append((low + first, low + last))
        before += high - low
    return replace(shard, spans=tuple(spans))
