"""Runs of ops on one lane, dispatched as one.

Dispatching an op costs some microseconds under the interpreter's lock, which a dozen lanes cannot
all have at once. So ops of a compute lane that follow each other are put together into segments,
each of which is one op to the dispatcher and one call without the lock. A segment ends where
another device waits for its result, before an op that waits for another device, and when it is long
enough: gradients leave at its end, and the parameters that it reads must all be there at its start.

Ops of one kind that takes many (updates, means) become one call that reads all it needs at its
start, so none of them reads from another.

The graph of segments has no cycle: a segment is complete before anything that reads from it is
placed, so segments are complete in an order in which each reads from earlier ones only.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from purine.analysis.cost import PROFILE, cost
from purine.compile.script import compile_ops, is_scriptable
from purine.core import Station, urgency
from purine.errors import in_a_line
from purine.graph import NOTHING, Builder, Graph, Op
from purine.registry.kind import Kernel, Kind, Results, register
from purine.registry.lookup import lookup

__all__ = [
    "SEGMENT",
    "SegmentError",
    "Segmented",
    "joined",
    "pays",
    "segment_kernel",
    "segmented",
]

_log = logging.getLogger("purine")

SEGMENT = "Segment"
"""The kind of an op that stands for several."""

register(Kind(SEGMENT, None, (), variadic=True))


@dataclass(frozen=True)
class Segmented:
    """A graph of segments and single ops, and the ops of each segment in order."""

    graph: Graph
    members: Mapping[str, tuple[Op, ...]]


def pays(graph: Graph) -> bool:
    """Whether dispatching ops one by one would take up a good part of a graph's time."""
    lanes: dict[Station, list[Op]] = {}
    for op in graph.ops.values():
        if op.lane.startswith("compute"):
            lanes.setdefault((op.location, op.lane), []).append(op)
    if len(lanes) > 1:
        return True
    ops = [op for found in lanes.values() for op in found]
    return sum(_seconds(graph, op) for op in ops) < _SHORT * len(ops)


_SHORT = PROFILE.dispatch_matters
"""An op that takes longer does not mind how it is dispatched."""


def joined(graph: Graph) -> Segmented:
    """The graph with the ATen ops of its compute lanes in segments, plain sums among them."""
    graph = _with_plain_sums(graph)
    return segmented(
        graph,
        cost=lambda op: _seconds(graph, op),
        team=_team,
    )


def _with_plain_sums(graph: Graph) -> Graph:
    """The graph with sums of two that are not scaled as ATen ops, which they are."""
    builder = Builder(graph)
    for op in graph.ops.values():
        if op.kind == "AddScaled" and op.attributes.get("scale", 1.0) == 1.0:
            builder.ops[op.name] = replace(op, kind="aten.add.Tensor", attributes={})
    return builder.graph()


def _team(op: Op) -> object:
    """What an op has in common with those it can be put together with; None if it has to be alone.

    ATen ops of a compute lane go together as they come, and ops whose kind takes many.
    """
    if is_scriptable(op):
        return "aten" if op.lane.startswith("compute") else None
    if lookup(op).variants.many is None:
        return None
    return (op.kind, len(op.inputs), len(op.outputs), tuple(sorted(op.attributes.items())))


def _seconds(graph: Graph, op: Op) -> float:
    """A rough guess of the time of an op on one core."""
    return PROFILE.core.seconds(cost(op, graph.blobs))


def segmented(
    graph: Graph,
    *,
    cost: Callable[[Op], float],
    team: Callable[[Op], object],
    pieces: int = 12,
    least: float = 5e-3,
) -> Segmented:
    """Put ops of one `team` into segments.

    A segment has about a `pieces`-th of the cost of its lane, and at least the cost `least`.
    """
    groups = _Grouping(graph, cost, team, pieces, least).groups()
    builder = Builder(graph)
    members: dict[str, tuple[Op, ...]] = {}
    owner: dict[str, str] = {}
    asked = set(graph.outputs) | {state.next for state in graph.states.values()}
    for group in groups:
        if len(group) == 1 and lookup(group[0]).variants.many is None:
            continue
        first = group[0]
        names = {op.name for op in group}
        made = {blob for op in group for blob in op.outputs if blob != NOTHING}
        if lookup(first).variants.many is None:
            reads = dict.fromkeys(blob for op in group for blob in op.inputs if blob not in made)
            inputs = tuple(reads)
            outputs = tuple(
                blob
                for op in group
                for blob in op.outputs
                if blob != NOTHING
                and (blob in asked or any(user.name not in names for user in graph.consumers[blob]))
            )
        else:
            inputs = tuple(blob for op in group for blob in op.inputs)
            outputs = tuple(blob for op in group for blob in op.outputs)
        members[first.name] = tuple(group)
        for op in group:
            del builder.ops[op.name]
            owner[op.name] = first.name
        builder.ops[first.name] = replace(
            first, kind=SEGMENT, inputs=inputs, outputs=outputs, attributes={}
        )
        for blob in made.difference(outputs):
            del builder.blobs[blob]
    builder.control = {
        (owner.get(before, before), owner.get(after, after)) for before, after in graph.control
    }
    builder.control = {(before, after) for before, after in builder.control if before != after}
    return Segmented(builder.graph(), members)


class _Grouping:
    """Which ops go together: lanes take turns, and each adds one segment in its turn."""

    def __init__(
        self,
        graph: Graph,
        cost: Callable[[Op], float],
        team: Callable[[Op], object],
        pieces: int,
        least: float,
    ) -> None:
        self.graph = graph
        self.rank = {name: place for place, name in enumerate(urgency(graph))}
        self.cost = {name: cost(op) for name, op in graph.ops.items()}
        self.team = {name: team(op) for name, op in graph.ops.items()}
        self.station: dict[str, Station] = {
            name: (op.location, op.lane) for name, op in graph.ops.items()
        }
        total: dict[Station, float] = {}
        for name, station in self.station.items():
            total[station] = total.get(station, 0.0) + self.cost[name]
        self.limit = {station: max(value / pieces, least) for station, value in total.items()}
        self.waiting = dict.fromkeys(graph.ops, 0)
        for targets in graph.successors.values():
            for target in targets:
                self.waiting[target] += 1
        self.ready: dict[Station, dict[object, list[tuple[int, str]]]] = {k: {} for k in total}
        """By lane and team, what is ready, the most urgent first."""
        self.eager = self._eager()
        self.late = self._late()

    def groups(self) -> list[list[Op]]:
        for name, count in self.waiting.items():
            if not count:
                self._offer(name)
        found: list[list[Op]] = []
        left = len(self.graph.ops)
        while left:
            before = left
            for station in self.ready:
                for group in self._turn(station):
                    found.append(group)
                    left -= len(group)
            assert left < before, "the graph has a cycle: verify it first"
        return found

    def _turn(self, station: Station) -> list[list[Op]]:
        """A segment of the team with the most urgent op, or that op alone."""
        teams = {team: queue for team, queue in self.ready[station].items() if queue}
        if not teams:
            return []
        team = min(teams, key=lambda found: teams[found][0])
        queue = teams[team]
        many = lookup(self.graph.ops[queue[0][1]]).variants.many is not None
        if many:
            # All at once: what becomes ready on the way reads from these, and has to come later.
            self.ready[station][team] = []
        group: list[Op] = []
        length = 0.0
        while queue:
            name = heapq.heappop(queue)[1]
            group.append(self.graph.ops[name])
            length += self.cost[name]
            for target in self.graph.successors[name]:
                self.waiting[target] -= 1
                if not self.waiting[target]:
                    self._offer(target)
            if team is None or name in self.eager or length >= self.limit[station]:
                break
            if not many and queue and queue[0][1] in self.late:
                break  # what is in the group need not wait for another device
        left = self.ready[station][team]
        if left is not queue:
            for item in queue:
                heapq.heappush(left, item)
        return [group]

    def _offer(self, name: str) -> None:
        queue = self.ready[self.station[name]].setdefault(self.team[name], [])
        heapq.heappush(queue, (self.rank[name], name))

    def _eager(self) -> set[str]:
        """Ops that a compute lane of this iteration waits for, over another lane or at another."""
        awaited: dict[str, set[Station]] = {}
        found = set()
        for name in reversed(self.graph.order):
            own = self.station[name]
            stations: set[Station] = set()
            for target in self.graph.successors[name]:
                if self.station[target] != own:
                    if self.station[target][1].startswith("compute"):
                        stations.add(self.station[target])
                    else:
                        stations |= awaited[target]
            awaited[name] = stations
            if not own[1].startswith("compute"):
                for target in self.graph.successors[name]:
                    stations |= awaited[target]
                    if self.station[target][1].startswith("compute"):
                        stations.add(self.station[target])
            elif stations:
                found.add(name)
        return found

    def _late(self) -> set[str]:
        """Ops of compute lanes that wait for the compute of another lane, over others or not."""
        brought: set[str] = set()
        for name in self.graph.order:
            computes = self.station[name][1].startswith("compute")
            if computes or name in brought:
                for target in self.graph.successors[name]:
                    if not computes or self.station[target] != self.station[name]:
                        brought.add(target)
        return brought


class SegmentError(Exception):
    """An op of a segment failed: which one, on what, and how."""

    def __init__(self, op: Op, inputs: Sequence[Tensor], error: Exception) -> None:
        super().__init__(str(error))
        self.op, self.inputs, self.error = op, inputs, error


def segment_kernel(
    ops: Sequence[Op],
    inputs: Sequence[str],
    outputs: Sequence[str],
    over: Callable[[Op], int | None],
) -> Kernel:
    """One kernel for the ops of a segment; op by op where torch cannot compile them, which is said.

    Its failures are those of single ops: a SegmentError says of which.
    """
    if lookup(ops[0]).variants.many is not None:
        return _many_kernel(ops)

    def one_by_one(*tensors: Tensor) -> Results:
        values = dict(zip(inputs, tensors, strict=True))
        for op in ops:
            given = [values[name] for name in op.inputs]
            try:
                found = lookup(op).bind(op)(*given)
            except Exception as error:
                raise SegmentError(op, given, error) from error
            results = found if isinstance(found, tuple | list) else (found,)
            values |= dict(zip(op.outputs, results, strict=False))
        made = tuple(values[name] for name in outputs)
        return made[0] if len(made) == 1 else made

    try:
        compiled = compile_ops(ops, inputs, outputs, over)
    except (RuntimeError, KeyError) as error:
        names = " to ".join(dict.fromkeys((ops[0].name, ops[-1].name)))
        _tell_once(names, in_a_line(error))
        return one_by_one

    def kernel(*tensors: Tensor) -> Results:
        try:
            return compiled(*tensors)
        except Exception:
            one_by_one(*tensors)  # fails again, and says where
            raise  # inputs may have been written over: what it gave this time is of no use

    return kernel


@cache
def _tell_once(names: str, reason: str) -> None:
    """A run compiles its segments each time it starts, and says this the first time."""
    _log.warning("segment %s is not compiled and runs op by op: %s", names, reason)


def _many_kernel(ops: Sequence[Op]) -> Kernel:
    """Ops of one kind that takes many; inputs and results follow each other op by op."""
    call, width = lookup(ops[0]).bind_many(ops[0]), len(ops[0].inputs)
    single = len(ops) == 1 and len(ops[0].outputs) == 1

    def kernel(*tensors: Tensor) -> Results:
        columns = [list(tensors[place::width]) for place in range(width)]
        try:
            results = call(*columns)
        except Exception as error:
            for op, *row in zip(ops, *columns, strict=True):
                try:
                    lookup(op).bind(op)(*row)
                except Exception as own:
                    raise SegmentError(op, row, own) from own
            raise SegmentError(ops[0], tensors[:width], error) from error
        made = tuple(value for row in zip(*results, strict=True) for value in row)
        return made[0] if single else made

    return kernel
