"""The connections of a host's plan with other hosts: its puts, arrivals and collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine.core import Plan
from purine.dispatch.host_core import HostCore
from purine.graph import Graph
from purine.lowering.hosts import Channel, channels_of
from purine.lowering.together import Collective, Group, collective_of

__all__ = ["Ends", "ends_of"]


@dataclass(frozen=True)
class Ends:
    """The ops of a plan that wait for other hosts, by number.

    `puts` are the peers of each put, `arrivals` the ops by (sending host, channel). `turns` are the
    collectives of each order, one after the other, `on_gpus` those that run on a GPU. `incoming`
    and `outgoing` are the channels, `collectives` the collectives by number of op.
    """

    puts: Mapping[int, tuple[str, ...]]
    arrivals: Mapping[tuple[str, int], int]
    deadlines: Mapping[int, int]
    turns: Sequence[Sequence[int]]
    on_gpus: frozenset[int]
    incoming: tuple[Channel, ...]
    outgoing: tuple[Channel, ...]
    collectives: Mapping[int, Collective]

    def core(self, plan: Plan, *, start: int = 0, credit: int = 2) -> HostCore:
        """The core of this host, which also waits for the other hosts."""
        return HostCore(
            plan,
            arrivals=self.arrivals.values(),
            puts=self.puts,
            start=start,
            credit=credit,
            deadlines=self.deadlines,
            turns=self.turns,
            on_gpus=self.on_gpus,
        )


def ends_of(graph: Graph, host: str, plan: Plan) -> Ends:
    """The ends of a host's part; `plan` may be that of the part with segments."""
    number = {name: index for index, name in enumerate(plan.ops)}
    incoming, outgoing = channels_of(graph, host)
    puts: dict[int, tuple[str, ...]] = {}
    for channel in outgoing:
        op = number[channel.op]
        puts[op] = (*puts.get(op, ()), channel.target)
    collectives = {
        number[op.name]: one for op in graph.ops.values() if (one := collective_of(op)) is not None
    }
    groups: dict[Group, list[tuple[int, int]]] = {}
    for op, one in collectives.items():
        groups.setdefault(one.order, []).append((one.number, op))
    return Ends(
        puts,
        {(channel.source, channel.number): number[channel.op] for channel in incoming},
        {number[channel.op]: channel.deadline for channel in outgoing},
        [[op for _, op in sorted(calls)] for calls in groups.values()],
        frozenset(op for op, one in collectives.items() if one.gpus),
        incoming,
        outgoing,
        collectives,
    )
