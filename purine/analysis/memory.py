"""How much memory a graph needs on each device, told before it runs.

A blob is there from the start of the op that makes it to the end of the last that reads it. Blobs
that share memory (views, and copies that are aliases) count once, where the memory is. The order of
ops is that of one iteration on paper, in which each lane takes one op at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping

from purine.analysis.cost import seconds
from purine.analysis.infer import size_in_bytes
from purine.arguments import checked
from purine.graph import NOTHING, Graph, Lane, Location, Op
from purine.registry.aten import OVERWRITES
from purine.registry.lookup import lookup

__all__ = ["peak_memory"]


@checked
def peak_memory(graph: Graph) -> Mapping[Location, int]:
    """The bytes of states and blobs that each device holds at the worst moment of an iteration.

    What kernels need for themselves is not counted, nor what is read ahead for later iterations.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> x, y, z = (b.blob(name, (16, 16)) for name in "xyz")
    >>> _ = b.op("first", "Softmax", [x], [y]), b.op("second", "Softmax", [y], [z])
    >>> peak_memory(b.graph())
    {Location(host='127.0.0.1', device='cpu:0'): 3072}
    """
    return _Walk(graph).peaks()


class _Walk:
    """One iteration on paper, with what is held."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.origin = _origins(graph)
        self.unread: Counter[str] = Counter()
        """By blob that has memory, how many ops are still to read it or what shares it."""
        for op in graph.ops.values():
            self.unread.update({self.origin[name] for name in op.inputs})
        kept = {*graph.outputs, *graph.inputs, *graph.states}
        kept.update(state.next for state in graph.states.values())
        self.unread.update({self.origin[name] for name in kept})
        states = set(graph.states) | set(_carried_over(graph))
        self.size = {
            name: 0 if name in states else size_in_bytes(blob) for name, blob in graph.blobs.items()
        }
        self.held: Counter[Location] = Counter()
        for name, blob in graph.blobs.items():
            if name in graph.states:
                self.held[blob.location] += size_in_bytes(blob)
            elif name in graph.inputs:
                self.held[blob.location] += self.size[name]
        self.most = Counter(dict.fromkeys((op.location for op in graph.ops.values()), 0))
        self.most |= self.held

    def peaks(self) -> Mapping[Location, int]:
        for op, begins in _events(self.graph):
            if begins:
                self._begin(op)
            else:
                self._end(op)
        return dict(sorted(self.most.items()))

    def _begin(self, op: Op) -> None:
        given = {self.origin[op.inputs[place]] for place in _overwritten(op)}
        for name in given:
            if self.unread[name] == 1:
                self._drop(name)
        for name in op.outputs:
            if name != NOTHING and self.origin[name] == name:
                where = self.graph.blobs[name].location
                self.held[where] += self.size[name]
                self.most[where] = max(self.most[where], self.held[where])

    def _end(self, op: Op) -> None:
        for name in {self.origin[name] for name in op.inputs}:
            self.unread[name] -= 1
            if not self.unread[name]:
                self._drop(name)
        for name in op.outputs:
            if name != NOTHING and not self.unread[self.origin[name]]:
                self._drop(self.origin[name])

    def _drop(self, name: str) -> None:
        self.held[self.graph.blobs[name].location] -= self.size[name]
        self.size[name] = 0


def _origins(graph: Graph) -> Mapping[str, str]:
    """For each blob the one whose memory it is in."""
    origin = {name: name for name in graph.blobs}
    for name in graph.order:
        op = graph.ops[name]
        if op.inputs and (op.attributes.get("alias") or lookup(op).view):
            origin.update(dict.fromkeys(op.outputs, origin[op.inputs[0]]))
    return origin


def _carried_over(graph: Graph) -> Iterator[str]:
    """What is written over the state that it carries on."""
    for state in graph.states.values():
        maker = graph.producers.get(state.next)
        if maker is not None and lookup(maker).overwrites(maker) and state.read in maker.inputs:
            yield state.next


def _overwritten(op: Op) -> tuple[int, ...]:
    """The inputs over which an op may write its results."""
    places = lookup(op).overwrites(op) or OVERWRITES.get(op.kind, ())
    return tuple(place for place in places if place < len(op.inputs))


def _events(graph: Graph) -> Iterator[tuple[Op, bool]]:
    """Begins and ends of all ops, in order of time.

    Of the ops that wait, a lane takes one that was released last, the shortest end first.
    """
    lasting = {name: seconds(op, graph.blobs) for name, op in graph.ops.items()}
    remaining: dict[str, float] = {}
    for name in reversed(graph.order):
        after = (remaining[target] for target in graph.successors[name])
        remaining[name] = lasting[name] + max(after, default=0.0)
    waiting = dict.fromkeys(graph.ops, 0)
    for targets in graph.successors.values():
        for target in targets:
            waiting[target] += 1
    queues: dict[tuple[Location, Lane], list[tuple[int, float, str]]] = {}
    running: list[tuple[float, int, str]] = []
    busy: set[tuple[Location, Lane]] = set()
    clock, step, count = 0.0, 0, 0
    released = [name for name, left in waiting.items() if not left]
    while released or running or any(queues.values()):
        for name in released:
            op = graph.ops[name]
            queue = queues.setdefault((op.location, op.lane), [])
            heapq.heappush(queue, (-step, remaining[name], name))
        step += 1
        for station, queue in queues.items():
            if queue and station not in busy:
                op = graph.ops[heapq.heappop(queue)[-1]]
                busy.add(station)
                count += 1
                heapq.heappush(running, (clock + lasting[op.name], count, op.name))
                yield op, True
        clock, _, name = heapq.heappop(running)
        op = graph.ops[name]
        busy.remove((op.location, op.lane))
        yield op, False
        released = []
        for target in graph.successors[name]:
            waiting[target] -= 1
            if not waiting[target]:
                released.append(target)
