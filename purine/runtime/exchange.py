"""What an executor does to exchange values with other hosts.

Puts to each peer have a thread of their own, since sending may wait for the network. One thread
waits for events of the transport: it runs arrivals in line, and lets puts go that wait for a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from torch import Tensor

from purine.analysis.infer import families
from purine.core import Plan
from purine.errors import RunError
from purine.graph import Graph
from purine.lowering.hosts import Channel, channels_of
from purine.registry.aten import device_of
from purine.registry.kind import Kernel
from purine.runtime.host_core import HostCore
from purine.transports.base import Arrived, Event, Granted, Lost, Transport

__all__ = ["Exchange"]

_BEAT = 1.0
"""Seconds between two signs of life."""
_SILENCE = 8.0
"""Seconds after which a host that says nothing is taken for lost."""


class Exchange:
    """The channels of one host's part, over an open transport.

    `graph` is the lowered part before segments were formed.
    """

    def __init__(self, graph: Graph, host: str, peers: Sequence[str], transport: Transport) -> None:
        self.host, self.peers, self.transport = host, tuple(peers), transport
        self.incoming, self.outgoing = channels_of(graph, host)
        self.kernels: dict[str, Kernel] = {}
        """The kernels of the puts and arrivals."""
        self._versions = {channel.op: [0] for channel in (*self.incoming, *self.outgoing)}
        """The iteration for which the kernel of an op is about to be called."""
        family = families(graph)
        kept = {family[name] for name in graph.outputs}
        kept |= {family[state.next] for state in graph.states.values()}
        for channel in self.outgoing:
            self.kernels[channel.op] = self._putting(channel)
        for channel in self.incoming:
            keep = channel.blob is not None and family[channel.blob.name] in kept
            self.kernels[channel.op] = self._arriving(channel, keep)
        self._lost: dict[str, str] = {}
        now = monotonic()
        self._heard = dict.fromkeys(self.peers, now)
        self._beat = now

    def open(self, plan: Plan, *, start: int, credit: int) -> HostCore:
        """Connect, and return the core that waits for the other hosts as well."""
        number = {name: index for index, name in enumerate(plan.ops)}
        self.puts = {number[channel.op]: channel.target for channel in self.outgoing}
        self.arrivals = {
            (channel.source, channel.number): number[channel.op] for channel in self.incoming
        }
        self._cells = {number[name]: cell for name, cell in self._versions.items()}
        self.core = HostCore(
            plan,
            arrivals=self.arrivals.values(),
            puts=self.puts,
            start=start,
            credit=credit,
            deadlines={number[channel.op]: channel.deadline for channel in self.outgoing},
        )
        self.transport.open(self.peers, self.incoming, self.outgoing, self.core.slots)
        now = monotonic()
        self._heard = dict.fromkeys(self.peers, now)
        return self.core

    def running(self, run: Callable[[int], None]) -> Callable[[int], None]:
        """`run`, which tells puts and arrivals their iteration first."""
        cells, size = self._cells, self.core.size

        def run_token(token: int) -> None:
            cell = cells.get(token % size)
            if cell is not None:
                cell[0] = token // size
            run(token)

        return run_token

    def wait(self) -> list[Event]:
        """The next events. Tells the peers now and then that this host is alive."""
        events = self.transport.wait(_BEAT)
        now = monotonic()
        if now >= self._beat:
            self._beat = now + _BEAT
            self.completed()
        return events

    def completed(self) -> None:
        """Tell the peers how far this host is: the slots of complete iterations are free."""
        for peer in self.peers:
            if peer not in self._lost:
                self.transport.credit(peer, self.core.completed)

    def take(self, events: Sequence[Event]) -> list[int]:
        """The tokens that became ready by events of the transport. The executor's lock is held."""
        ready: list[int] = []
        now = monotonic()
        for event in events:
            self._heard[event.peer] = now
            if isinstance(event, Arrived):
                ready += self.core.arrive(self.arrivals[event.peer, event.channel], event.version)
            elif isinstance(event, Granted):
                ready += self.core.grant(event.peer, event.completed)
            elif isinstance(event, Lost):
                self._lost.setdefault(event.peer, event.why)
        for peer, heard in self._heard.items():
            if now - heard > _SILENCE:
                self._lost.setdefault(peer, f"it has said nothing for {_SILENCE:.0f} s")
        if self._lost and not ready:
            self._raise_if_needed()
        return ready

    def _raise_if_needed(self) -> None:
        """Raise if an op waits for a host that is gone. A host that needs no more may go."""
        sources = {channel.op: channel for channel in self.incoming}
        for iteration, op in self.core.missing():
            channel = sources[op]
            if channel.source in self._lost:
                blob = channel.blob.name if channel.blob is not None else op
                raise _lost(channel.source, self._lost[channel.source], op, blob, iteration)
        targets = {channel.op: channel for channel in self.outgoing}
        for iteration, op in self.core.held():
            channel = targets[op]
            if channel.target in self._lost:
                blob = channel.blob.name if channel.blob is not None else op
                raise _lost(channel.target, self._lost[channel.target], op, blob, iteration)

    def _putting(self, channel: Channel) -> Kernel:
        put, version = self.transport.put, self._versions[channel.op]
        peer, number = channel.target, channel.number

        def kernel(value: Tensor | None = None) -> tuple[Tensor, ...]:
            put(peer, number, version[0], value)
            return ()

        return kernel

    def _arriving(self, channel: Channel, keep: bool) -> Kernel:
        """The value in the slot, or a copy of it where it lives longer than its iteration."""
        slot, version = self.transport.slot, self._versions[channel.op]
        peer, number, blob = channel.source, channel.number, channel.blob
        device = None if blob is None else device_of(blob.location)

        def kernel() -> Tensor | tuple[Tensor, ...]:
            value = slot(peer, number, version[0])
            if value is None or device is None:
                return ()
            if device.type != "cpu":
                return value.to(device)
            return value.clone() if keep else value

        return kernel


def _lost(host: str, why: str, op: str, blob: str, iteration: int) -> RunError:
    return RunError(
        f"host {host!r} is lost: {why}",
        op=op,
        blob=blob,
        expected=f"blob {blob!r} of iteration {iteration}, for which op {op!r} waits",
        found=f"no host {host!r}",
        remedy="start the job again with --resume: the last checkpoint is intact",
    )
