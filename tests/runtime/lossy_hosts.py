"""Hosts without threads, kernels and real time, over a network that delays, reorders and loses.

Each host has the exchange that it has in a run. Time stands still while something can happen at
once, and then leaps to whatever is next: a message that is due, or a sign of life.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from torch import Tensor

from purine.core import compile_plan
from purine.dispatch.host_core import TOKEN
from purine.errors import RunError
from purine.graph import Graph
from purine.lowering.hosts import Channel
from purine.runtime.exchange import Exchange
from purine.transports.base import Arrived, Event, Granted, Lost, Transport

__all__ = ["Outcome", "simulate"]

_BEAT = 1.0
_LONGEST = 300.0
"""Seconds of virtual time after which hosts hang. A run takes one, a loss is told after 20."""


@dataclass
class Outcome:
    """The errors with which hosts ended, and which values were lost."""

    errors: dict[str, RunError] = field(default_factory=dict)
    lost: list[Arrived] = field(default_factory=list)
    seconds: float = 0.0
    hangs: bool = False


_plan = cache(compile_plan)


class _Network:
    """Messages on their way, and the time."""

    def __init__(self, chance: random.Random, *, delay: float, loss: float) -> None:
        self.chance, self.delay, self.loss = chance, delay, loss
        self.now = 0.0
        self.messages: dict[str, list[tuple[float, int, Event]]] = {}
        self.lost: list[Arrived] = []
        self._count = 0

    def send(self, target: str, event: Event) -> None:
        if not isinstance(event, Lost) and self.chance.random() < self.loss:
            self.lost += [event] if isinstance(event, Arrived) else []
            return
        self._count += 1
        due = self.now + self.chance.uniform(0.0, self.delay)
        heapq.heappush(self.messages[target], (due, self._count, event))

    def next(self, host: str) -> float:
        """When the next message to a host is due."""
        return self.messages[host][0][0] if self.messages[host] else math.inf

    def due(self, host: str) -> bool:
        return self.next(host) <= self.now


class _End(Transport):
    """The end of one host. Nothing waits, and values are not copied."""

    def __init__(self, network: _Network, host: str) -> None:
        self._network, self._host = network, host
        network.messages[host] = []

    def open(
        self,
        peers: Sequence[str],
        incoming: Sequence[Channel],
        outgoing: Sequence[Channel],
        slots: int,
    ) -> None:
        self.peers = peers

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return None

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        self._network.send(peer, Arrived(self._host, channel, version))

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._network.send(peer, Granted(self._host, completed, sent))

    def wait(self, timeout: float) -> list[Event]:
        events: list[Event] = []
        while self._network.due(self._host):
            events.append(heapq.heappop(self._network.messages[self._host])[2])
        return events

    def wake(self) -> None:
        pass

    def close(self, lost: Collection[str] = ()) -> None:
        for peer in self.peers:
            self._network.send(peer, Lost(self._host, "it closed its end"))


class _Host:
    """A host whose ready ops run when they are told to."""

    def __init__(
        self, host: str, part: Graph, network: _Network, peers: Sequence[str], credit: int
    ) -> None:
        self.end = _End(network, host)
        self.exchange = Exchange(part, host, peers, self.end, clock=lambda: network.now)
        plan = _plan(part)
        self.core = self.exchange.open(plan, start=0, credit=credit)
        kernels = {plan.ops.index(name): call for name, call in self.exchange.kernels.items()}

        def call(token: int) -> None:
            if token % self.core.size in self.exchange.puts:
                kernels[token % self.core.size]()

        self.call = self.exchange.running(call)
        self.ready: list[int] = []

    def listen(self) -> None:
        self.ready += self.exchange.take(self.exchange.wait())

    def run(self, number: int) -> None:
        """Run one of the ready ops."""
        token, before = self.ready.pop(number) & TOKEN, self.core.completed
        self.call(token)
        self.ready += self.core.complete(token)
        if self.core.completed != before:
            self.exchange.completed()


def simulate(
    parts: Mapping[str, Graph], seed: int, *, iterations: int, delay: float, loss: float
) -> Outcome:
    """Run the parts of all hosts to the end, or until each that is left has told what is wrong."""
    chance = random.Random(seed)
    network, credit = _Network(chance, delay=delay, loss=loss), chance.randint(1, 3)
    hosts = {
        host: _Host(host, part, network, [peer for peer in parts if peer != host], credit)
        for host, part in parts.items()
    }
    for host in hosts.values():
        host.ready += host.core.extend(iterations)
    outcome, beat = Outcome(), 0.0
    while network.now < _LONGEST:
        if all(host.core.completed == iterations for host in hosts.values()):
            break
        listening = [name for name in hosts if network.now >= beat or network.due(name)]
        if network.now >= beat:
            beat = network.now + _BEAT
        for name in listening:
            try:
                hosts[name].listen()
            except RunError as error:
                outcome.errors[name] = error
                hosts.pop(name).end.close()
        busy = [host for host in hosts.values() if host.ready]
        if busy:
            host = chance.choice(busy)
            host.run(chance.randrange(len(host.ready)))
        elif not any(map(network.due, hosts)):
            network.now = min([beat, *(network.next(name) for name in hosts)])
    else:
        outcome.hangs = True
    outcome.lost, outcome.seconds = network.lost, network.now
    return outcome
