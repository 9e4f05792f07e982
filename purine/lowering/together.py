"""Collectives between hosts, which all hosts of a group run together, instead of puts and arrivals.

A `Reduce` that reads blobs of several hosts is one collective of these hosts. In a step with such
an op, the copies of a state from its owner to all other hosts of the group are one as well: a
broadcast. All other values between hosts are put.

The hosts of a group make their collectives in one order. Reductions and broadcasts have an order
each, so a new parameter can be sent while gradients are received. Both follow the depth of ops in
the step (see `in_depth`), so no host waits for itself: a collective comes after everything that any
of its hosts reads.

All collectives of GPUs have one order, whatever their kind and hosts. An NCCL kernel occupies a
part of the GPU while it waits for its peers. Two of them that GPUs begin in different orders can
deadlock, even if they belong to different communicators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from purine.errors import GraphError
from purine.graph import Graph, Location, Op
from purine.placement.devices import is_cpu
from purine.registry.facts import Facts, Role
from purine.registry.kind import Attr, Kind, register

__all__ = [
    "BROADCAST",
    "REDUCE",
    "Collective",
    "Group",
    "collective_of",
    "collectives_of",
    "groups_of",
    "in_depth",
]

REDUCE, BROADCAST = "HostReduce", "HostBroadcast"
_CALL = {
    "root": Attr(str),
    "hosts": Attr(tuple[str, ...]),
    "number": Attr(int),
    "gpus": Attr(tuple[str, ...], ()),
}

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

`hosts` are all that take part, and `gpus` the GPU of each, if they meet on GPUs. `number` is the
place of the collective in its order (see `Collective.order`). Only the root has outputs.
"""

register(Kind(BROADCAST, None, (), variadic=True, attributes=_CALL, facts=Facts(role=Role.COPY)))
"""The part of one host in a broadcast: the root has an input, each other host an output."""


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """The members of one communicator.

    In host memory each `kind` has a communicator. Between GPUs both kinds share one, because a
    communicator of NCCL takes some hundred megabytes of the GPU. `gpus` are the GPU of each host.
    """

    kind: str
    hosts: tuple[str, ...]
    gpus: tuple[str, ...] = ()

    def gpu_of(self, host: str) -> Location:
        """The GPU with which a host takes part in a group of GPUs."""
        return Location(host, self.gpus[self.hosts.index(host)])


_ALL_GPUS = Group("", ())
"""What stands for the one order of all collectives between GPUs."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a step. `op` is its `Reduce`, or the state that is sent.

    `copies` are the copies that a broadcast replaces. `gpus` are those of its hosts, if it is
    between GPUs.
    """

    kind: str
    op: str
    root: str
    hosts: tuple[str, ...]
    number: int
    copies: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops of the step for which it stands."""
        return self.copies if self.kind == BROADCAST else (self.op,)

    @property
    def group(self) -> Group:
        """The collectives of one group go through one communicator."""
        return Group("" if self.gpus else self.kind, self.hosts, self.gpus)

    @property
    def order(self) -> Group:
        """The key that all collectives of one order share: the group, or that they are of GPUs."""
        return _ALL_GPUS if self.gpus else self.group


def collectives_of(step: Graph, clockwork: Collection[str] = ()) -> tuple[Collective, ...]:
    """The collectives between the hosts of a step, those of each order one after the other.

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
    turn = {name: index for index, name in enumerate(in_depth(step))}
    reductions = []
    for op in sorted(reduces.values(), key=lambda op: turn[op.name]):
        _refuse(step, op)
        hosts, gpus = _members(step.blobs[name].location for name in op.inputs)
        reductions.append(Collective(REDUCE, op.name, op.location.host, hosts, 0, gpus=gpus))
    every = [*_broadcasts(step, reductions, turn, clockwork), *reductions]
    # Between GPUs a broadcast has its turn before the reductions of its iteration. Elsewhere kinds
    # have an order each.
    return tuple(_numbered(sorted(every, key=lambda one: not one.gpus and one.kind == BROADCAST)))


def _broadcasts(
    step: Graph, reduces: Collection[Collective], turn: dict[str, int], clockwork: Collection[str]
) -> Iterator[Collective]:
    """The broadcasts of states between the members of reductions, those updated early first.

    They read only states, so no reduction of their iteration precedes one.
    """
    groups = {(one.hosts, one.gpus) for one in reduces}
    bound = {name for edge in step.control for name in edge}

    def updated(state: str) -> tuple[int, str]:
        maker = step.producers.get(step.states[state].next)
        return (-1 if maker is None else turn[maker.name]), state

    for name in sorted(step.states, key=updated):
        root = step.blobs[name].location
        copied = (op for op in step.consumers[name] if op.kind == "Copy")
        far = {op.name: op.location for op in copied if op.location.host != root.host}
        names, places = tuple(sorted(far)), [root, *far.values()]
        hosts, gpus = _members(places)
        alike = len(hosts) == len(places) and len(set(map(is_cpu, places))) == 1
        free = bound.isdisjoint(names) and name not in clockwork
        if (hosts, gpus) in groups and alike and free:
            yield Collective(BROADCAST, name, root.host, hosts, 0, names, gpus)


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


def _members(places: Iterable[Location]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hosts of some places, and the GPU of each if all of them are GPUs."""
    devices = {at.host: at for at in places}
    hosts = tuple(sorted(devices))
    if any(is_cpu(at) for at in devices.values()):
        return hosts, ()
    return hosts, tuple(devices[host].device for host in hosts)


def _numbered(collectives: Iterable[Collective]) -> Iterator[Collective]:
    count: dict[Group, int] = {}
    for one in collectives:
        number = count[one.order] = count.get(one.order, -1) + 1
        yield replace(one, number=number)


def _refuse(step: Graph, op: Op) -> None:
    """Raise if a host has not one part of a reduction between hosts, on its GPU or in its
    memory."""
    hosts = _hosts(step, op)
    places = [step.blobs[name].location for name in op.inputs]
    one_each = len(set(places)) == len(hosts) and len(places) == len(hosts) * op.whole("groups", 1)
    if one_each and len(set(map(is_cpu, places))) == 1 and op.location in places:
        return
    what = f"op {op.name!r} at {op.location} is no reduction between hosts"
    expected = "one part from each host, all from GPUs or all from CPU devices, one of them the "
    expected += "device of the op"
    found = f"parts from {', '.join(map(str, dict.fromkeys(places)))}"
    raise GraphError(what, expected, found, "use topology 'sharded'", op=op)


def groups_of(step: Graph) -> tuple[Group, ...]:
    """The groups of hosts with collectives, in one order for all hosts."""
    return tuple(sorted({one.group for one in collectives_of(step)}))


def collective_of(op: Op) -> Collective | None:
    """The collective of an op of a lowered part; None for other ops."""
    if op.kind not in (REDUCE, BROADCAST):
        return None
    root = op.attributes["root"]
    assert isinstance(root, str)
    hosts, gpus = op.items("hosts"), op.items("gpus")
    return Collective(op.kind, op.name, root, hosts, op.whole("number"), gpus=gpus)
