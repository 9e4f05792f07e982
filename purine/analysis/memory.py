"""A forecast of the memory that a graph needs on each device.

Iterations are simulated with `Core`, the dispatcher's own core. A buffer is held from the start of
the op that writes it to the end of the last op that reads it. Blobs that share memory (views,
results written over an input) count once. Whether an update writes over a state or over a copy of
it follows from who has still to read it, as in a run. With a credit, batches that are read ahead
and iterations that overlap count too.

The order in which ops of several devices follow each other depends on their times. The forecast is
the worst of many orders: that by estimated times, and those by times drawn around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from purine.analysis.aliasing import Aliasing, constants
from purine.analysis.cost import seconds
from purine.analysis.infer import size_in_bytes
from purine.arguments import checked
from purine.core import Core, compile_plan
from purine.graph import NOTHING, Graph, Location, Op
from purine.graph.nodes import computes
from purine.registry.lookup import lookup

__all__ = ["Peaks", "buffers", "peak_memory", "peaks"]

_MOST_IN_FLIGHT = 8
"""Iterations in flight that are simulated; a longer lead of the reader is left out."""
_DRAWS, _FEWEST, _DRAWN_OPS = 128, 2, 48_000
"""The most orders of ops that are drawn, the fewest, and about the ops of all of them together."""
_KEEPS = "KeptProduct"
"""The kind of ops that keep the buffers of their results between iterations."""
_Value = tuple[str, int]
"""A blob and an iteration that has it; -1 for a value that all iterations have."""


@dataclass(frozen=True)
class Peaks:
    """The most bytes held by each device, and by all of them at one moment."""

    devices: Mapping[Location, int]
    total: int


@checked
def peak_memory(
    graph: Graph,
    *,
    members: Mapping[str, Sequence[Op]] | None = None,
    unsegmented: Graph | None = None,
    credit: int = 1,
) -> Mapping[Location, int]:
    """The bytes of states and blobs that each device holds at its peak.

    Temporary memory of kernels is not counted. `credit` iterations are in flight; with one, nothing
    is read ahead. Where the graph has segments, `members` are the ops of each, and `unsegmented`
    is the graph without.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> x, y, z = (b.blob(name, (16, 16)) for name in "xyz")
    >>> _ = b.op("first", "Softmax", [x], [y]), b.op("second", "Softmax", [y], [z])
    >>> peak_memory(b.graph())
    {Location(host='127.0.0.1', device='cpu:0'): 3072}
    """
    return peaks(graph, members=members, unsegmented=unsegmented, credit=credit).devices


def peaks(
    graph: Graph,
    *,
    members: Mapping[str, Sequence[Op]] | None = None,
    unsegmented: Graph | None = None,
    credit: int = 1,
) -> Peaks:
    """The same, and the most that all devices hold together at one moment."""
    whole = unsegmented or graph
    facts = _Facts(graph, whole, members or {})
    lasting = {op.name: facts.seconds(op) for op in graph.ops.values()}
    # Workers read versions of each other's states, so their iterations do not follow each other.
    alone = any(state.shared or state.staleness for state in graph.states.values())
    in_flight = 1 if alone else min(credit, _MOST_IN_FLIGHT)
    found = [_held(facts, lambda op: lasting[op.name], in_flight)]
    lanes = {(op.location, op.lane) for op in graph.ops.values() if computes(op.lane)}
    draws = min(_DRAWS, max(_FEWEST, _DRAWN_OPS // len(graph.ops))) if len(lanes) > 1 else 0
    for number in range(draws):
        found.append(_held(facts, _drawn(lasting, lanes, number), in_flight))
    devices = [held.devices for held in found]
    worst = {at: max(peak[at] for peak in devices) for at in sorted(devices[0])}
    return Peaks(worst, max(held.most for held in found))


def _drawn(
    lasting: Mapping[str, float], lanes: Collection[tuple[Location, str]], number: int
) -> Callable[[Op], float]:
    """Times of ops for one of the draws; in every other one some devices are slower as a whole."""
    draw = Random(number)
    speeds = dict.fromkeys(sorted({location for location, _ in lanes}), 1.0)
    if number % 2:
        speeds = {location: draw.lognormvariate(0, 1) for location in speeds}

    def duration(op: Op) -> float:
        return lasting[op.name] * speeds.get(op.location, 1.0) * draw.lognormvariate(0, 1)

    return duration


def _held(facts: _Facts, duration: Callable[[Op], float], credit: int) -> _Held:
    """What is held in the order that these times of ops lead to."""
    held = _Held(facts)
    for op, iteration, begins in _simulated(facts, duration, credit):
        if op is None:
            held.collect(iteration)
        elif begins:
            held.begin(op, iteration)
        else:
            held.end(op, iteration)
    return held


def _simulated(
    facts: _Facts, duration: Callable[[Op], float], credit: int
) -> Iterator[tuple[Op | None, int, bool]]:
    """The begins (True) and ends (False) of ops and their iterations, in order of time.

    Without an op it is the end of an iteration. One iteration is simulated, or two where others are
    in flight behind them.
    """
    core = Core(facts.plan, credit=credit)
    plan, size = core.plan, core.size
    ops = [facts.graph.ops[name] for name in plan.ops]
    queues: list[list[int]] = [[] for _ in plan.stations]
    free = [True for _ in plan.stations]
    running: list[tuple[float, int]] = []
    clock = 0.0
    simulated = 1 if credit == 1 else 2
    ready = core.extend(1 if credit == 1 else simulated + credit)
    touched = {plan.station[token % size] for token in ready}
    while core.completed < simulated:
        for token in ready:
            heappush(queues[plan.station[token % size]], token)
        for station in sorted(touched):
            if queues[station] and free[station]:
                free[station] = False
                token = heappop(queues[station])
                op = ops[token % size]
                yield op, token // size, True
                heappush(running, (clock + duration(op), token))
        clock, token = heappop(running)
        station = plan.station[token % size]
        free[station] = True
        yield ops[token % size], token // size, False
        before = core.completed
        ready = core.complete(token)
        for iteration in range(before, core.completed):
            yield None, iteration, False
        touched = {station, *(plan.station[token % size] for token in ready)}


class _Buffer:
    """Memory that one or several values are in, and how many hold it."""

    __slots__ = ("at", "size", "users")

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size, self.users = at, size, 0


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a result of an op lies.

    Without a `source` it has a buffer of `size` bytes at location number `at`. Else it is in the
    memory of that input; if there is a `family`, only where nobody else has still to read that.
    """

    name: str
    at: int
    size: int
    source: str | None
    family: str | None
    kept: bool


class _Facts:
    """What does not change while ops begin and end.

    A segment in `members` whose ops one call runs holds the inputs and results of all of them.
    """

    def __init__(self, graph: Graph, whole: Graph, members: Mapping[str, Sequence[Op]]) -> None:
        self.graph, self.blobs, self.members = graph, whole.blobs, members
        inner = Aliasing(whole)
        self.aliasing = aliasing = inner if graph is whole else Aliasing(graph, members, inner)
        self.following = {state.read: state.next for state in graph.states.values()}
        self.carried: dict[str, list[str]] = {}
        """By blob the states whose next value it is."""
        for read, following in self.following.items():
            if read != following:
                self.carried.setdefault(following, []).append(read)
        self.uses = Counter(name for op in graph.ops.values() for name in set(op.inputs))
        """By blob the ops of an iteration that read it."""
        self.constants = set(constants(graph))
        self.plan = compile_plan(graph)
        locations = {op.location for op in graph.ops.values()}
        locations |= {blob.location for blob in whole.blobs.values()}
        self.number = {at: number for number, at in enumerate(sorted(locations))}
        self.inputs = {op.name: tuple(dict.fromkeys(op.inputs)) for op in graph.ops.values()}
        self.families = {
            name: tuple({aliasing.family[i] for i in inputs} & aliasing.watched.keys())
            for name, inputs in self.inputs.items()
        }
        """By op the families that it reads whose readers are counted."""
        self.results: dict[str, tuple[_Result, ...]] = {}
        """By op, also those inside of segments, where its results lie."""
        for op in graph.ops.values():
            own = inner if self.one_by_one(op) else aliasing
            for part in self.parts(op):
                self.results[part.name] = tuple(self._results(part, own))

    def parts(self, op: Op) -> Sequence[Op]:
        return self.members.get(op.name, (op,))

    def one_by_one(self, op: Op) -> bool:
        """Whether an op is a segment whose ops run one after the other."""
        return op.name in self.members and lookup(self.parts(op)[0]).variants.many is None

    def seconds(self, op: Op) -> float:
        parts = self.parts(op) if self.one_by_one(op) else (op,)
        return sum(seconds(part, self.blobs) for part in parts)

    def size(self, name: str) -> tuple[int, int]:
        """The number of the location of a blob, and its bytes."""
        blob = self.blobs[name]
        return self.number[blob.location], size_in_bytes(blob)

    def _results(self, op: Op, aliasing: Aliasing) -> Iterator[_Result]:
        over: dict[str, tuple[str | None, str | None]] = {}
        for output, source, always in _written_over(op, aliasing, self.following):
            state = self.graph.states.get(source)
            always = always or (state is not None and bool(state.shared))
            over[output] = source, None if always else aliasing.family[source]
        for name in op.outputs:
            if name != NOTHING:
                lies_in, family = over.get(name) or (_shared(op, name, aliasing), None)
                yield _Result(name, *self.size(name), lies_in, family, op.kind == _KEEPS)


class _Held:
    """The buffers that are held while ops begin and end.

    It follows the rules of `Program` and `Buffers` in the runtime, with sizes in place of tensors.
    A value lies in the buffer that its op makes or writes over, until its last reader ends. An op
    holds all that it reads and returns while it runs.
    """

    def __init__(self, facts: _Facts) -> None:
        graph = facts.graph
        self.facts = facts
        self.values: dict[_Value, _Buffer] = {}
        self.unread: dict[_Value, int] = {}
        """By value the ops that have still to read it, once one has."""
        self.watched: dict[_Value, int] = {}
        """By family and iteration what keeps its memory from being written over, once it is less
        than at first."""
        self.running: dict[_Value, list[_Buffer]] = {}
        """By op and iteration what it reads and returns."""
        self.lent: dict[str, list[_Buffer]] = {}
        """By result that is kept between iterations the buffers that there are for it."""
        self.bytes = [0] * len(facts.number)
        self.peaks = [0] * len(facts.number)
        self.total = self.most = 0
        for name in (*graph.states, *graph.inputs):
            self._store(self._key(name, 0), _Buffer(*facts.size(name)))

    @property
    def devices(self) -> dict[Location, int]:
        """The peak of each location that has an op or held something."""
        own = {op.location for op in self.facts.graph.ops.values()}
        peaks = {at: self.peaks[number] for at, number in self.facts.number.items()}
        return {at: peak for at, peak in peaks.items() if peak or at in own}

    def begin(self, op: Op, iteration: int) -> None:
        """Make what an op returns, and hold it and what it reads."""
        facts = self.facts
        found: dict[str, _Buffer] = {}
        for name in facts.inputs[op.name]:
            found[name] = buffer = self.values[self._key(name, iteration)]
            buffer.users += 1
        if facts.one_by_one(op):
            self._run_inside(op, found, iteration)
        else:
            for part in facts.parts(op):
                self._run(part, found, iteration)
        self.running[op.name, iteration] = list(found.values())
        kept = facts.aliasing.kept
        for name in op.outputs:
            if name == NOTHING:
                continue
            if facts.uses[name] or name in kept:
                self._store(self._key(name, iteration), found[name])
            for read in facts.carried.get(name, ()):
                self._store((read, iteration + 1), found[name])
                if not facts.uses[read] and read not in kept:
                    self._forget((read, iteration))

    def end(self, op: Op, iteration: int) -> None:
        """Release what an op was the last to read, and what it wrote for nobody."""
        facts, unread = self.facts, self.unread
        kept = facts.aliasing.kept
        for name in facts.inputs[op.name]:
            if name not in kept:
                key = name, iteration
                left = unread.get(key, facts.uses[name]) - 1
                if left:
                    unread[key] = left
                else:
                    unread.pop(key, None)
                    self._forget(key)
        for family in facts.families[op.name]:
            self.watched[family, iteration] = self._left(family, iteration) - 1
        for buffer in self.running.pop((op.name, iteration)):
            self._leave(buffer)

    def collect(self, iteration: int) -> None:
        """The host takes the outputs of a complete iteration."""
        for name in self.facts.graph.outputs:
            if name not in self.facts.constants:
                self._forget((name, iteration))

    def _run(self, op: Op, found: dict[str, _Buffer], iteration: int) -> None:
        """Add the buffers of an op's results, of which one more user is counted."""
        for result in self.facts.results[op.name]:
            source, family = result.source, result.family
            if source is not None and (family is None or self._left(family, iteration) == 1):
                buffer = found[source]
            elif result.kept:
                buffer = self._lent(result)
            else:
                buffer = _Buffer(result.at, result.size)
            found[result.name] = buffer
            self._use(buffer)

    def _run_inside(self, op: Op, found: dict[str, _Buffer], iteration: int) -> None:
        """The ops of a segment one by one; a value inside goes with its last reader."""
        parts = self.facts.parts(op)
        left = Counter(name for part in parts for name in set(part.inputs))
        left.update((*op.inputs, *op.outputs))
        for part in parts:
            self._run(part, found, iteration)
            for name in {*part.inputs, *part.outputs} - {NOTHING}:
                left[name] -= name in part.inputs
                if left[name] <= 0:
                    self._leave(found.pop(name))

    def _left(self, family: str, iteration: int) -> int:
        return self.watched.get((family, iteration), self.facts.aliasing.readers[family])

    def _key(self, name: str, iteration: int) -> _Value:
        return (name, -1) if name in self.facts.constants else (name, iteration)

    def _lent(self, result: _Result) -> _Buffer:
        """A buffer that is kept for a result, and that nobody holds."""
        own = self.lent.setdefault(result.name, [])
        for buffer in own:
            if buffer.users == 1:
                return buffer
        own.append(_Buffer(result.at, result.size))
        self._use(own[-1])
        return own[-1]

    def _store(self, key: _Value, buffer: _Buffer) -> None:
        self._use(buffer)
        self._forget(key)
        self.values[key] = buffer

    def _forget(self, key: _Value) -> None:
        buffer = self.values.pop(key, None)
        if buffer is not None:
            self._leave(buffer)

    def _use(self, buffer: _Buffer) -> None:
        buffer.users += 1
        if buffer.users == 1:
            at, size = buffer.at, buffer.size
            self.total += size
            self.most = max(self.most, self.total)
            self.bytes[at] += size
            self.peaks[at] = max(self.peaks[at], self.bytes[at])

    def _leave(self, buffer: _Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self.bytes[buffer.at] -= buffer.size
            self.total -= buffer.size


def _shared(op: Op, output: str, aliasing: Aliasing) -> str | None:
    """The input whose memory a result of an op is in, without being written over it."""
    if op.inputs and op.attributes.get("alias"):
        return op.inputs[0]
    own = aliasing.family[output]
    if own == output:
        return None
    return next((name for name in op.inputs if aliasing.family[name] == own), None)


def _written_over(
    op: Op, aliasing: Aliasing, following: Mapping[str, str]
) -> Iterator[tuple[str, str, bool]]:
    """The results that an op may write over an input: triples (output, input, always).

    Those that are not `always` are where nobody else has still to read the input.
    """
    index = aliasing.overwritable(op)
    if index is not None:
        yield op.outputs[0], op.inputs[index], True
    for number, index in enumerate(lookup(op).overwrites(op)):
        source = op.inputs[index]
        output = following.get(source)
        if output in op.outputs:
            assert output is not None
            yield output, source, False
        elif source not in following and number < len(op.outputs):
            yield op.outputs[number], source, False


def buffers(graph: Graph) -> dict[str, str]:
    """For each blob the first of those that are in the same buffer."""
    aliasing = Aliasing(graph)
    following = {state.read: state.next for state in graph.states.values()}
    buffer = {name: name for name in graph.blobs}
    for name in graph.order:
        op = graph.ops[name]
        for output in op.outputs:
            source = None if output == NOTHING else _shared(op, output, aliasing)
            if source is not None:
                buffer[output] = buffer[source]
        for output, source, always in _written_over(op, aliasing, following):
            if always or source in following or aliasing.readers[aliasing.family[source]] == 1:
                buffer[output] = buffer[source]
    return buffer
