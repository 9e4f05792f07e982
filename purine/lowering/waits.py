"""The graph of waits between the ops of all hosts: a schedule that can deadlock has a cycle here.

An op of iteration i waits for ops of iteration i - d, where d is the distance of the wait:

| wait | distance |
|---|---|
| data, control edges, a put and its arrival, parts of one collective | 0 |
| a state; a collective for the one before it in another iteration | 1 or more |
| the first ops of an iteration, for the credit | the credit |
| a put, for a slot at its receiver | the slots |

Iterations are numbered from 0, so a run can deadlock only if ops wait for each other in a cycle
whose distances add up to 0. Distances are never negative, so checking the waits of distance 0 is
enough. Those of the credit and of slots are among them only if the credit or the slots are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from purine.graph import Graph, Op
from purine.graph.verify import find_cycle
from purine.lowering.hosts import Channel
from purine.lowering.together import collective_of

__all__ = ["Ends", "Waits", "waits_of"]

Ends = Mapping[tuple[str, str, int], tuple[Channel, Channel]]
"""The put and the arrival of each channel, by (host that sends, receiver, number)."""


@dataclass(frozen=True)
class Waits:
    """The waits of distance 0 as a graph of the ops of all hosts, each named `host/op`.

    `counts` has the number of waits of each kind, whatever their distance.
    """

    graph: Graph
    parts: Mapping[str, Graph]
    why: Mapping[tuple[str, str], str]
    """What an edge is that no part has."""
    of: Mapping[str, tuple[str, str]]
    """By node a host and its op; one of several for a collective."""
    counts: Mapping[str, int]

    def cycle(self) -> list[str]:
        """The nodes of a cycle, in the order of its edges; empty if there is no deadlock."""
        return find_cycle(self.graph)

    def text(self, cycle: list[str]) -> str:
        """A cycle with the blob or channel of each wait: `host0/a -> 'x' -> host0/b -> channel 0 ->
        ...`."""
        words = [cycle[0]]
        for name, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            words += [self._why(name, after), after]
        return " -> ".join(word for word in words if word)

    def _why(self, name: str, after: str) -> str:
        if (name, after) in self.why:
            return self.why[name, after]
        for host, part in self.parts.items():
            first, second = (self._op(node, host) for node in (name, after))
            if first and second and second.name in part.successors[first.name]:
                shared = [blob for blob in first.outputs if blob and blob in second.inputs]
                return repr(shared[0]) if shared else "control"
        return ""

    def _op(self, node: str, host: str) -> Op | None:
        """The op of a host that a node stands for, if there is one."""
        at, name = self.of[node]
        if at == host:
            return self.parts[host].ops[name]
        calls = (op for op in self.parts[host].ops.values() if collective_of(op) is not None)
        return next((op for op in calls if _node(host, op) == node), None)


def waits_of(
    parts: Mapping[str, Graph], ends: Ends, *, credit: int = 1, slots: int | None = None
) -> Waits:
    """The waits between the parts of all hosts.

    `credit` is that of iterations, and `slots` the slots of a blob at its receiver, by default one
    more, as in a run.
    """
    slots = credit + 1 if slots is None else slots
    ops: dict[str, Op] = {}
    of: dict[str, tuple[str, str]] = {}
    edges: set[tuple[str, str]] = set()
    why: dict[tuple[str, str], str] = {}
    counts = dict.fromkeys(("data and control", "channels", "collectives", "credit", "slots"), 0)
    for host, part in parts.items():
        node = {name: _node(host, op) for name, op in part.ops.items()}
        for name, op in part.ops.items():
            ops[node[name]] = replace(op, name=node[name], inputs=(), outputs=())
            of.setdefault(node[name], (host, name))
            edges |= {(node[name], node[after]) for after in part.successors[name]}
            counts["data and control"] += len(part.successors[name])
            counts["collectives"] += collective_of(op) is not None
        roots, sinks = _ends_of(part)
        counts["credit"] += len(roots)
        if credit < 1:
            _behind(why, [node[name] for name in sinks], [node[name] for name in roots], "credit")
    for (source, target, number), (put, arrival) in ends.items():
        pair = f"{source}/{put.op}", f"{target}/{arrival.op}"
        why[pair] = f"channel {number}"
        counts["channels"] += 1
        counts["slots"] += 1
        if slots < 1:
            done = [_node(target, parts[target].ops[name]) for name in _ends_of(parts[target])[1]]
            _behind(why, done, [pair[0]], f"slot at {target}")
    return Waits(Graph(ops=ops, control=frozenset(edges | why.keys())), parts, why, of, counts)


def _ends_of(part: Graph) -> tuple[list[str], list[str]]:
    """The ops of a part that wait for no op of their iteration, and those that no op waits for."""
    later = set(chain.from_iterable(part.successors.values()))
    first = [name for name in part.ops if name not in later]
    return first, [name for name in part.ops if not part.successors[name]]


def _behind(why: dict[tuple[str, str], str], done: list[str], held: list[str], what: str) -> None:
    for before in done:
        why.update({(before, after): what for after in held})


def _node(host: str, op: Op) -> str:
    """The name of an op among those of all hosts."""
    one = collective_of(op)
    if one is None:
        return f"{host}/{op.name}"
    return f"{one.kind} {one.number} of {','.join((*one.hosts, *one.gpus))}"
