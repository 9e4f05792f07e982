"""The exchange of values with other hosts, for an executor.

Puts to each peer have a thread of their own, since sending may wait for the network. So has each
communicator, since a collective waits for all its hosts. One thread waits for events of the
transport: it runs arrivals in line, and releases puts that wait for a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event as Bell
from time import monotonic
from typing import Literal

from torch import Tensor

from purine.analysis.infer import families
from purine.core import Plan
from purine.dispatch.ends import ends_of
from purine.dispatch.host_core import HostCore
from purine.errors import KernelError
from purine.graph import Graph
from purine.lowering.board import POST
from purine.lowering.hosts import Channel, channels_of
from purine.lowering.together import Collective, Group, collective_of
from purine.registry.aten import device_of
from purine.registry.kind import Kernel
from purine.runtime.calls import kernel_of
from purine.runtime.enqueued import Enqueued
from purine.runtime.receipts import Receipts
from purine.transports.base import ENDED, Arrived, Event, Granted, Lost, Transport
from purine.transports.communicator import Communicator
from purine.transports.world import host_lost, value_lost

__all__ = ["Exchange", "Wait"]

_BEAT = 1.0
"""Seconds between two signs of life."""
_SILENCE = 6.0
"""Seconds after which a host that says nothing is taken for lost. All hosts end within ten."""
_OVERDUE = 20.0
"""Seconds after which a value that was sent and has not arrived is taken for lost."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An op that waits for another host.

    An "arrival" waits for its value, a put for a free "slot", and a "send" is in progress. A
    "collective" in progress waits for each of its hosts; of those enqueued on GPUs, only the oldest
    does.
    """

    sort: Literal["arrival", "slot", "send", "collective"]
    channel: Channel
    iteration: int

    @property
    def peer(self) -> str:
        receives = self.sort in ("arrival", "collective")
        return self.channel.source if receives else self.channel.target

    @property
    def blob(self) -> str:
        return self.channel.op if self.channel.blob is None else self.channel.blob.name


class Exchange:
    """The channels of one host's part, over an open transport.

    `graph` is the lowered part before segments were formed. `communicators` are those of its groups
    of collectives. `clock` gives the time in seconds.
    """

    def __init__(
        self,
        graph: Graph,
        host: str,
        peers: Sequence[str],
        transport: Transport,
        *,
        communicators: Mapping[Group, Communicator] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.host, self.peers, self.transport = host, tuple(peers), transport
        self._clock, self._graph = clock, graph
        self.incoming, self.outgoing = channels_of(graph, host)
        self.kernels: dict[str, Kernel] = {}
        """The kernels of the puts, arrivals and fences."""
        self._versions = {channel.op: [0] for channel in (*self.incoming, *self.outgoing)}
        """The iteration for which the kernel of an op is about to be called."""
        family = families(graph)
        kept = {family[name] for name in graph.outputs}
        kept |= {family[state.next] for state in graph.states.values()}
        self._collectives: dict[str, Collective] = {}
        """By op the collective that it has a part in."""
        self._enqueued = Enqueued(communicators or {})
        for op in graph.ops.values():
            if op.kind == "Fence":
                self.kernels[op.name] = lambda: ()  # it only waits
            one = collective_of(op)
            if one is not None:
                self._collectives[op.name] = one
                self.kernels[op.name] = kernel_of(graph, op, self._enqueued.through(one.group))
        self._blobs = {
            name: (*graph.ops[name].outputs, *graph.ops[name].inputs)[0]
            for name in self._collectives
        }
        self._meeting: dict[int, int] = {}
        """By collective that is under way its iteration."""
        self._closed = Bell()
        for name, channels in self._channels_from().items():
            self.kernels[name] = self._putting(channels, posts=graph.ops[name].kind == POST)
        for channel in self.incoming:
            keep = channel.blob is not None and family[channel.blob.name] in kept
            self.kernels[channel.op] = self._arriving(channel, keep)
        self._lost: dict[str, str] = {}
        self._sending: dict[int, int] = {}
        """By put that is being sent its iteration."""
        self._sent = dict.fromkeys(self.peers, 0)
        """By peer how many values were put."""
        self._receipts = Receipts(self.peers)
        self._begin()

    def open(self, plan: Plan, *, start: int, credit: int) -> HostCore:
        """Connect, and return the core that also waits for the other hosts."""
        number = {name: index for index, name in enumerate(plan.ops)}
        self.ends = ends = ends_of(self._graph, self.host, plan)
        self.puts, self.arrivals, self.turns = ends.puts, ends.arrivals, ends.turns
        self._cells = {number[name]: cell for name, cell in self._versions.items()}
        self.away = {op for ops in (self.puts, *self.turns) for op in ops}
        """The ops that are running while they wait for other hosts."""
        self.core = ends.core(plan, start=start, credit=credit)
        self.transport.open(self.peers, self.incoming, self.outgoing, self.core.slots)
        self._begin()
        return self.core

    def _begin(self) -> None:
        """Start the timeouts: from now on, peers have to send heartbeats."""
        self._beat = self._due = self._looked = self._clock()
        self._heard = dict.fromkeys(self.peers, self._looked)

    def running(self, run: Callable[[int], None]) -> Callable[[int], None]:
        """`run`, which first tells puts and arrivals their iteration."""
        cells, size, puts, sending = self._cells, self.core.size, self.puts, self._sending
        sent, collective = self._sent, frozenset(op for ops in self.turns for op in ops)

        def run_token(token: int) -> None:
            op = token % size
            cell = cells.get(op)
            if op in collective:
                self._meet(run, token)
                return
            if cell is None:
                run(token)
                return
            cell[0] = token // size
            if op not in puts:
                run(token)
                return
            sending[op] = token // size
            run(token)
            for peer in puts[op]:
                sent[peer] += 1  # one thread puts to a peer
            del sending[op]

        return run_token

    def _meet(self, run: Callable[[int], None], token: int) -> None:
        """Run a collective, or enqueue one of a GPU."""
        iteration, op = divmod(token, self.core.size)
        self._meeting[op] = iteration
        try:
            run(token)
        except KernelError as error:
            if isinstance(error.__cause__, RuntimeError):
                self._blame(self.core.plan.ops[op], iteration, error)
            raise
        name = self.core.plan.ops[op]
        self._enqueued.add(op, iteration, self._collectives[name].group)
        del self._meeting[op]

    def _blame(self, op: str, iteration: int, error: KernelError) -> None:
        """Raise the error of a lost host if a collective has failed because of one.

        Its connection may break before the transport reports that the host is lost.
        """
        ends = self._clock() + _SILENCE
        while not self._closed.is_set() and self._clock() < ends:
            losses = self.losses()
            for peer in self._collectives[op].hosts:
                if peer in losses:
                    blob = self._blobs[op]
                    lost = host_lost(peer, losses[peer], op=op, blob=blob, iteration=iteration)
                    raise lost from error
            self._closed.wait(_BEAT / 20)

    @property
    def meets(self) -> bool:
        """Whether a collective is in progress."""
        return bool(self._meeting) or self._enqueued.oldest() is not None

    @property
    def abandoned(self) -> bool:
        """Whether values from GPUs may be wrong from now on, because they no longer wait for other
        hosts."""
        return self._enqueued.abandoned

    def abandon(self) -> None:
        """Release GPUs that wait for other hosts. Returns at once."""
        self._enqueued.abandon()

    def wait(self, timeout: float = _BEAT) -> list[Event]:
        """The next events. Sends heartbeats to the peers at intervals."""
        events = self.transport.wait(timeout)
        now = self._clock()
        if now >= self._beat:
            self._beat = now + _BEAT
            self.completed()
        return events

    def pause(self) -> bool:
        """Wait until the next heartbeat is due; returns whether the exchange is closed."""
        return self._closed.wait(_BEAT)

    def completed(self) -> None:
        """Tell the peers how many iterations are complete here: their slots are free."""
        for peer in self.peers:
            if peer not in self._lost:
                self.transport.credit(peer, self.core.completed, self._sent[peer])

    def take(self, events: Sequence[Event]) -> list[int]:
        """The tokens that became ready by events of the transport. The executor's lock is held."""
        ready: list[int] = []
        now = self._clock()
        if now - self._looked > _SILENCE / 2:  # this process was stopped itself
            self._heard = dict.fromkeys(self.peers, now)
            self._receipts.restart(now)
        self._looked = now
        for event in events:
            self._heard[event.peer] = now
            if isinstance(event, Arrived):
                self._receipts.arrive(event.peer)
                ready += self.core.arrive(self.arrivals[event.peer, event.channel], event.version)
            elif isinstance(event, Granted):
                self._receipts.tell(event.peer, event.sent, now=now)
                ready += self.core.grant(event.peer, event.completed)
            elif isinstance(event, Lost):
                self._lost.setdefault(event.peer, event.why)
        if not ready and (self._lost or now >= self._due):
            self._due = now + _BEAT / 2
            self._raise_if_needed()
        return ready

    def losses(self, silence: float = _SILENCE) -> dict[str, str]:
        """The lost or silent peers, and why."""
        now = self._clock()
        silent = {
            peer: f"it has sent no heartbeat for {now - heard:.0f} s"
            for peer, heard in self._heard.items()
            if now - heard > silence and now - self._looked < silence / 2
        }
        return {**silent, **self._lost}

    def close(self) -> None:
        """Close the transport; hosts that are lost are not waited for."""
        self._closed.set()
        losses = {peer: why for peer, why in self.losses().items() if why != ENDED}
        if losses:
            self._enqueued.abandon()
        self._enqueued.close()
        self.transport.close(list(losses))
        self._lost.clear()  # all hosts close theirs, so from now on that says nothing

    def waits(self) -> list[Wait]:
        """The ops that wait for other hosts, the oldest first. The executor's lock is held."""
        channel_of = {channel.op: channel for channel in self.incoming}
        puts = self._channels_from()
        sending = [(at, self.core.plan.ops[op]) for op, at in dict(self._sending).items()]
        waits = [Wait("arrival", channel_of[op], at) for at, op in self.core.missing()]
        waits += [Wait("slot", channel, at) for at, op in self.core.held() for channel in puts[op]]
        waits += [Wait("send", channel, at) for at, op in sending for channel in puts[op]]
        oldest = self._enqueued.oldest()
        for number, at in {**self._meeting, **dict([oldest] if oldest else [])}.items():
            op = self.core.plan.ops[number]
            one, blob = self._collectives[op], self._blobs[op]
            for peer in one.hosts:
                if peer != self.host:
                    channel = Channel(peer, self.host, one.number, op, self._graph.blobs[blob])
                    waits.append(Wait("collective", channel, at))
        return waits

    def _raise_if_needed(self) -> None:
        """Raise if an op waits for a host that is gone, or for a value that is lost.

        A host that is no longer needed may leave.
        """
        losses = self.losses()
        overdue = self._receipts.overdue(before=self._clock() - _OVERDUE)
        for wait in self.waits() if losses or overdue else ():
            why = losses.get(wait.peer)
            if why is not None:
                # Hosts end one after the other when one is lost: the silent one was the first.
                for other, text in self.losses(_SILENCE / 2).items():
                    if other != wait.peer:
                        why += f"; host {other!r} is gone too: {text}"
                op, blob = wait.channel.op, wait.blob
                raise host_lost(wait.peer, why, op=op, blob=blob, iteration=wait.iteration)
            if wait.sort == "arrival" and wait.peer in overdue:
                op, blob, at = wait.channel.op, wait.blob, wait.iteration
                raise value_lost(wait.peer, *overdue[wait.peer], op=op, blob=blob, iteration=at)

    def _channels_from(self) -> dict[str, list[Channel]]:
        """By put its channels: one for each receiver."""
        channels: dict[str, list[Channel]] = {}
        for channel in self.outgoing:
            channels.setdefault(channel.op, []).append(channel)
        return channels

    def _putting(self, channels: Sequence[Channel], *, posts: bool) -> Kernel:
        put, posted = self.transport.put, self.transport.posted
        version = self._versions[channels[0].op]
        enqueued = self._enqueued
        ends = [(channel.target, channel.number) for channel in channels]

        def kernel(value: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
            if enqueued.on_gpus and value is not None:
                value = enqueued.right(value.cpu())
            for peer, number in ends:
                put(peer, number, version[0], value)
            if not posts or value is None:
                return ()
            return posted(*ends[0], version[0], value)

        return kernel

    def _arriving(self, channel: Channel, keep: bool) -> Kernel:
        """The value in the slot, or a copy of it if it lives longer than its iteration."""
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
