"""Lowering pass `segments`: dispatch consecutive ops of one lane as one op.

Dispatching an op costs some microseconds under the interpreter's lock. So consecutive ops of a
compute lane become a segment: one op for the dispatcher and one call that releases the lock. A
segment ends where another device waits for its result, before an op that waits for another device,
and when it is long enough: gradients leave only at its end, and it starts only when all parameters
that it reads are there. For the same reason it ends after an op whose large result goes to another
host, and before an op that waits for one. Ops of a kind that takes many at once (updates, means)
become one call.

The graph of segments has no cycle: each segment is complete before any reader of it is placed.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import cache, reduce
from itertools import chain
from operator import or_

from torch import Tensor

from purine.analysis.cost import PROFILE, cost
from purine.analysis.infer import size_in_bytes
from purine.compile.script import compile_ops, is_scriptable
from purine.core import Station, urgency
from purine.errors import in_a_line
from purine.graph import Builder, Graph, Op
from purine.graph.nodes import computes
from purine.lowering.board import POST
from purine.lowering.lowered import Lowered
from purine.lowering.together import BROADCAST, REDUCE
from purine.optimize.fuse import boundary
from purine.registry.kind import Kernel, Kind, Results, register
from purine.registry.lookup import lookup

__all__ = ["SEGMENT", "SegmentError", "joined", "pays", "segment_kernel", "segmented"]

_log = logging.getLogger("purine")

SEGMENT = "Segment"
"""The kind of an op that runs several."""

register(Kind(SEGMENT, None, (), variadic=True))


def pays(graph: Graph) -> bool:
    """Whether dispatching ops one by one would take a large part of the time of a graph."""
    ops = [op for op in graph.ops.values() if computes(op.lane)]
    several_lanes = len({(op.location, op.lane) for op in ops}) > 1
    return several_lanes or sum(_seconds(graph, op) for op in ops) < _SHORT * len(ops)


_SHORT = PROFILE.dispatch_matters
"""Seconds of an op from which the cost of its dispatch does not matter."""


_ARRIVING, _SENDING = ("Arrival", REDUCE, BROADCAST), ("Put", POST, REDUCE, BROADCAST)
"""Kinds of ops that wait for other hosts, and for which other hosts wait."""
_WORTH_WAITING = 1 << 15
"""Bytes of values from other hosts up to which ops wait for each other's."""

_PROMPT = 1e-3
"""Seconds from which a segment ends for the sake of another host."""


def joined(graph: Graph) -> Lowered:
    """The graph with the ATen ops of its compute lanes in segments, including plain sums."""
    builder = Builder(graph)
    for op in graph.ops.values():
        if op.kind == "AddScaled" and op.attributes.get("scale", 1.0) == 1.0:
            builder.ops[op.name] = replace(op, kind="aten.add.Tensor", attributes={})
    with_sums = builder.graph()
    apart, puts = _behind_arrivals(with_sums), _awaiting_puts(with_sums)
    # Each update of a shared state locks that state alone.
    versions = {state.read for state in graph.states.values() if state.versioned}

    def team(op: Op) -> object:
        own = None if op.name in apart or versions.intersection(op.inputs) else _team(op)
        return None if own is None else (own, puts.get(op.name), op.every, op.phase)

    segments = segmented(
        with_sums,
        cost=lambda op: _seconds(with_sums, op),
        team=team,
        arriving=_arriving(with_sums, apart),
        leaving=_leaving(with_sums),
    )
    return replace(segments, unsegmented=graph)


def _is_large(graph: Graph, blob: str) -> bool:
    return size_in_bytes(graph.blobs[blob]) > _WORTH_WAITING


def _arriving(graph: Graph, apart: Set[str]) -> set[str]:
    """Compute ops that are the first of their lane to read a large value from another host, or one
    computed only from such values.

    `apart` are the ops on other lanes that wait for one. A state that one of them updates is such a
    value for the next iteration.
    """
    makers = graph.producers
    late = {
        state.read
        for state in graph.states.values()
        if state.next in makers and makers[state.next].name in apart
    }
    waiting: set[str] = set()
    read: set[tuple[Station, str]] = set()
    for op in graph.in_order:
        if op.name in apart or op.kind == "Arrival":
            late.update(blob for blob in op.results if _is_large(graph, blob))
        elif computes(op.lane):
            inputs = {((op.location, op.lane), blob) for blob in late.intersection(op.inputs)}
            if inputs - read:
                waiting.add(op.name)
            read |= inputs
            if op.inputs and late.issuperset(op.inputs):
                late.update(op.outputs)
    return waiting


def _leaving(graph: Graph) -> set[str]:
    """Compute ops whose results go to another host, directly or through ops on other lanes."""
    leaving: set[str] = set()
    sent: set[str] = set()
    for op in reversed(graph.in_order):
        if op.kind in ("Put", POST):
            sent.update(blob for blob in op.inputs if _is_large(graph, blob))
        elif not sent.isdisjoint(op.outputs):
            if computes(op.lane):
                leaving.add(op.name)
            else:
                sent.update(op.inputs)
    return leaving


def _behind_arrivals(graph: Graph) -> set[str]:
    """Ops on other lanes than compute that wait for a large value from another host.

    In one segment they would wait for the last of these values.
    """
    behind: set[str] = set()
    for op in graph.in_order:
        for blob in op.inputs if not computes(op.lane) else ():
            maker = graph.producers.get(blob)
            late = maker is not None and (maker.kind in _ARRIVING or maker.name in behind)
            if late and _is_large(graph, blob):
                behind.add(op.name)
    return behind


def _awaiting_puts(graph: Graph) -> dict[str, int]:
    """For each op on another lane than compute that waits for another host, the puts that wait for
    it.

    The number has a bit for each put. Only ops with the same puts are in one segment, so that no
    put waits for more arrivals than before. Otherwise two hosts could each have a segment that
    waits for a value of the other, though no op does.
    """
    arriving = [name for name, op in graph.ops.items() if op.kind in _ARRIVING]
    after = chain.from_iterable(graph.successors[name] for name in arriving)
    behind = graph.behind(after)
    puts: dict[str, int] = {}
    for number, name in enumerate(reversed(graph.order) if behind else ()):
        own = 1 << number if graph.ops[name].kind in _SENDING else 0
        puts[name] = reduce(or_, (puts[after] for after in graph.successors[name]), own)
    beside = (name for name in behind if not computes(graph.ops[name].lane))
    return {name: puts[name] for name in beside}


def _team(op: Op) -> object:
    """Ops with equal teams can be in one segment; None for an op that has to be alone.

    ATen ops of a compute lane form one team, and so do ops of a kind that takes many at once.
    """
    if is_scriptable(op):
        return "aten" if computes(op.lane) else None
    if lookup(op).variants.many is None:
        return None
    return (op.kind, len(op.inputs), len(op.outputs), tuple(sorted(op.attributes.items())))


def _seconds(graph: Graph, op: Op) -> float:
    return PROFILE.core.seconds(cost(op, graph.blobs))


def segmented(
    graph: Graph,
    *,
    cost: Callable[[Op], float],
    team: Callable[[Op], object],
    pieces: int = 12,
    least: float = 5e-3,
    arriving: Set[str] = frozenset(),
    leaving: Set[str] = frozenset(),
) -> Lowered:
    """The graph with ops of one `team` in segments.

    A segment has about a `pieces`-th of the cost of its lane, and at least the cost `least`. It
    ends earlier, though not at once, before an op that is `arriving`, which waits for another host,
    and after one that is `leaving`, for which another host waits.
    """
    builder = Builder(graph)
    members: dict[str, tuple[Op, ...]] = {}
    segment_of: dict[str, str] = {}
    grouping = _Grouping(graph, cost, team, pieces, least, arriving, leaving)
    for group in grouping.groups():
        first = group[0]
        alone = lookup(first).variants.many is None or grouping.team[first.name] is None
        if len(group) == 1 and alone:
            continue
        inputs, outputs, inside = boundary(graph, group)
        if lookup(first).variants.many is not None:
            # A call for many ops takes and returns the blobs of all of them, op by op.
            inputs = tuple(blob for op in group for blob in op.inputs)
            outputs, inside = tuple(blob for op in group for blob in op.outputs), frozenset()
        members[first.name] = tuple(group)
        for op in group:
            del builder.ops[op.name]
            segment_of[op.name] = first.name
        segment = replace(first, kind=SEGMENT, inputs=inputs, outputs=outputs, attributes={})
        builder.ops[first.name] = segment
        for blob in inside:
            del builder.blobs[blob]
    control = ((segment_of.get(a, a), segment_of.get(b, b)) for a, b in graph.control)
    builder.control = {(before, after) for before, after in control if before != after}
    return Lowered(builder.graph(), members=members)


class _Grouping:
    """The choice of segments: lanes take turns, and each adds one segment in its turn."""

    def __init__(
        self,
        graph: Graph,
        cost: Callable[[Op], float],
        team: Callable[[Op], object],
        pieces: int,
        least: float,
        arriving: Set[str],
        leaving: Set[str],
    ) -> None:
        self.graph, self.arriving, self.leaving = graph, arriving, leaving
        self.rank = {name: rank for rank, name in enumerate(urgency(graph))}
        self.cost = {name: cost(op) for name, op in graph.ops.items()}
        self.team = {name: team(op) for name, op in graph.ops.items()}
        self.station: dict[str, Station] = {
            name: (op.location, op.lane) for name, op in graph.ops.items()
        }
        total: dict[Station, float] = {}
        for name, station in self.station.items():
            total[station] = total.get(station, 0.0) + self.cost[name]
        self.limit = {station: max(value / pieces, least) for station, value in total.items()}
        self.waiting = Counter(chain.from_iterable(graph.successors.values()))
        self.ready: dict[Station, dict[object, list[tuple[int, str]]]] = {k: {} for k in total}
        """By lane and team, the ready ops, the most urgent first."""
        self.eager = self._eager()
        self.late = self._late()

    def groups(self) -> Iterator[list[Op]]:
        for name in self.graph.ops:
            if not self.waiting[name]:
                self._offer(name)
        left = len(self.graph.ops)
        while left:
            before = left
            for station in self.ready:
                group = self._turn(station)
                if group:
                    yield group
                    left -= len(group)
            assert left < before, "the graph has a cycle: verify it first"

    def _turn(self, station: Station) -> list[Op]:
        """A segment of the team with the most urgent op, or that op alone."""
        teams = {team: queue for team, queue in self.ready[station].items() if queue}
        if not teams:
            return []
        team = min(teams, key=lambda name: teams[name][0])
        queue = teams[team]
        many = lookup(self.graph.ops[queue[0][1]]).variants.many is not None
        if many:
            # Only ops that are ready now: those that become ready read from these.
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
                break  # the ops before it need not wait for another device
            prompt = name in self.leaving or (queue and queue[0][1] in self.arriving)
            if not many and prompt and length >= _PROMPT:
                break
        left = self.ready[station][team]
        if left is not queue:
            for item in queue:
                heapq.heappush(left, item)
        return group

    def _offer(self, name: str) -> None:
        queue = self.ready[self.station[name]].setdefault(self.team[name], [])
        heapq.heappush(queue, (self.rank[name], name))

    def _eager(self) -> set[str]:
        """Compute ops that another compute lane waits for, directly or through other lanes."""
        awaited: dict[str, set[Station]] = {}
        eager = set()
        for name in reversed(self.graph.order):
            own = self.station[name]
            here = computes(own[1])
            stations = awaited[name] = set()
            for target in self.graph.successors[name]:
                station = self.station[target]
                if here and station == own:
                    continue
                if computes(station[1]):
                    stations.add(station)
                if not here or not computes(station[1]):
                    stations |= awaited[target]
            if here and stations:
                eager.add(name)
        return eager

    def _late(self) -> set[str]:
        """Compute ops that wait for another compute lane, directly or through other lanes."""
        late: set[str] = set()
        for name in self.graph.order:
            here = computes(self.station[name][1])
            if here or name in late:
                for target in self.graph.successors[name]:
                    if not here or self.station[target] != self.station[name]:
                        late.add(target)
        return late


class SegmentError(Exception):
    """An op of a segment failed: the op, its inputs, and its error."""

    def __init__(self, op: Op, inputs: Sequence[Tensor], error: Exception) -> None:
        super().__init__(str(error))
        self.op, self.inputs, self.error = op, inputs, error


def segment_kernel(
    ops: Sequence[Op],
    inputs: Sequence[str],
    outputs: Sequence[str],
    over: Callable[[Op], int | None],
) -> Kernel:
    """One kernel for the ops of a segment.

    If torch cannot compile them, they run one by one, which is logged. `over` is the input that an
    op may write its result over. A failing op raises a `SegmentError` that names it.
    """
    if lookup(ops[0]).variants.many is not None:
        return _many_kernel(ops)

    def one_by_one(*tensors: Tensor) -> Results:
        values = dict(zip(inputs, tensors, strict=True))
        for op in ops:
            arguments = [values[name] for name in op.inputs]
            try:
                result = lookup(op).bind(op)(*arguments)
            except Exception as error:
                raise SegmentError(op, arguments, error) from error
            results = result if isinstance(result, tuple | list) else (result,)
            values |= dict(zip(op.outputs, results, strict=False))
        returned = tuple(values[name] for name in outputs)
        return returned[0] if len(returned) == 1 else returned

    try:
        compiled = compile_ops(ops, inputs, outputs, over)
    except (RuntimeError, KeyError) as error:
        names = " to ".join(dict.fromkeys((ops[0].name, ops[-1].name)))
        _warn_once(names, in_a_line(error))
        return one_by_one

    def kernel(*tensors: Tensor) -> Results:
        try:
            return compiled(*tensors)
        except Exception:
            one_by_one(*tensors)  # fails again, and names the op
            raise  # it passed this time, on inputs that may have been written over

    return kernel


@cache
def _warn_once(names: str, reason: str) -> None:
    """Log a segment that is not compiled once per process, not at each start of a run."""
    _log.warning("segment %s is not compiled and runs op by op: %s", names, reason)


def _many_kernel(ops: Sequence[Op]) -> Kernel:
    """One call for ops of a kind that takes many; inputs and results are concatenated op by op."""
    call, width = lookup(ops[0]).bind_many(ops[0]), len(ops[0].inputs)
    single = len(ops) == 1 and len(ops[0].outputs) == 1

    def kernel(*tensors: Tensor) -> Results:
        columns = [list(tensors[position::width]) for position in range(width)]
        try:
            results = call(*columns)
        except Exception as error:
            for op, *row in zip(ops, *columns, strict=True):
                try:
                    lookup(op).bind(op)(*row)
                except Exception as own:
                    raise SegmentError(op, row, own) from own
            raise SegmentError(ops[0], tensors[:width], error) from error
        returned = tuple(value for row in zip(*results, strict=True) for value in row)
        return returned[0] if single else returned

    return kernel
