"""The couriers of a host: the program and the transport of each.

A courier has a graph on two hosts, and a transport of its own between them, which lives as long as
its worker. At the server it starts anew with each worker that joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from purine.analysis.aliasing import Aliasing
from purine.core import compile_plan
from purine.graph import ROUND, Graph
from purine.lowering import Options, lower
from purine.lowering.hosts import hosts_of, part_of
from purine.lowering.lowered import Lowered
from purine.lowering.workers import alone, has_workers, here, worker_parts
from purine.registry.kind import Kernel
from purine.runtime.exchange import Exchange
from purine.runtime.members import Carrier, Member, member_of
from purine.runtime.program import Program, compile_program
from purine.transports.base import Transport

__all__ = ["Post", "couriers_of", "is_courier", "part_on", "parts_on", "posts_of"]


def part_on(graph: Graph, host: str | None) -> Graph:
    """The part of a graph that runs on a host, without the ends of couriers; None is the only
    host."""
    if host is None:
        return graph
    return here(graph, host) if has_workers(graph) else part_of(graph, host)


def parts_on(graph: Graph, host: str | None) -> dict[int, Graph]:
    """The graphs of the workers and couriers that have a part on a host, by number; none without
    workers."""
    parts = worker_parts(graph) if has_workers(graph) else {}
    if host is None:
        return dict(parts)
    return {
        number: alone(part) if len(hosts_of(part)) > 1 else part
        for number, part in parts.items()
        if host in hosts_of(part)
    }


def couriers_of(graph: Graph) -> int:
    """The number of couriers of a graph, which is that of the workers over hosts."""
    return sum(op.kind == ROUND for op in graph.ops.values())


def is_courier(part: Graph) -> bool:
    """Whether this is the graph of a courier."""
    return couriers_of(part) > 0


@dataclass(frozen=True)
class Post:
    """A host's end of a courier. `peer` is the host at the other end, if that is another host."""

    lowered: Lowered
    host: str
    peer: str | None
    carrier: Carrier
    """When it goes, as it is at the start."""

    @property
    def plain(self) -> Graph:
        """The ops that run on this host."""
        return self.lowered.graph

    @property
    def member(self) -> Member:
        """The accesses of the courier to shared states."""
        plain = self.plain
        return member_of(plain, compile_plan(plain), Aliasing(plain).family)

    def connected(self, transport: Transport | None) -> tuple[Program, Exchange | None]:
        """The program for the life of one worker, and its exchange with the other end, not yet
        open."""
        sources: dict[str, Kernel] = {
            op.name: lambda: () for op in self.plain.ops.values() if op.kind == ROUND
        }
        exchange = None
        if transport is not None:
            assert self.peer is not None
            exchange = Exchange(self.plain, self.host, (self.peer,), transport)
            sources |= exchange.kernels
        return compile_program(self.lowered, sources), exchange

    def states(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the courier's own states."""
        own = (name for name, state in self.plain.states.items() if not state.shared)
        return {name: values[name].clone() for name in own}


def posts_of(parts: Mapping[int, Graph], host: str) -> dict[int, Post]:
    """The posts of a host, by their index among all `parts` that run there."""
    posts, numbers = {}, list(parts)
    for courier, part in enumerate(parts.values()):
        called = next((op for op in part.ops.values() if op.kind == ROUND), None)
        if called is None:
            continue
        carrier = Carrier(None, called.whole("pace"))
        if called.location.host == host:
            bound = called.attributes["bound"]
            assert bound is None or isinstance(bound, int)
            carrier = Carrier(numbers.index(called.whole("of")), carrier.pace, bound)
        peer = next((other for other in hosts_of(part) if other != host), None)
        lowered = lower(part, Options(host=None if peer is None else host))
        posts[courier] = Post(lowered, host, peer, carrier)
    return posts
