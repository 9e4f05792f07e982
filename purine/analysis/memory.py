"""A forecast of the memory that a graph needs on each device.

Iterations are simulated in estimated time with `Core`, the dispatcher's own core. A buffer is held
from the start of the op that writes it to the end of the last op that reads it. Blobs that share
memory (views, in-place results, states updated in place) count once. With a credit, batches that
are read ahead and iterations that overlap count as they do in a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from purine.analysis.aliasing import Aliasing, constants
from purine.analysis.cost import seconds
from purine.analysis.infer import size_in_bytes
from purine.arguments import checked
from purine.core import Core, compile_plan
from purine.graph import NOTHING, Graph, Location, Op
from purine.registry.lookup import lookup

__all__ = ["Peaks", "buffers", "peak_memory", "peaks"]

_MOST_IN_FLIGHT = 8
"""Iterations in flight that are simulated; a longer lead of the reader is left out."""
_Buffer = tuple[str, int]
"""The blob that stands for a buffer, and the iteration that wrote it; -1 for the ones before."""


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
    # A segment that runs as one call holds all its inputs and results at once.
    one_by_one = {k: v for k, v in (members or {}).items() if lookup(v[0]).variants.many is None}
    parts = {name: tuple(ops) for name, ops in one_by_one.items()}
    lasting: dict[str, float] = {}

    def duration(op: Op) -> float:
        if op.name not in lasting:
            own = parts.get(op.name, (op,))
            lasting[op.name] = sum(seconds(part, whole.blobs) for part in own)
        return lasting[op.name]

    # Workers read versions of each other's states, so their iterations do not follow each other.
    alone = any(state.shared or state.staleness for state in graph.states.values())
    held = _Held(graph, whole, parts)
    in_flight = 1 if alone else min(credit, _MOST_IN_FLIGHT)
    for op, iteration, begins in _simulated(graph, duration, in_flight):
        if op is None:
            held.collect(iteration)
        elif begins:
            held.begin(op, iteration)
        else:
            held.release(op, iteration)
    return Peaks(dict(sorted(held.peak.items())), held.most)


def _simulated(
    graph: Graph, duration: Callable[[Op], float], credit: int
) -> Iterator[tuple[Op | None, int, bool]]:
    """The begins (True) and ends (False) of ops and their iterations, in order of time.

    Without an op it is the end of an iteration. One iteration is simulated, or two where others are
    in flight behind them.
    """
    core = Core(compile_plan(graph), credit=credit)
    plan, size = core.plan, core.size
    ops = [graph.ops[name] for name in plan.ops]
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


class _Held:
    """The buffers that are held while ops begin and end."""

    def __init__(self, graph: Graph, whole: Graph, parts: Mapping[str, tuple[Op, ...]]) -> None:
        self.blobs = whole.blobs
        self.parts = parts
        self.buffer = buffers(whole)
        """By blob the blob that stands for its buffer."""
        self.uses: Counter[str] = Counter()
        """By buffer the ops of an iteration that read it."""
        for op in graph.ops.values():
            for reader in (op, *parts.get(op.name, ())):
                self.uses.update({self.buffer[name] for name in reader.inputs})
        self.outputs = {self.buffer[name] for name in graph.outputs}
        self.kept = {self.buffer[name] for name in constants(graph)}
        """Buffers that live through all iterations."""
        self.following: dict[str, str] = {}
        """By buffer of a state the one that its next value is in."""
        for state in graph.states.values():
            read, following = self.buffer[state.read], self.buffer[state.next]
            if read == following:
                self.kept.add(read)
            else:
                self.following[read] = following
        self.later = Counter({self.following[read]: self.uses[read] for read in self.following})
        self.passed = set(self.following.values())
        """Buffers of next values, which the next iteration reads."""
        self.unread: dict[_Buffer, int] = {}
        """By buffer the ops that have still to read it."""
        self.bytes: Counter[Location] = Counter()
        self.total = self.most = 0
        self.peak = Counter(dict.fromkeys((op.location for op in graph.ops.values()), 0))
        for name in (*graph.states, *graph.inputs):
            self._hold(name, 0)

    def begin(self, op: Op, iteration: int) -> None:
        parts = self.parts.get(op.name)
        if parts is None:
            self._write(op, iteration)
        else:  # the ops of a segment run within its own begin and end
            for part in parts:
                self._write(part, iteration)
                self.release(part, iteration)

    def _write(self, op: Op, iteration: int) -> None:
        for name in op.outputs:
            if name != NOTHING:
                self._hold(name, iteration)

    def _key(self, name: str, iteration: int) -> _Buffer:
        buffer = self.buffer[name]
        if buffer in self.kept:
            return buffer, -1
        following = self.following.get(buffer)
        if following is None:
            return buffer, iteration
        return (following, -1) if following in self.kept else (following, iteration - 1)

    def _hold(self, name: str, iteration: int) -> None:
        key = buffer, written = self._key(name, iteration)
        if key in self.unread:
            return
        if buffer in self.kept:
            uses = 1
        elif buffer in self.passed:
            uses = self.later[buffer] + (self.uses[buffer] if written >= 0 else 0)
            uses += not self.later[buffer]
        else:
            uses = self.uses[buffer] + (buffer in self.outputs)
        self.unread[key] = uses
        self._count(buffer, 1)

    def _count(self, buffer: str, sign: int) -> None:
        size = sign * size_in_bytes(self.blobs[buffer])
        location = self.blobs[buffer].location
        self.bytes[location] += size
        self.total += size
        self.peak[location] = max(self.peak[location], self.bytes[location])
        self.most = max(self.most, self.total)

    def release(self, op: Op, iteration: int) -> None:
        """Release what an op has read, and what it wrote for nobody."""
        read = {self._key(name, iteration) for name in op.inputs}
        written = {self._key(name, iteration) for name in op.outputs if name != NOTHING}
        for key in read | written:
            if key[0] in self.kept or key not in self.unread:
                continue
            self.unread[key] -= key in read
            if self.unread[key] <= 0:
                self._drop(key)

    def _drop(self, key: _Buffer) -> None:
        del self.unread[key]
        self._count(key[0], -1)

    def collect(self, iteration: int) -> None:
        """The host takes the outputs of a complete iteration."""
        for buffer in self.outputs - self.kept - self.passed:
            key = buffer, iteration
            if key in self.unread:
                self.unread[key] -= 1
                if self.unread[key] <= 0:
                    self._drop(key)


def buffers(graph: Graph) -> dict[str, str]:
    """For each blob the first of those that are in the same buffer."""
    aliasing = Aliasing(graph)
    buffer = {name: name for name in graph.blobs}
    for name in graph.order:
        op = graph.ops[name]
        for output in op.outputs:
            if output != NOTHING and aliasing.family[output] != output:
                buffer[output] = buffer[aliasing.family[output]]
        for output, source in _over(op, graph, aliasing):
            buffer[output] = buffer[source]
        if op.inputs and op.attributes.get("alias"):
            buffer[op.outputs[0]] = buffer[op.inputs[0]]
    return buffer


def _over(op: Op, graph: Graph, aliasing: Aliasing) -> Iterator[tuple[str, str]]:
    """The outputs of an op that are written over an input: pairs (output, input)."""
    index = aliasing.overwritable(op)
    if index is not None:
        yield op.outputs[0], op.inputs[index]
    following = {state.read: state.next for state in graph.states.values()}
    for index in aliasing.overwrites(op):
        source = op.inputs[index]
        if following.get(source) in op.outputs:
            yield following[source], source
