"""Links between hosts, and the flows that share them.

A link carries bytes in one direction. Flows share a link fairly (max-min): the rates of all flows
grow together until a link is full; flows over it keep their rate, and the others continue to grow.
A route is the links of a flow from one host to another; its latency is added once.

When flows begin or end, only the rates of flows that are connected with them through shared links
are recomputed, once for all changes at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace

__all__ = ["Flows", "Link", "Network", "max_min"]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable: its name, bytes per second, and seconds to the other end."""

    name: str
    rate: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.latency >= 0):
            raise ValueError(f"a link has a rate above zero and a latency of zero or more: {self}")


@dataclass(frozen=True)
class Network:
    """The links between hosts: for each pair the links from the first to the second.

    A pair without a route of its own uses the `up` link of its source and the `down` link of its
    target, which it shares with all others. Hosts of one machine need no link: their route is their
    `memory`.

    >>> net = Network.switched(["a", "b"], Link("1gbit", 125e6, 50e-6))
    >>> [link.name for link in net.route("a", "b")]
    ['a up', 'b down']
    """

    up: Mapping[str, Link] = field(default_factory=dict)
    down: Mapping[str, Link] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], tuple[Link, ...]] = field(default_factory=dict)

    @classmethod
    def switched(cls, hosts: Iterable[str], link: Link) -> Network:
        """A network in which each host has a link of this rate to a switch, in each direction.

        The latency of `link` is that from host to host.
        """
        half, names = link.latency / 2, list(hosts)
        up = {name: Link(f"{name} up", link.rate, half) for name in names}
        down = {name: Link(f"{name} down", link.rate, half) for name in names}
        return cls(up, down)

    def with_route(self, source: str, target: str, links: Sequence[Link]) -> Network:
        """The network with other links from a host to another."""
        return replace(self, routes={**self.routes, (source, target): tuple(links)})

    def route(self, source: str, target: str) -> tuple[Link, ...]:
        """The links from one host to another."""
        own = self.routes.get((source, target))
        return (self.up[source], self.down[target]) if own is None else own

    def latency(self, source: str, target: str) -> float:
        """Seconds from one host to another without load."""
        return sum(link.latency for link in self.route(source, target))


def max_min(routes: Mapping[int, Sequence[str]], rates: Mapping[str, float]) -> dict[int, float]:
    """The fair rates of flows, by their number, over links with these rates.

    >>> max_min({0: ["a"], 1: ["a", "b"], 2: ["b"]}, {"a": 10.0, "b": 4.0})
    {1: 2.0, 2: 2.0, 0: 8.0}

    Shares of links only grow while flows are settled. So a link whose share has grown since it was
    queued is queued again when its turn comes.
    """
    once = {flow: dict.fromkeys(links) for flow, links in routes.items()}
    over: dict[str, list[int]] = {}
    for flow, links in once.items():
        for name in links:
            over.setdefault(name, []).append(flow)
    left = {name: rates[name] for name in over}
    count = {name: len(flows) for name, flows in over.items()}
    noted = [(left[name] / count[name], name) for name in over]
    heapify(noted)
    fair: dict[int, float] = {}
    while noted:
        share, tightest = noted[0]
        if not count[tightest]:
            heappop(noted)
            continue
        now = left[tightest] / count[tightest]
        if now > share:
            heapreplace(noted, (now, tightest))
            continue
        heappop(noted)
        for flow in over[tightest]:
            if flow not in fair:
                fair[flow] = now
                for name in once[flow]:
                    count[name] -= 1
                    rest = left[name] - now
                    left[name] = rest if rest > 0.0 else 0.0
    for flow in routes:  # flows without links are as fast as one likes
        fair.setdefault(flow, float("inf"))
    return fair


_NO_LINK = Link("", float("inf"))
"""What a flow goes over that takes no link."""
_KEPT = 20_000
"""Sets of routes whose rates are remembered: a step has the same ones in each iteration."""


class Flows:
    """The flows in progress. Times are in nanoseconds, sizes in bytes.

    The caller must call `end` at the end of a flow, and `settle` before time advances after flows
    began or ended.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        """Bytes per nanosecond of each link."""
        self._over: dict[str, dict[int, None]] = {}
        """By link its flows."""
        self._routes: dict[int, tuple[str, ...]] = {}
        self._left: dict[int, float] = {}
        self._rate: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self.carried: dict[str, float] = {}
        """Bytes that each link has carried or will have when its flows end."""
        self.unsettled: dict[str, None] = {}
        """Links whose flows began or ended at this time."""
        self._next = 0
        self._known: dict[tuple[tuple[str, ...], ...], tuple[float, ...]] = {}
        """The rates of flows with these routes."""

    def begin(self, now: float, links: Sequence[Link], size: float) -> int:
        """Start a flow; returns its number."""
        number = self._next
        self._next += 1
        links = links or (_NO_LINK,)
        names = tuple(dict.fromkeys(link.name for link in links))
        for link in links:
            self._rates.setdefault(link.name, link.rate / 1e9)
            self._over.setdefault(link.name, {})[number] = None
            self.carried[link.name] = self.carried.get(link.name, 0.0) + size
            self.unsettled[link.name] = None
        self._routes[number], self._left[number] = names, float(size)
        self._rate[number], self._since[number] = 0.0, now
        return number

    def end(self, number: int) -> None:
        """Remove a flow that has ended."""
        for name in self._routes.pop(number):
            del self._over[name][number]
            self.unsettled[name] = None
        del self._left[number], self._rate[number], self._since[number]

    def settle(self, now: float) -> dict[int, float]:
        """Share the links among the present flows; returns the ends that changed."""
        flows = self._connected(self.unsettled)
        self.unsettled = {}
        if len(flows) == 1:
            (only,) = flows
            rates = {only: min(self._rates[name] for name in self._routes[only])}
        else:
            rates = dict(zip(flows, self._shares(flows), strict=True))
        ends: dict[int, float] = {}
        for flow, rate in rates.items():
            before = self._rate[flow]
            if before == rate:
                continue
            self._left[flow] = max(0.0, self._left[flow] - before * (now - self._since[flow]))
            self._rate[flow], self._since[flow] = rate, now
            ends[flow] = now + self._left[flow] / rate
        return ends

    def _shares(self, flows: Iterable[int]) -> tuple[float, ...]:
        """The fair rates of flows that share links with no others."""
        routes = tuple([self._routes[flow] for flow in flows])
        shares = self._known.get(routes)
        if shares is None:
            fair = max_min(dict(enumerate(routes)), self._rates)
            shares = tuple(fair[number] for number in range(len(routes)))
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[routes] = shares
        return shares

    def _connected(self, names: Iterable[str]) -> dict[int, None]:
        """The flows that share links with each other, directly or through others, from these links
        on."""
        flows: dict[int, None] = {}
        seen, todo = set(names), list(dict.fromkeys(names))
        while todo:
            for flow in self._over.get(todo.pop(), ()):
                if flow not in flows:
                    flows[flow] = None
                    for name in self._routes[flow]:
                        if name not in seen:
                            seen.add(name)
                            todo.append(name)
        return flows

    def __iter__(self) -> Iterator[int]:
        return iter(self._routes)
