"""Connections between hosts: messages in order, over links that all connections share.

A pair of hosts has a connection in each direction, which sends its puts in order. A put completes
when all but the last `buffer` bytes of the connection have been sent, as with the buffer of a
socket.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from purine.analysis.infer import size_in_bytes
from purine.simulator.machine import Machine
from purine.simulator.network import Flows
from purine.simulator.part import Part

__all__ = ["Change", "Wires"]

_SMALL = 1500.0
"""Bytes of a message that takes no room on a link worth a flow: one packet."""

_Message = tuple[str, int, int]
"""The peer, the number of the channel and the iteration."""
_Thread = tuple[int, int]
"""A host and a thread of it."""


@dataclass(slots=True)
class Change:
    """The effects of a put or of the end of a flow: messages that have left, each with its time of
    arrival, and threads whose puts are complete."""

    through: list[tuple[str, int, int, float]] = field(default_factory=list)
    released: list[_Thread] = field(default_factory=list)
    over: bool = True


@dataclass(slots=True)
class _Piece:
    size: float
    message: _Message | None
    thread: _Thread | None


@dataclass(slots=True)
class _Connection:
    latency: float
    pieces: deque[_Piece] = field(default_factory=deque)
    flow: int = -1
    queued: float = 0.0


class Wires:
    """All connections of a simulation. Times are nanoseconds."""

    def __init__(self, machine: Machine, flows: Flows) -> None:
        self._machine, self._flows = machine, flows
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._of_flow: dict[int, tuple[str, str]] = {}
        self._waits: dict[_Thread, int] = {}
        self.bytes: dict[tuple[str, str], float] = {}
        """Bytes that were put from one host to another."""

    def latency(self, source: str, target: str) -> float:
        """Nanoseconds from one host to another."""
        return self._connection(source, target).latency

    def _connection(self, source: str, target: str) -> _Connection:
        if (source, target) not in self._connections:
            latency = self._machine.network.latency(source, target) * 1e9
            self._connections[source, target] = _Connection(latency)
        return self._connections[source, target]

    def put(
        self, now: float, source: str, target: str, size: float, message: _Message, thread: _Thread
    ) -> Change:
        """Put a value; `over` of the change tells whether the put is complete at once."""
        connection, change = self._connection(source, target), Change()
        size = (size + 16.0) * self._machine.weights.get((source, target), 1.0)
        self.bytes[source, target] = self.bytes.get((source, target), 0.0) + size
        if connection.flow < 0 and size <= _SMALL:
            rate = min((x.rate for x in self._machine.network.route(source, target)), default=1e12)
            change.through.append((*message, now + connection.latency + size / rate * 1e9))
            return change
        before = connection.queued + size - self._machine.wire.buffer
        change.over = before <= 0
        if change.over:
            connection.pieces.append(_Piece(size, message, None))
        elif before >= size:  # what is queued is more than the buffer
            connection.pieces.append(_Piece(size, message, thread))
        else:
            connection.pieces.append(_Piece(before, None, thread))
            connection.pieces.append(_Piece(size - before, message, None))
        connection.queued += size
        if connection.flow < 0:
            self._start(now, (source, target), connection)
        return change

    def wait(self, thread: _Thread, count: int) -> None:
        """A thread waits for this number of connections."""
        self._waits[thread] = count

    def _start(self, now: float, pair: tuple[str, str], one: _Connection) -> None:
        route = self._machine.network.route(*pair)
        one.flow = self._flows.begin(now, route, one.pieces[0].size)
        self._of_flow[one.flow] = pair

    def flow_ended(self, now: float, flow: int) -> tuple[str, Change]:
        """A flow of a connection has ended; returns the sender and the effects."""
        pair = self._of_flow.pop(flow)
        connection, change = self._connections[pair], Change()
        piece = connection.pieces.popleft()
        connection.queued -= piece.size
        connection.flow = -1
        self._flows.end(flow)
        if connection.pieces:
            self._start(now, pair, connection)
        if piece.message is not None:
            change.through.append((*piece.message, now + connection.latency))
        if piece.thread is not None:
            self._waits[piece.thread] -= 1
            if not self._waits[piece.thread]:
                del self._waits[piece.thread]
                change.released.append(piece.thread)
        return pair[0], change

    def meeting_latency(self, key: tuple[object, ...]) -> float:
        """The time of a collective besides its bytes: one step for each doubling of hosts."""
        hosts = key[3]
        assert isinstance(hosts, tuple)
        worst = max(self.latency(a, b) for a, b in itertools.pairwise(hosts))
        return worst * max(1, (len(hosts) - 1).bit_length())

    def collective_bytes(self, part: Part, op: int) -> float:
        """The bytes of a host's part in a collective."""
        blobs, node = part.graph.blobs, part.graph.ops[part.plan.ops[op]]
        names = node.inputs or node.outputs
        return float(sum(size_in_bytes(blobs[name]) for name in names if name in blobs))
