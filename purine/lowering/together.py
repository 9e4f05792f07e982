"""What all hosts of a group do at once: collectives between hosts, in place of puts and arrivals.

A `Reduce` that reads blobs of several hosts is one collective of these hosts. In a step with such
an op, the copies of a state from its owner to all other hosts of the group are one as well: a
broadcast. Everything else that goes between hosts is put.

The hosts of a group make their collectives in one order. Reductions and broadcasts have an order
each, so a new parameter can go out while gradients come in. Both follow the depth of ops in the
step (see `in_depth`), so no host waits for itself: a collective stands behind all that any of its
hosts reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from purine.errors import GraphError
from purine.graph import Graph, Op
from purine.placement.devices import is_cpu
from purine.registry.facts import Facts, Role
from purine.registry.kind import Attr, Kind, register

__all__ = [
    "BROADCAST",
    "REDUCE",
    "Collective",
    "collective_of",
    "collectives_of",
    "groups_of",
    "in_depth",
]

REDUCE, BROADCAST = "HostReduce", "HostBroadcast"
_CALL = {"root": Attr(str), "hosts": Attr(tuple[str, ...]), "number": Attr(int)}

register(
    Kind(
        REDUCE,
        None,
        (),
        variadic=True,
        attributes={**_CALL, "weight": Attr(float)},
        facts=Facts(role=Role.COPY),
    )
)
"""The part of one host in a reduction: it adds `weight` times its inputs to the sums at `root`.

`hosts` are all that take part. `number` is the place of the collective among those of its kind and
hosts. Only the root has outputs.
"""

register(Kind(BROADCAST, None, (), variadic=True, attributes=_CALL, facts=Facts(role=Role.COPY)))
"""The part of one host in a broadcast: the root has an input, each other host an output."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a step. `op` is its `Reduce`, or the state that is sent.

    `copies` are the copies for which a broadcast stands.
    """

    kind: str
    op: str
    root: str
    hosts: tuple[str, ...]
    number: int
    copies: tuple[str, ...] = ()

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops of the step for which it stands."""
        return self.copies if self.kind == BROADCAST else (self.op,)

    @property
    def group(self) -> tuple[str, tuple[str, ...]]:
        """The collectives of one group have one order."""
        return self.kind, self.hosts


def collectives_of(step: Graph, clockwork: Collection[str] = ()) -> tuple[Collective, ...]:
    """The collectives between the hosts of a step, those of each group in their order.

    `clockwork` are the blobs that hosts do not send, since each computes them.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8, hidden=(4,))), lr=0.1)
    >>> step = pu.parallel.replicate(step, "host0-1:cpu:0", topology="native", bucket=0)
    >>> [(one.kind, one.root, one.number) for one in collectives_of(step)][:2]
    [('HostReduce', 'host1', 0), ('HostReduce', 'host0', 1)]
    """
    together = (op for op in step.ops.values() if op.kind == "Reduce")
    reduces = {op.name: op for op in together if len(_hosts(step, op)) > 1}
    if not reduces:
        return ()
    place = {name: index for index, name in enumerate(in_depth(step))}
    found = []
    for op in sorted(reduces.values(), key=lambda op: place[op.name]):
        _refuse(step, op)
        found.append(Collective(REDUCE, op.name, op.location.host, _hosts(step, op), 0))
    groups = {one.hosts for one in found}
    bound = {name for edge in step.control for name in edge}

    def updated(state: str) -> tuple[int, str]:
        maker = step.producers.get(step.states[state].next)
        return (-1 if maker is None else place[maker.name]), state

    for name in sorted(step.states, key=updated):
        root = step.blobs[name].location.host
        copies = [op for op in step.consumers[name] if op.kind == "Copy"]
        copies = sorted((op for op in copies if op.location.host != root), key=lambda op: op.name)
        hosts = tuple(sorted((root, *(op.location.host for op in copies))))
        free = all(is_cpu(op.location) and op.name not in bound for op in copies)
        if hosts in groups and free and name not in clockwork:
            names = tuple(op.name for op in copies)
            found.append(Collective(BROADCAST, name, root, hosts, 0, names))
    return tuple(_numbered(found))


def in_depth(step: Graph) -> list[str]:
    """The ops of a step by the length of the longest path to them, and then by name.

    Each comes after those that it waits for. The order does not depend on how the step was built.
    """
    depth: dict[str, int] = {}
    for name in step.order:
        own = depth.setdefault(name, 0)
        for following in step.successors[name]:
            depth[following] = max(depth.get(following, 0), own + 1)
    return sorted(depth, key=lambda name: (depth[name], name))


def _hosts(step: Graph, op: Op) -> tuple[str, ...]:
    return tuple(sorted({step.blobs[name].location.host for name in op.inputs}))


def _numbered(collectives: list[Collective]) -> Iterator[Collective]:
    count: dict[tuple[str, tuple[str, ...]], int] = {}
    for one in collectives:
        number = count[one.group] = count.get(one.group, -1) + 1
        yield replace(one, number=number)


def _refuse(step: Graph, op: Op) -> None:
    """A host has one part of a reduction between hosts, in its memory."""
    hosts = _hosts(step, op)
    places = [step.blobs[name].location for name in op.inputs]
    one_each = len(set(places)) == len(hosts) and len(places) == len(hosts) * op.whole("groups", 1)
    if one_each and all(map(is_cpu, places)) and op.location in places:
        return
    found = ", ".join(map(str, dict.fromkeys(places)))
    raise GraphError(
        f"op {op.name!r} at {op.location} is no reduction between hosts",
        expected="one part from a CPU device of each host, one of them the device of the op",
        found=f"parts from {found}",
        remedy="use topology 'sharded'",
        op=op,
    )


def groups_of(step: Graph) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The groups of hosts with collectives, in one order for all hosts."""
    return tuple(sorted({one.group for one in collectives_of(step)}))


def collective_of(op: Op) -> Collective | None:
    """What an op of a lowered part has a part in; None for other ops."""
    if op.kind not in (REDUCE, BROADCAST):
        return None
    root, hosts = op.attributes["root"], op.attributes["hosts"]
    assert isinstance(root, str)
    assert isinstance(hosts, tuple)
    names = tuple(name for name in hosts if isinstance(name, str))
    return Collective(op.kind, op.name, root, names, op.whole("number"))
