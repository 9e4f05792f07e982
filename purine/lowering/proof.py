"""Properties of a step over several hosts that are proved without running it.

Its hosts cannot deadlock: data, control edges, channels, collectives, credit and slots form no
cycle, neither in the step nor in its lowered parts. All hosts of a group have their collectives in
one order. And no device needs more memory than it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purine.errors import ConfigError
from purine.graph import Graph, Location
from purine.lowering import lower, options_for
from purine.lowering.host_rules import ends_of_channels, problems_of_parts
from purine.lowering.hosts import hosts_of
from purine.lowering.together import collective_of
from purine.lowering.waits import waits_of

__all__ = ["Proof", "prove"]


@dataclass(frozen=True)
class Proof:
    """What was checked: waits by kind, orders of collectives, and the peak of each device."""

    hosts: int
    waits: Mapping[str, int]
    orders: int
    peaks: Mapping[Location, int]

    def __str__(self) -> str:
        waits = ", ".join(f"{count} {sort}" for sort, count in self.waits.items() if count)
        order = f"; {self.orders} orders of collectives, the same on all" if self.orders else ""
        worst = max(self.peaks.values(), default=0)
        memory = f"at most {worst / 1e6:,.1f} MB on a device"
        return f"{self.hosts} hosts cannot deadlock (waits: {waits}){order}; {memory}"


def prove(step: Graph, *, memory: int | None = None, credit: int = 3) -> Proof:
    """Prove that the hosts of a verified step cannot deadlock, or raise what is wrong.

    `memory` are the bytes of each device, to be compared with its peak.

    >>> import purine as pu
    >>> step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="host0-1:cpu:0")
    >>> prove(step).hosts
    2
    """
    parts: dict[str, Graph] = {}
    peaks: dict[Location, int] = {}
    for host in hosts_of(step):
        lowered = lower(step, options_for(step, host))
        parts[host] = lowered.graph
        peaks |= {at: size for at, size in lowered.peak_memory().items() if at.host == host}
    for error in problems_of_parts(parts, credit=credit):
        raise error
    for location, size in peaks.items():
        if memory is not None and size > memory:
            what = f"the step does not fit into the memory of {location}"
            expected = f"at most {memory / 1e6:,.1f} MB"
            found = f"{size / 1e6:,.1f} MB at the peak of an iteration"
            remedy = "use more devices or micro-batches, or recompute blocks of the net"
            raise ConfigError(what, expected, found, remedy, location=str(location))
    calls = (collective_of(op) for part in parts.values() for op in part.ops.values())
    orders = {one.order for one in calls if one is not None}
    waits = waits_of(parts, ends_of_channels(parts), credit=credit)
    return Proof(len(parts), waits.counts, len(orders), peaks)
