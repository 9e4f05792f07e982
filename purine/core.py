"""The dispatcher's core: a state machine over a graph, with no threads, no I/O and no torch.

`compile_plan` turns a graph into integers once. `Core` then answers one question: this op of this
iteration is complete, so which ops are ready now? A *token* stands for one op in one iteration:
`iteration * len(plan.ops) + op`. Ops are numbered by urgency: the smallest ready token runs first.

There is no barrier between iterations. An op waits for its own inputs only: from ops of the same
iteration, and through states from ops of the iteration before. A state that may be stale is waited
for longer ago. The credit bounds how many iterations are in flight: iteration i opens when
iteration i - credit is complete.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from purine.graph import FETCH, Graph, Lane, Location
from purine.graph.nodes import computes

__all__ = ["Core", "Plan", "Station", "compile_plan", "urgency"]

Station = tuple[Location, Lane]
"""A lane at a location: what runs ops one at a time."""


@dataclass(frozen=True)
class Plan:
    """A graph as integers. Op k is `ops[k]`; a smaller number is more urgent.

    `same[k]` are the ops of the same iteration that wait for op k, `later[k]` those of the next,
    and `stale[k]` pairs (op, distance) of those that wait for it several iterations later.
    `needs[k]` counts the ops that op k waits for, and `carried[k]` those of them that are in the
    iteration before. An op that waits for no op of its own iteration is a root: it waits for the
    credit.
    """

    ops: tuple[str, ...]
    stations: tuple[Station, ...]
    station: tuple[int, ...]
    same: tuple[tuple[int, ...], ...]
    later: tuple[tuple[int, ...], ...]
    needs: tuple[int, ...]
    carried: tuple[int, ...]
    roots: tuple[int, ...]
    stale: tuple[tuple[tuple[int, int], ...], ...] = ()

    @property
    def reach(self) -> int:
        """Over how many iterations an op may be waited for."""
        return max((distance for targets in self.stale for _, distance in targets), default=1)


def compile_plan(graph: Graph) -> Plan:
    """Number the ops of a verified graph by urgency, and count what each waits for."""
    names = urgency(graph)
    number = {name: index for index, name in enumerate(names)}
    stations: dict[Station, int] = {}
    station = []
    for name in names:
        op = graph.ops[name]
        station.append(stations.setdefault((op.location, op.lane), len(stations)))
    same = [tuple(sorted(number[after] for after in graph.successors[name])) for name in names]
    later: list[set[int]] = [set() for _ in names]
    stale: list[set[tuple[int, int]]] = [set() for _ in names]
    for state in graph.states.values():
        producer = graph.producers.get(state.next)
        for op in graph.consumers[state.read] if state.shared else ():
            later[number[op.name]].add(number[op.name])  # reads of a version keep their order
        if producer is not None:
            # What other workers write to a shared state is not waited for here.
            distance = 1 if state.shared else 1 + (state.staleness or 0)
            for op in graph.consumers[state.read]:
                if distance == 1 or op.kind != FETCH:
                    later[number[producer.name]].add(number[op.name])
                else:
                    stale[number[producer.name]].add((number[op.name], distance))
    inside, carried = Counter(chain(*same)), Counter(chain(*later))
    old = Counter(target for targets in stale for target, _ in targets)
    numbers = range(len(names))
    return Plan(
        tuple(names),
        tuple(stations),
        tuple(station),
        tuple(same),
        tuple(tuple(sorted(targets)) for targets in later),
        tuple(inside[index] + carried[index] + old[index] for index in numbers),
        tuple(carried[index] for index in numbers),
        tuple(index for index in numbers if not inside[index]),
        tuple(tuple(sorted(targets)) for targets in stale) if old else (),
    )


def urgency(graph: Graph) -> list[str]:
    """Op names in a topological order, the most urgent first.

    With one compute lane per device the order decides memory, not time: short paths (a weight
    gradient and its update) run before the long chain goes on, so that buffers are released early.
    With several lanes the op with the longest path behind it runs first.

    An op that updates a state comes after the state's other readers, unless they wait for it: it
    can then update in place.
    """
    remaining = _remaining_paths(graph)
    ops = graph.ops.values()
    lanes = {(op.location, op.lane) for op in ops if computes(op.lane)}
    concurrent = len(lanes) > len({location for location, _ in lanes})
    waiting = Counter(chain(*graph.successors.values()))
    unread, behind = _old_values(graph)
    held: dict[str, None] = {}
    order: list[str] = []
    step = 0
    ready: list[tuple[int, int, int, str]] = []

    def push(names: Sequence[str]) -> None:
        nonlocal step
        step += 1
        for position, name in enumerate(names):
            if concurrent:
                heapq.heappush(ready, (-remaining[name], step, position, name))
            else:
                heapq.heappush(ready, (-step, remaining[name], position, name))

    push([name for name in graph.ops if not waiting[name]])
    while ready or held:
        if not ready:
            push([next(iter(held))])
        name = heapq.heappop(ready)[-1]
        held.pop(name, None)
        order.append(name)
        released = []
        for target in graph.successors[name]:
            waiting[target] -= 1
            if waiting[target] == 0:
                if unread[target]:
                    held[target] = None
                else:
                    released.append(target)
        for target in behind.get(name, ()):
            unread[target] -= 1
            if not unread[target] and target in held:
                del held[target]
                released.append(target)
        push(released)
    assert len(order) == len(graph.ops), "the graph has a cycle: verify it first"
    return order


def _old_values(graph: Graph) -> tuple[Counter[str], dict[str, list[str]]]:
    """By op that updates a state the number of the state's other readers; by reader these ops."""
    behind: dict[str, list[str]] = {}
    for state in graph.states.values():
        producer = graph.producers.get(state.next)
        if producer is not None and state.read in producer.inputs:
            for reader in graph.consumers[state.read]:
                if reader.name != producer.name:
                    behind.setdefault(reader.name, []).append(producer.name)
    return Counter(chain(*behind.values())), behind


def _remaining_paths(graph: Graph) -> Mapping[str, int]:
    """For each op the number of ops on the longest path from it to the end of the iteration."""
    remaining: dict[str, int] = {}
    for name in reversed(graph.order):
        after = (remaining[target] for target in graph.successors[name])
        remaining[name] = 1 + max(after, default=0)
    return remaining


class Core:
    """The state of one execution: counters per iteration in flight.

    >>> from purine.graph import Builder
    >>> b = Builder()
    >>> for name in ("x", "y"):
    ...     _ = b.blob(name, ())
    >>> _ = b.op("first", "Relu", [], ["x"]), b.op("second", "Relu", ["x"], ["y"])
    >>> core = Core(compile_plan(b.graph()), credit=1)
    >>> core.extend(1)      # one iteration may run: token 0 is op "first" of iteration 0
    [0]
    >>> core.complete(0)    # ... and makes op "second" ready
    [1]
    >>> core.complete(1), core.completed
    ([], 1)
    """

    def __init__(self, plan: Plan, *, start: int = 0, credit: int = 2) -> None:
        assert credit >= 1
        self.plan = plan
        self.size = len(plan.ops)
        self._same, self._later, self._stale = plan.same, plan.later, plan.stale
        self.credit = credit
        self.completed = start
        """Iterations below this one are complete."""
        self.limit = start
        """Iterations below this one may start, credit permitting."""
        self._opened = start
        # More slots than the credit: ops of an iteration that is not open yet already count down
        # what they wait for in the iterations before.
        self._slots = credit + plan.reach
        gated = list(plan.needs)
        for root in plan.roots:
            gated[root] += 1
        self._fresh = gated
        self._counts = [gated.copy() for _ in range(self._slots)]
        self._left = [self.size] * self._slots
        first = self._counts[start % self._slots]
        for op, count in enumerate(plan.carried):
            first[op] -= count
        for targets in plan.stale:
            for op, distance in targets:
                for iteration in range(start, start + distance):
                    self._counts[iteration % self._slots][op] -= 1

    def extend(self, limit: int) -> list[int]:
        """Let iterations below `limit` start; returns the tokens that are ready."""
        self.limit = max(self.limit, limit)
        return self._open()

    def complete(self, token: int) -> list[int]:
        """An op of an iteration is complete; returns the tokens that became ready."""
        size, slots = self.size, self._slots
        op = token % size
        base = token - op
        iteration = token // size
        slot = iteration % slots
        counts = self._counts[slot]
        ready = []
        for target in self._same[op]:
            count = counts[target] = counts[target] - 1
            if not count:
                ready.append(base + target)
        later = self._later[op]
        if later:
            counts = self._counts[(iteration + 1) % slots]
            base += size
            for target in later:
                counts[target] -= 1
                if not counts[target]:
                    ready.append(base + target)
        if self._stale:
            for target, distance in self._stale[op]:
                counts = self._counts[(iteration + distance) % slots]
                counts[target] -= 1
                if not counts[target]:
                    ready.append((iteration + distance) * size + target)
        left = self._left[slot] = self._left[slot] - 1
        if not left:
            ready += self._advance()
        return ready

    def _advance(self) -> list[int]:
        while self.completed < self._opened and not self._left[self.completed % self._slots]:
            slot = self.completed % self._slots
            self._counts[slot] = self._fresh.copy()
            self._left[slot] = self.size
            self.completed += 1
        return self._open()

    def _open(self) -> list[int]:
        ready = []
        while self._opened < min(self.limit, self.completed + self.credit):
            counts = self._counts[self._opened % self._slots]
            for root in self.plan.roots:
                counts[root] -= 1
                if not counts[root]:
                    ready.append(self._opened * self.size + root)
            self._opened += 1
        return ready

    @property
    def opened(self) -> int:
        """Iterations below this one have begun."""
        return self._opened

    @property
    def idle(self) -> bool:
        """Whether everything that may run has run."""
        return self.completed == self.limit

    def waiting(self) -> list[tuple[int, str, int]]:
        """The waiting ops of open iterations: (iteration, op, number of ops it waits for)."""
        return [
            (iteration, self.plan.ops[op], count)
            for iteration in range(self.completed, self._opened)
            for op, count in enumerate(self._counts[iteration % self._slots])
            if count > 0
        ]
