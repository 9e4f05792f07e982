"""A forecast of the memory that a graph needs on each device.

One iteration is simulated in estimated time with `Core`, the dispatcher's own core. A buffer is
held from the start of the op that writes it to the end of the last op that reads it. Blobs that
share memory (views, in-place results, states updated in place) count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from purine.analysis.aliasing import Aliasing, constants
from purine.analysis.cost import seconds
from purine.analysis.infer import size_in_bytes
from purine.arguments import checked
from purine.core import Core, compile_plan
from purine.graph import NOTHING, Graph, Location, Op
from purine.registry.lookup import lookup

__all__ = ["buffers", "peak_memory"]


@checked
def peak_memory(
    graph: Graph,
    *,
    members: Mapping[str, Sequence[Op]] | None = None,
    unsegmented: Graph | None = None,
) -> Mapping[Location, int]:
    """The bytes of states and blobs that each device holds at the peak of one iteration.

    Temporary memory of kernels and prefetched batches are not counted. Where the graph has
    segments, `members` are the ops of each, and `unsegmented` is the graph without.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> x, y, z = (b.blob(name, (16, 16)) for name in "xyz")
    >>> _ = b.op("first", "Softmax", [x], [y]), b.op("second", "Softmax", [y], [z])
    >>> peak_memory(b.graph())
    {Location(host='127.0.0.1', device='cpu:0'): 3072}
    """
    whole = unsegmented or graph
    # A segment that runs as one call holds all its inputs and results at once.
    one_by_one = {k: v for k, v in (members or {}).items() if lookup(v[0]).variants.many is None}
    parts = {name: tuple(ops) for name, ops in one_by_one.items()}

    def duration(op: Op) -> float:
        return sum(seconds(part, whole.blobs) for part in parts.get(op.name, (op,)))

    held = _Held(graph, whole, parts)
    for op, begins in _simulated(graph, duration):
        if begins:
            held.begin(op)
        else:
            held.release(op)
    return dict(sorted(held.peak.items()))


def _simulated(graph: Graph, duration: Callable[[Op], float]) -> Iterator[tuple[Op, bool]]:
    """The begins (True) and ends (False) of the ops of one iteration, in order of time."""
    core = Core(compile_plan(graph), credit=1)
    plan = core.plan
    queues: list[list[int]] = [[] for _ in plan.stations]
    free = [True for _ in plan.stations]
    running: list[tuple[float, int]] = []
    clock = 0.0
    ready = core.extend(1)
    while not core.idle:
        for token in ready:
            heappush(queues[plan.station[token]], token)
        for station, queue in enumerate(queues):
            if queue and free[station]:
                free[station] = False
                token = heappop(queue)
                op = graph.ops[plan.ops[token]]
                yield op, True
                heappush(running, (clock + duration(op), token))
        clock, token = heappop(running)
        free[plan.station[token]] = True
        yield graph.ops[plan.ops[token]], False
        ready = core.complete(token)


class _Held:
    """The buffers that are held while ops begin and end."""

    def __init__(self, graph: Graph, whole: Graph, parts: Mapping[str, tuple[Op, ...]]) -> None:
        self.blobs = whole.blobs
        self.parts = parts
        self.buffer = buffers(whole)
        """By blob the blob that stands for its buffer."""
        self.unread: Counter[str] = Counter()
        """By buffer the ops that have still to read it; kept buffers have one more."""
        for op in graph.ops.values():
            for reader in (op, *parts.get(op.name, ())):
                self.unread.update({self.buffer[name] for name in reader.inputs})
        kept = {*constants(graph), *graph.outputs}
        kept.update(state.next for state in graph.states.values())
        self.unread.update({self.buffer[name] for name in kept})
        self.bytes: Counter[Location] = Counter()
        self.peak = Counter(dict.fromkeys((op.location for op in graph.ops.values()), 0))
        self.live: set[str] = set()
        for name in (*graph.states, *graph.inputs):
            self._hold(name)

    def begin(self, op: Op) -> None:
        parts = self.parts.get(op.name)
        if parts is None:
            self._write(op)
        else:  # the ops of a segment run within its own begin and end
            for part in parts:
                self._write(part)
                self.release(part)

    def _write(self, op: Op) -> None:
        for name in op.outputs:
            if name != NOTHING:
                self._hold(name)

    def _hold(self, name: str) -> None:
        buffer = self.buffer[name]
        if buffer not in self.live:
            self.live.add(buffer)
            location = self.blobs[buffer].location
            self.bytes[location] += size_in_bytes(self.blobs[buffer])
            self.peak[location] = max(self.peak[location], self.bytes[location])

    def release(self, op: Op) -> None:
        read = {self.buffer[name] for name in op.inputs}
        self.unread.subtract(read)
        written = {self.buffer[name] for name in op.outputs if name != NOTHING}
        for buffer in read | written:
            if buffer in self.live and not self.unread[buffer]:
                self.live.remove(buffer)
                self.bytes[self.blobs[buffer].location] -= size_in_bytes(self.blobs[buffer])


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
