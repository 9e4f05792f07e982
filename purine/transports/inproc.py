"""Transport `inproc`: hosts that are threads of one process, for tests.

The network can delay messages at random, so that messages of one pair overtake each other. It can
also lose some, which no other transport does.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor

from purine.graph import Graph
from purine.lowering.together import Group
from purine.transports.base import (
    ENDED,
    PATIENCE,
    Arrived,
    Channels,
    Event,
    Granted,
    Hosts,
    Lost,
    Slots,
    Transport,
    regions_of,
)
from purine.transports.clock import Reading, estimate
from purine.transports.communicator import Communicator
from purine.transports.world import Texts, Values, World, host_lost

__all__ = ["InprocCommunicator", "InprocNetwork", "InprocTransport", "InprocWorld", "inproc_worlds"]

T = TypeVar("T")


class InprocNetwork:
    """The endpoints of some hosts, by name.

    `delay` is the longest delay of a message in seconds, `loss` the part of messages that is lost.

    >>> network = InprocNetwork(["host0", "host1"])
    >>> one, other = network.ends.values()
    >>> one.credit("host1", 3)
    >>> other.wait(1.0)
    [Granted(peer='host0', completed=3, sent=0)]
    """

    def __init__(
        self, hosts: Sequence[str], *, delay: float = 0.0, loss: float = 0.0, seed: int = 0
    ) -> None:
        self.delay, self.loss = delay, loss
        self.lost: list[Event] = []
        """The messages that were lost."""
        self.random = random.Random(seed)
        self.opened: set[str] = set()
        self.changed = threading.Condition()
        self.ends = {host: InprocTransport(self, host) for host in hosts}


class InprocTransport(Transport):
    """The end of one host."""

    def __init__(self, network: InprocNetwork, host: str) -> None:
        self._network, self._host = network, host
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self._changed = threading.Condition()
        self._awake = False
        self._closed = False
        self._slots: dict[str, Slots] = {}

    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        self._peers = tuple(peers)
        for peer, region in regions_of(incoming, slots, by_source=True).items():
            self._slots[peer] = Slots(region, torch.empty(region.size, dtype=torch.uint8))
        with self._network.changed:
            self._network.opened.add(self._host)
            self._network.changed.notify_all()
            self._network.changed.wait_for(lambda: self._network.opened.issuperset(peers), PATIENCE)

    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        return self._slots[peer].value(channel, version)

    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        end = self._network.ends[peer]
        if value is not None:
            end._slots[self._host].fill(channel, version, value)
        end._tell(Arrived(self._host, channel, version))

    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        self._network.ends[peer]._tell(Granted(self._host, completed, sent))

    def wait(self, timeout: float) -> list[Event]:
        ends = monotonic() + timeout
        with self._changed:
            while True:
                now = monotonic()
                due = []
                while self._events and self._events[0][0] <= now:
                    due.append(heapq.heappop(self._events)[2])
                if due or self._awake or now >= ends:
                    self._awake = False
                    return due
                following = self._events[0][0] if self._events else ends
                self._changed.wait(min(following, ends) - now)

    def wake(self) -> None:
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def close(self, lost: Collection[str] = ()) -> None:
        if not self._closed:
            self._closed = True
            for peer in self._peers:
                self._network.ends[peer]._tell(Lost(self._host, ENDED))

    def _tell(self, event: Event) -> None:
        network = self._network
        with self._changed:
            if self._closed:
                return
            if not isinstance(event, Lost) and network.random.random() < network.loss:
                network.lost.append(event)
                return
            delay = network.random.uniform(0.0, network.delay) if network.delay else 0.0
            self._count += 1
            heapq.heappush(self._events, (monotonic() + delay, self._count, event))
            self._changed.notify_all()


class _Meeting:
    """The place where the hosts of a group meet for collectives: no call returns before all are
    here.

    So an order that differs between hosts gives an error or a hang in every run.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self.changed = threading.Condition()
        self.calls: dict[int, dict[str, tuple[str, Tensor]]] = {}
        """By number of a call what each host that is here calls, and its line in memory."""
        self.left: dict[int, int] = {}

    def meet(self, number: int, host: str, call: str, line: Tensor) -> dict[str, Tensor]:
        """The lines of all hosts, in their order."""
        with self.changed:
            calls = self.calls.setdefault(number, {})
            calls[host] = call, line.to("cpu", copy=True)  # that waits for the stream of a GPU
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(calls) == len(self.hosts), PATIENCE):
                raise RuntimeError(f"of {self.hosts}, only {tuple(calls)} came")
            self.left[number] = self.left.get(number, 0) + 1
            if self.left[number] == len(self.hosts):
                del self.calls[number], self.left[number]
        if len({name for name, _ in calls.values()}) > 1:
            raise RuntimeError(f"hosts make different calls: {calls}")
        return {name: calls[name][1] for name in self.hosts}


class InprocCommunicator(Communicator):
    """The end of one host."""

    def __init__(self, host: str, meeting: _Meeting) -> None:
        self._host, self._meeting, self._count = host, meeting, 0

    def reduce(self, line: Tensor, root: str) -> None:
        lines = self._meet(f"reduce {tuple(line.shape)} {line.dtype} to {root}", line)
        if root == self._host:
            own, *others = lines.values()
            for part in others:
                own = own + part
            line.copy_(own)

    def broadcast(self, line: Tensor, root: str) -> None:
        lines = self._meet(f"broadcast {tuple(line.shape)} {line.dtype} from {root}", line)
        line.copy_(lines[root])

    def _meet(self, call: str, line: Tensor) -> dict[str, Tensor]:
        self._count += 1
        return self._meeting.meet(self._count, self._host, call, line)


class InprocWorld(World):
    """The world of one of several hosts that are threads of this process."""

    def __init__(self, host: str, hosts: Sequence[str], shared: _Shared) -> None:
        super().__init__()
        self.host, self.hosts, self._shared = host, tuple(hosts), shared
        self._count = self._meetings = 0

    def transport(self) -> Transport:
        self._count += 1
        with self._shared.lock:
            if self._count not in self._shared.networks:
                shared, seed = self._shared, self._shared.seed + self._count
                network = InprocNetwork(self.hosts, delay=shared.delay, loss=shared.loss, seed=seed)
                shared.networks[self._count] = network
            return self._shared.networks[self._count].ends[self.host]

    def communicators(self, groups: Sequence[Group]) -> list[Communicator | None]:
        self._meetings += 1
        ends: list[Communicator | None] = []
        for number, group in enumerate(groups):
            with self._shared.lock:
                meeting = self._shared.meetings.setdefault(
                    (self._meetings, number), _Meeting(group.hosts)
                )
            own = self.host in group.hosts
            ends.append(InprocCommunicator(self.host, meeting) if own else None)
        return ends

    def all_gather(self, text: str, *, op: str = "compare", blob: str = "settings") -> Texts:
        return self._all(text)

    @property
    def lost_values(self) -> int:
        """The number of values that the network has lost, of all hosts."""
        networks = self._shared.networks.values()
        return sum(isinstance(event, Arrived) for network in networks for event in network.lost)

    def gather(self, graph: Graph, values: Values, names: Collection[str]) -> dict[str, Tensor]:
        parts = self._all({name: values[name].clone() for name in names if name in values})
        return {name: parts[graph.blobs[name].location.host][name] for name in names}

    def collect(self, text: str) -> list[str]:
        given = self._all(text)
        return [given[host] for host in self.hosts] if self.first else []

    def clock(self) -> Reading:
        return estimate(self._all(self.now)[self.hosts[0]], self.now)

    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        with self._shared.lock:
            if wanted and self._shared.end is None:
                self._shared.end = iteration + ahead + 1
            return self._shared.end is not None and iteration >= self._shared.end

    def barrier(self) -> None:
        try:
            self._shared.barrier.wait(PATIENCE)
        except threading.BrokenBarrierError:
            gone = next(iter(self._shared.gone), self.peers[0])
            raise host_lost(gone, "it left", op="barrier", blob="states") from None

    def close(self) -> None:
        self._shared.gone.append(self.host)
        self._shared.barrier.abort()

    def _all(self, own: T) -> dict[str, T]:
        self._shared.given[self.host] = own
        self.barrier()
        given = dict(self._shared.given)
        self.barrier()
        return given


class _Shared:
    """The state that the worlds of all hosts share."""

    def __init__(self, count: int, delay: float, loss: float, seed: int) -> None:
        self.delay, self.loss, self.seed = delay, loss, seed
        self.barrier = threading.Barrier(count)
        self.lock = threading.Lock()
        self.networks: dict[int, InprocNetwork] = {}
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.given: dict[str, Any] = {}
        self.gone: list[str] = []
        self.end: int | None = None
        """The iteration at which all hosts stop."""


def inproc_worlds(
    hosts: Sequence[str], *, delay: float = 0.0, loss: float = 0.0, seed: int = 0
) -> tuple[InprocWorld, ...]:
    """The worlds of some hosts, each for a thread of its own; see `InprocNetwork`."""
    shared = _Shared(len(hosts), delay, loss, seed)
    return tuple(InprocWorld(host, hosts, shared) for host in hosts)
