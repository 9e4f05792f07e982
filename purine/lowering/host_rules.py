"""Rules between the parts of hosts, which the rules of one graph cannot check.

A channel has two ends: a `Put` in the part of one host and an `Arrival` in that of another, whose
blobs have the same form in memory. The hosts of a group make the same collectives in the same
order. And no op waits for itself through other hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from purine.errors import GraphError
from purine.graph import Graph, Op
from purine.lowering.hosts import Channel, channels_of, hosts_of, part_of
from purine.lowering.together import BROADCAST, Collective, Group, collective_of
from purine.lowering.waits import Ends, waits_of

__all__ = ["ends_of_channels", "host_problems", "problems_of_parts"]

_Key = tuple[str, str, int]
"""The host that sends, the one that receives, and the number of the channel between them."""
_ONE_STEP = "lower the parts of all hosts from one step"


def host_problems(step: Graph) -> list[GraphError]:
    """What is wrong between the parts of a step's hosts; empty for a step on one host.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=8)
    >>> host_problems(pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0"))
    []
    """
    hosts = hosts_of(step)
    if len(hosts) < 2:
        return []
    return list(problems_of_parts({host: part_of(step, host) for host in hosts}))


def problems_of_parts(
    parts: Mapping[str, Graph], *, credit: int = 1, slots: int | None = None
) -> Iterator[GraphError]:
    """What is wrong between the parts of all hosts, at any level of lowering.

    `credit` and `slots` are those of the run (see `waits_of`).
    """
    puts, arrivals = _channels(parts)
    unmatched = False
    for key in sorted(puts.keys() | arrivals.keys()):
        for error in _channel_problems(key, puts.get(key, ()), arrivals.get(key, ())):
            unmatched = True
            yield error
    for error in _order_problems(parts):
        unmatched = True
        yield error
    if not unmatched:
        ends = {key: (puts[key][0], arrivals[key][0]) for key in puts}
        yield from _cycles(parts, ends, credit, slots)


def ends_of_channels(parts: Mapping[str, Graph]) -> Ends:
    """The put and the arrival of each channel of parts that fit each other."""
    puts, arrivals = _channels(parts)
    return {key: (puts[key][0], arrivals[key][0]) for key in puts}


def _channels(
    parts: Mapping[str, Graph],
) -> tuple[dict[_Key, list[Channel]], dict[_Key, list[Channel]]]:
    """The puts and the arrivals of all hosts, by channel."""
    puts: dict[_Key, list[Channel]] = {}
    arrivals: dict[_Key, list[Channel]] = {}
    for host, part in parts.items():
        for ends, channels in zip((arrivals, puts), channels_of(part, host), strict=True):
            for channel in channels:
                key = channel.source, channel.target, channel.number
                ends.setdefault(key, []).append(channel)
    return puts, arrivals


def _channel_problems(
    key: _Key, puts: Sequence[Channel], arrivals: Sequence[Channel]
) -> Iterator[GraphError]:
    source, target, number = key
    what = f"channel {number} from host {source!r} to host {target!r}"
    if len(puts) != 1 or len(arrivals) != 1:
        what += f" has {len(puts)} puts and {len(arrivals)} arrivals"
        at_source = ", ".join(f"put {put.op!r}" for put in puts) or "no put"
        at_target = ", ".join(f"arrival {arrival.op!r}" for arrival in arrivals) or "no arrival"
        found = f"{at_source} at {source!r}, {at_target} at {target!r}"
        op = (*puts, *arrivals)[0].op
        yield GraphError(what, "one put and one arrival", found, _ONE_STEP, op=op)
        return
    (put,), (arrival,) = puts, arrivals
    sent, received = _form(put), _form(arrival)
    if sent != received:
        what += " has ends of different forms"
        expected = f"{received}, as arrival {arrival.op!r} at {target!r} has"
        found = f"{sent}, as put {put.op!r} at {source!r} has"
        remedy = "give the blobs on both sides of a copy one shape, dtype and layout"
        yield GraphError(what, expected, found, remedy, op=put.op, blob=put.blob and put.blob.name)


def _form(channel: Channel) -> str:
    """The form of the value of a channel in memory."""
    blob = channel.blob
    if blob is None:
        return "no value"
    return " ".join(filter(None, (blob.dtype, str(list(blob.shape or ())), blob.layout)))


def _order_problems(parts: Mapping[str, Graph]) -> Iterator[GraphError]:
    """All hosts of a group make its collectives in one order, which control edges fix."""
    known: dict[Group, dict[str, list[tuple[str, str]]]] = {}
    """By group and host its collectives in their order, each with its op."""
    for host, part in parts.items():
        calls = [(one, op) for op in part.ops.values() if (one := collective_of(op)) is not None]
        last: dict[Group, str] = {}
        for one, op in sorted(calls, key=lambda call: call[0].number):
            call = _call(part, one, op), op.name
            known.setdefault(one.group, {}).setdefault(host, []).append(call)
            before = last.get(one.order)
            if before is not None and op.name not in part.successors[before]:
                what = f"nothing orders collectives {before!r} and {op.name!r} of host {host!r}"
                expected = "a control edge between two that follow each other"
                yield GraphError(what, expected, "none", _ONE_STEP, op=op)
            last[one.order] = op.name
    for group, orders in known.items():
        first = orders.get(group.hosts[0], [])
        for host in group.hosts:
            own = orders.get(host, [])
            for at, (theirs, its) in enumerate(zip_longest(first, own, fillvalue=("none", ""))):
                if theirs[0] == its[0]:
                    continue
                ends = (group.hosts[0], theirs[1]), (host, its[1])
                waits = [f"{name}/{op}" for name, op in ends if op]
                what = f"hosts {group.hosts[0]!r} and {host!r} differ in collective {at} of "
                what += f"{group.kind or 'GPUs'}: they wait for each other in "
                what += " -> ".join([*waits, waits[0]])
                expected = f"{theirs[0]}, as {group.hosts[0]!r} has"
                yield GraphError(what, expected, f"{its[0]}, as {host!r} has", _ONE_STEP)
                break


def _call(part: Graph, one: Collective, op: Op) -> str:
    """The properties of a collective that all hosts must share."""
    blobs = op.inputs or op.outputs
    forms = " ".join(f"{part.blobs[b].dtype} {list(part.blobs[b].shape or ())}" for b in blobs)
    name = "" if one.kind == BROADCAST else f" {one.op}"
    return f"{one.kind} number {one.number} to or from {one.root}{name}: {forms}"


def _cycles(
    parts: Mapping[str, Graph], ends: Ends, credit: int, slots: int | None
) -> Iterator[GraphError]:
    """No ops of all hosts wait for each other in a cycle (see `waits`)."""
    waits = waits_of(parts, ends, credit=credit, slots=slots)
    members = waits.cycle()
    if members:
        cycle = waits.text(members)
        host, op = waits.of[members[0]]
        expected = "ops of all hosts that can run one after the other"
        remedy = "remove one of these edges, or carry a value to the next iteration with a state"
        what = f"hosts wait for each other in a cycle: {cycle}"
        yield GraphError(what, expected, cycle, remedy, op=parts[host].ops[op])
