"""What holds between the parts of hosts, which the rules of one graph cannot see.

A channel has two ends: a `Put` in the part of one host and an `Arrival` in that of another. Their
blobs lie in memory alike. The hosts of a group make the same collectives in the same order. And no
op waits for itself through other hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from purine.errors import GraphError
from purine.graph import Graph, Op
from purine.graph.verify import no_cycle
from purine.lowering.hosts import Channel, channels_of, hosts_of, part_of
from purine.lowering.together import BROADCAST, Collective, Group, collective_of

__all__ = ["host_problems", "problems_of_parts"]

_Key = tuple[str, str, int]
"""The host that sends, the one that receives, and the number of the channel between them."""


def host_problems(step: Graph) -> list[GraphError]:
    """What is wrong between the parts of a step's hosts; nothing for a step on one.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=8)
    >>> host_problems(pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0"))
    []
    """
    hosts = hosts_of(step)
    if len(hosts) < 2:
        return []
    return list(problems_of_parts({host: part_of(step, host) for host in hosts}))


def problems_of_parts(parts: Mapping[str, Graph]) -> Iterator[GraphError]:
    """What is wrong between the parts of all hosts, at any level of lowering."""
    puts: dict[_Key, list[Channel]] = {}
    arrivals: dict[_Key, list[Channel]] = {}
    for host, part in parts.items():
        for ends, channels in zip((arrivals, puts), channels_of(part, host), strict=True):
            for channel in channels:
                key = channel.source, channel.target, channel.number
                ends.setdefault(key, []).append(channel)
    unmatched = False
    for key in sorted(puts.keys() | arrivals.keys()):
        for error in _channel_problems(key, puts.get(key, ()), arrivals.get(key, ())):
            unmatched = True
            yield error
    for error in _order_problems(parts):
        unmatched = True
        yield error
    if not unmatched:
        yield from _cycles(parts, {key: (puts[key][0], arrivals[key][0]) for key in puts})


def _channel_problems(
    key: _Key, puts: Sequence[Channel], arrivals: Sequence[Channel]
) -> Iterator[GraphError]:
    source, target, number = key
    what = f"channel {number} from host {source!r} to host {target!r}"
    if len(puts) != 1 or len(arrivals) != 1:
        at_source = ", ".join(f"put {put.op!r}" for put in puts) or "no put"
        at_target = ", ".join(f"arrival {arrival.op!r}" for arrival in arrivals) or "no arrival"
        yield GraphError(
            f"{what} has {len(puts)} puts and {len(arrivals)} arrivals",
            expected="one put and one arrival",
            found=f"{at_source} at {source!r}, {at_target} at {target!r}",
            remedy="lower the parts of all hosts from one step",
            op=(*puts, *arrivals)[0].op,
        )
        return
    (put,), (arrival,) = puts, arrivals
    sent, received = _form(put), _form(arrival)
    if sent != received:
        yield GraphError(
            f"{what} has ends of different forms",
            expected=f"{received}, as arrival {arrival.op!r} at {target!r} has",
            found=f"{sent}, as put {put.op!r} at {source!r} has",
            remedy="give the blobs on both sides of a copy one shape, dtype and layout",
            op=put.op,
            blob=None if put.blob is None else put.blob.name,
        )


def _form(channel: Channel) -> str:
    """How the value of a channel lies in memory."""
    blob = channel.blob
    if blob is None:
        return "no value"
    return " ".join([blob.dtype, str(list(blob.shape or ())), *([blob.layout] * bool(blob.layout))])


def _order_problems(parts: Mapping[str, Graph]) -> Iterator[GraphError]:
    """All hosts of a group make its collectives in one order, which control edges fix."""
    known: dict[Group, dict[str, list[str]]] = {}
    for host, part in parts.items():
        calls = [(one, op) for op in part.ops.values() if (one := collective_of(op)) is not None]
        last: dict[Group, str] = {}
        for one, op in sorted(calls, key=lambda call: call[0].number):
            known.setdefault(one.group, {}).setdefault(host, []).append(_call(part, one, op))
            before = last.get(one.order)
            if before is not None and op.name not in part.successors[before]:
                yield GraphError(
                    f"nothing orders collectives {before!r} and {op.name!r} of host {host!r}",
                    expected="a control edge between two that follow each other",
                    found="none",
                    remedy="lower the parts of all hosts from one step",
                    op=op,
                )
            last[one.order] = op.name
    for group, orders in known.items():
        first = orders.get(group.hosts[0], [])
        for host in group.hosts:
            own = orders.get(host, [])
            if own != first:
                places = range(max(len(own), len(first)))
                at = next(k for k in places if own[k : k + 1] != first[k : k + 1])
                theirs, its = ((*order[at : at + 1], "none")[0] for order in (first, own))
                yield GraphError(
                    f"hosts {group.hosts[0]!r} and {host!r} differ in collective {at} "
                    f"of {group.kind or 'GPUs'}",
                    expected=f"{theirs}, as {group.hosts[0]!r} has",
                    found=f"{its}, as {host!r} has",
                    remedy="lower the parts of all hosts from one step",
                )


def _call(part: Graph, one: Collective, op: Op) -> str:
    """What all hosts have alike of a collective."""
    blobs = op.inputs or op.outputs
    forms = " ".join(f"{part.blobs[b].dtype} {list(part.blobs[b].shape or ())}" for b in blobs)
    name = "" if one.kind == BROADCAST else f" {one.op}"
    return f"{one.kind} number {one.number} to or from {one.root}{name}: {forms}"


def _cycles(
    parts: Mapping[str, Graph], ends: Mapping[_Key, tuple[Channel, Channel]]
) -> Iterator[GraphError]:
    """Edges of all parts and those from puts to arrivals form no cycle.

    Slots and the credit cannot close one: a put also waits until the receiver has completed an
    earlier iteration, so these edges lead from an iteration to a later one (see `no_cycle`).
    A collective is one op of all its hosts.
    """
    ops: dict[str, Op] = {}
    edges: set[tuple[str, str]] = set()
    for host, part in parts.items():
        node = {name: _node(host, op) for name, op in part.ops.items()}
        for name, op in part.ops.items():
            ops[node[name]] = replace(op, name=node[name], inputs=(), outputs=())
            edges |= {(node[name], node[after]) for after in part.successors[name]}
    for (source, target, _), (put, arrival) in ends.items():
        edges.add((f"{source}/{put.op}", f"{target}/{arrival.op}"))
    for error in no_cycle(Graph(ops=ops, control=frozenset(edges)), None):
        cycle = error.found
        yield GraphError(
            f"hosts wait for each other in a cycle: {cycle}",
            expected="ops of all hosts that can run one after the other",
            found=cycle,
            remedy="remove one of these edges, or carry a value to the next iteration with a state",
            op=error.op,
        )


def _node(host: str, op: Op) -> str:
    """The name of an op among those of all hosts."""
    one = collective_of(op)
    if one is None:
        return f"{host}/{op.name}"
    return f"{one.kind} {one.number} of {','.join((*one.hosts, *one.gpus))}"
