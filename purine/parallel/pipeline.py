"""Pipelines: the net cut into stages on several devices, through which micro-batches pass.

The given step is that of one micro-batch: a pipeline of M micro-batches trains as `accumulate(step,
M)` does. The schedule becomes control edges: on every device each op waits for the one before it.
All edges lead forward in the time of the schedule, so none can close a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from purine.analysis.infer import check
from purine.arguments import checked
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Builder, Graph, Location
from purine.graph.names import micro_batch, origin_of
from purine.parallel._parts import BESIDE, joined_of
from purine.parallel.accumulate import accumulate
from purine.parallel.cut import balanced_cut, cut_at
from purine.parallel.flow import Flow, flow_of, weight_ops
from purine.parallel.halves import Halves, follow, halve
from purine.parallel.schedule import Letter, Schedule, Unit, named_schedule
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import as_locations, devices_of, refuse_repeated, wrong_devices
from purine.solvers.clip import norm_of_norms

__all__ = ["pipeline"]

_BEHIND = 1e-6
"""A fraction of a place: right behind one op, and before the next."""


@checked
def pipeline(
    step: Graph,
    stages: int | None = None,
    *,
    devices: str | Iterable[str | Location],
    micro: int,
    schedule: str | Schedule = "1f1b",
    cut: Sequence[str] | None = None,
    chunks: int = 1,
    times: Mapping[str, float] | None = None,
) -> Graph:
    """A training step as a pipeline over devices, that makes one update for `micro` micro-batches.

    `schedule` is one of `SCHEDULES` or one of your own; `interleaved` puts `chunks` stages on each
    device. `cut` names the ops or blocks with which the stages behind the first begin; without it
    stages are cut to take equally long, by estimates or by the `times` of ops in seconds, from a
    trace of the step (`Trace.times`) or of the pipeline (`times_of_step`). A step that is on m
    devices already (a sharded net) takes m devices for each stage. A parameter, its update and its
    optimizer state are at the first stage that reads it.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=4)), lr=0.1)
    >>> both = pipeline(step, devices="cpu:0-1", micro=4)
    >>> [both.blobs[name].location.device for name in ("conv1/weight", "fc2/weight")]
    ['cpu:0', 'cpu:1']
    """
    places = as_locations(devices)
    step = check(step)
    own = devices_of(step)
    count = _count(places, own)
    plan = schedule
    if isinstance(plan, str):
        plan = named_schedule(plan, count, micro, chunks=chunks)
    _refuse(plan, count, micro, stages, cut)
    stage = balanced_cut(step, plan.stages, times=times) if cut is None else cut_at(step, cut)
    step = without_copies(step)
    halves = halve(step)
    flow = flow_of(step, halves)

    def spread(number: int, location: Location) -> Location:
        return places[plan.homes[number] * len(own) + own.index(location)]

    placed = _placed(step, halves, stage, spread)
    graph = insert_copies(accumulate(placed, micro))
    weights = weight_ops(step, flow, halves, stage)
    builder = Builder(graph)
    together = joined_of(step, halves).names()
    builder.control |= set(_Chains(graph, flow, stage, weights, plan, together).edges())
    return check(builder.graph())


def _placed(
    step: Graph,
    halves: Halves,
    stage: Mapping[str, int],
    spread: Callable[[int, Location], Location],
) -> Graph:
    """The step with every node at the device of its stage; ops may read from other devices."""
    homes: dict[str, Location] = {}
    for name, blob in step.blobs.items():
        maker = step.producers.get(name)
        border = step.producers.get(halves.gradients.get(name, NOTHING))
        readers = [stage[op.name] for op in step.consumers[name] if op.name in stage]
        if maker is not None and maker.name in stage:
            homes[name] = spread(stage[maker.name], maker.location)
        elif border is not None:
            homes[name] = spread(stage[border.name], blob.location)
        else:
            homes[name] = spread(min(readers, default=0), blob.location)
    known = {*halves.gradients, *halves.gradients.values()}
    homes = follow(step, halves, homes, known)
    builder = Builder(step)
    for name, blob in step.blobs.items():
        builder.blobs[name] = replace(blob, location=homes[name])
    for op in step.ops.values():
        outputs = [name for name in op.outputs if name != NOTHING]
        home = homes[outputs[0]] if outputs else spread(stage.get(op.name, 0), op.location)
        if op.name not in stage and op.kind == "GlobalNorm":
            op = norm_of_norms(builder, op, homes)
        origin = replace(origin_of(op), stage=stage[op.name]) if op.name in stage else op.origin
        builder.ops[op.name] = replace(op, location=home, origin=origin)
    return builder.graph()


@dataclass(frozen=True)
class _Chains:
    """The order of execution on every device, as edges between consecutive ops."""

    graph: Graph
    flow: Flow
    stage: Mapping[str, int]
    weights: set[str]
    plan: Schedule
    together: frozenset[str]
    """What all micro-batches compute together."""

    def edges(self) -> Iterator[tuple[str, str]]:
        """Pairs of neighbours that no data orders already.

        Ops of the update half (updates, clipping, rates) are in no chain: they run when they are
        ready, beside the remaining units.
        """
        when = self._when()
        lanes: dict[tuple[Location, str], list[str]] = {}
        for name in sorted(when, key=when.__getitem__):
            op = self.graph.ops[name]
            if op.lane.startswith("compute"):
                lanes.setdefault((op.location, op.lane), []).append(name)
        for chain in lanes.values():
            for before, after in pairwise(chain):
                outputs = self.graph.ops[before].outputs
                if set(outputs).isdisjoint(self.graph.ops[after].inputs):
                    yield before, after

    def _when(self) -> Mapping[str, tuple[int, float]]:
        """For each op of the batch half the time of its unit, and its position in the unit.

        Sums over micro-batches come right after their last part, and ops that the parts compute
        together right after their inputs. An op that waits for the update half, such as the norm of
        norms, belongs to the update half as well.
        """
        when = self._units()
        for number, name in enumerate(self._ahead()):
            when[name] = -1, number
        once = {op.name for op in halve(self.graph).once}
        later = 2 * len(when)  # behind all places that `_units` gives
        producers = self.graph.producers
        for number, name in enumerate(self.graph.order):
            op = self.graph.ops[name]
            makers = {b: producers[b] for b in op.inputs if b in producers}
            timed = {b: m for b, m in makers.items() if m.name in when and m.kind != "Data"}
            before = [(when[maker.name], blob) for blob, maker in timed.items()]
            if name not in when and any(maker.name in once for maker in makers.values()):
                once.add(name)
            latest, blob = max(before, default=((0, 0), NOTHING))
            if name in when and before and latest >= when[name]:
                raise GraphError(
                    f"op {name!r} reads {blob!r}, which the schedule makes later",
                    op=name,
                    blob=blob,
                    expected="values that pass from forward to backward, and from the forward of a "
                    "micro-batch to that of the next",
                    found=f"{blob!r}, made by op {producers[blob].name!r}",
                    remedy="use schedule gpipe, whose forwards all come before the backwards, "
                    "or accumulate instead of a pipeline",
                )
            if op.kind == "Copy" and name not in when:
                if before:  # a copy of a state is there from the start
                    when[name] = latest
            elif name in self.together or (
                origin_of(op).role == "reduce" and origin_of(op).of in self.together
            ):
                when[name] = latest[0], latest[1] + _BEHIND
            elif name not in when and name not in once:
                when[name] = latest[0], later + number
        return when

    def _ahead(self) -> Iterator[str]:
        """Ops that run before all units: those that count the labels of all micro-batches."""
        ahead: set[str] = set()
        for name in self.graph.order:
            op = self.graph.ops[name]
            makers = [self.graph.producers[b] for b in op.inputs if b in self.graph.producers]
            first = all(maker.kind == "Data" or maker.name in ahead for maker in makers)
            if makers and first and (op.lane == BESIDE or op.kind == "Copy"):
                ahead.add(name)
                yield name

    def _units(self) -> dict[str, tuple[int, float]]:
        """The same for the ops of units: values that other stages wait for come first in a
        backward."""
        starts = self.plan.times()
        micro = self.plan.micro
        prefixes = [f"{micro_batch(m)}/" for m in range(micro)] if micro > 1 else [""]
        when: dict[str, tuple[int, float]] = {}
        names = (*self.flow.forward, *self.flow.backward)
        for number, name in enumerate(names):
            letter: Letter = "F" if number < len(self.flow.forward) else "B"
            if name in self.weights:
                letter = "W" if self.plan.split else "B"
                if self.stage[name]:
                    number += len(names)
            for m, prefix in enumerate(prefixes):
                if f"{prefix}{name}" in self.graph.ops:  # others are computed by all together
                    when[f"{prefix}{name}"] = starts[Unit(letter, m, self.stage[name])], number
        return when


def _count(places: Sequence[Location], own: Sequence[Location]) -> int:
    """How many multiples of the devices of the step there are."""
    if not places or len(places) % len(own):
        what = f"a pipeline of a step on {len(own)} devices cannot be laid over {len(places)}"
        expected, remedy = f"a multiple of {len(own)}", f"name {len(own)} devices for each stage"
        raise wrong_devices(what, f"{expected} devices", places, remedy)
    refuse_repeated(
        places, "name every device once; schedule='interleaved' puts several stages on each"
    )
    return len(places) // len(own)


def _refuse(
    plan: Schedule, count: int, micro: int, stages: int | None, cut: Sequence[str] | None
) -> None:
    for what, expected, found in (
        ("devices", plan.devices, count),
        ("micro-batches", plan.micro, micro),
        ("stages", plan.stages, stages),
        ("stages", plan.stages, None if cut is None else len(cut) + 1),
    ):
        if found is not None and found != expected:
            named = " of the cut" if cut is not None and found == len(cut) + 1 else ""
            raise ConfigError(
                f"the schedule is for {expected} {what}, not {found}",
                expected=f"{expected} {what}",
                found=f"{found} {what}{named}",
                remedy="change one of the two: devices * chunks is the number of stages, and "
                "a cut has a name for each stage but the first",
            )
