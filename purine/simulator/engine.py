"""The virtual clock: the cores of all hosts, driven by events in the order of time.

`Core` and `HostCore` decide what may run, as in a run. The engine knows only how long ops take,
which thread is idle, which threads share cores, and when bytes arrive. Events of the same time are
processed in the order in which they were scheduled, so a simulation is deterministic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from purine.core import Core
from purine.dispatch.host_core import TOKEN, HostCore
from purine.dispatch.pool import Pool
from purine.errors import StallError
from purine.simulator.groups import Group
from purine.simulator.machine import Machine
from purine.simulator.network import Flows
from purine.simulator.part import Part
from purine.simulator.wires import Wires

__all__ = ["Engine", "Record"]

_END, _GROUP, _FLOW, _ARRIVE, _GRANT, _MEET = range(6)
_DRAWS = 4093
"""How many factors of op times are drawn; ops take them in turns."""

Record = tuple[int, int, int, int, float, float]
"""What ran: host, thread, op, iteration, start and end in nanoseconds."""


class _Host:
    """The simulated state of a host."""

    def __init__(self, part: Part, *, credit: int) -> None:
        self.part = part
        self.core: Core | HostCore
        if part.ends is None:
            self.core = Core(part.plan, credit=credit)
        else:
            self.core = part.ends.core(part.plan, credit=credit)
        self.size = self.core.size
        count = len(part.workers)
        self.queues: list[list[int]] = [[] for _ in range(count)]
        self.running: list[int] = [-1] * count
        self.started = [0.0] * count
        self.busy = [0.0] * count
        """Nanoseconds that each thread has run ops."""
        self.group, self.member = list(part.group_of), [0] * count
        self.lock = 0.0
        """When the interpreter's lock is free."""
        self.ends: list[float] = []
        """When iterations were complete."""
        self.inbox: list[tuple[int, int]] = []
        """Values that a thread which does everything has not looked at."""
        self.peers: tuple[int, ...] = ()
        self.sort = [0] * self.size
        """By op 1 for puts and 2 for collectives."""
        if part.ends is not None:
            for op in part.ends.puts:
                self.sort[op] = 1
            for op in part.ends.collectives:
                self.sort[op] = 2
        self.pool: Pool | None = None
        if -1 in part.worker_of:
            takers = [n for n, (_, lane) in enumerate(part.workers) if lane == "compute"]
            self.pool = Pool(part.lanes, takers)


@dataclass(slots=True)
class _Meeting:
    """A collective in progress: the threads that wait in it, and its unfinished flows."""

    waiting: list[tuple[int, int]]
    size: float = 0.0
    flows: int = 0


class Engine:
    """A simulation of some hosts. `run` continues until all iterations are complete.

    With a `seed`, the time of each op is multiplied by a random factor: `spread` is the standard
    deviation of its logarithm. `records` has the events, from iteration `keep` on.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        machine: Machine,
        *,
        credit: int = 3,
        seed: int | None = None,
        spread: float = 0.0,
        record: bool = True,
    ) -> None:
        self.machine, self.now, self.events = machine, 0.0, 0
        self.hosts = [_Host(part, credit=credit) for part in parts]
        self.index = {part.host: number for number, part in enumerate(parts)}
        for host in self.hosts:
            host.peers = tuple(self.index[name] for name in host.part.peers)
        self.records: list[Record] = []
        self._record = record
        self._calendar: list[tuple[float, int, int, int, Any]] = []
        self._sequence = 0
        self._dispatch, self._hop = machine.dispatch * 1e9, machine.hop * 1e9
        self._changed: list[int] = []
        """Groups whose next end has to be noted before the clock goes on."""
        self._groups: list[Group] = []
        self._members: list[list[tuple[int, int]]] = []
        self._make_groups(parts)
        self.flows = Flows()
        self.wires = Wires(machine, self.flows)
        self._version: dict[int, int] = {}
        self._meetings: dict[tuple[object, ...], _Meeting] = {}
        self._of_flow: dict[int, tuple[object, ...]] = {}
        """By flow of a collective its meeting."""
        if seed is None or not spread:
            self._factors: list[float] = []
        else:
            draw = random.Random(seed).gauss
            self._factors = [math.exp(draw(0.0, spread)) for _ in range(_DRAWS)]
        self._drawn = 0

    def _make_groups(self, parts: Sequence[Part]) -> None:
        numbers: dict[tuple[str, int], int] = {}
        for at, part in enumerate(parts):
            machine = self.machine.machine_of.get(part.host, part.host)
            owner = machine if self.machine.crowding else part.host
            keys = [(owner, n) for n in range(len(part.capacity))]
            for key, cores in zip(keys, part.capacity, strict=True):
                if key in numbers:
                    self._groups[numbers[key]].cores += cores
                else:
                    numbers[key] = len(self._groups)
                    self._groups.append(Group(cores, crowding=self.machine.crowding))
                    self._members.append([])
            host = self.hosts[at]
            for worker, group in enumerate(part.group_of):
                host.group[worker] = -1 if group < 0 else numbers[keys[group]]
                if group >= 0:
                    members = self._members[host.group[worker]]
                    host.member[worker] = len(members)
                    members.append((at, worker))

    def run(self, iterations: int) -> None:
        """Run the iterations below `iterations` to their end."""
        for number, host in enumerate(self.hosts):
            self._push(number, host.core.extend(iterations))
        calendar, changed, flows = self._calendar, self._changed, self.flows
        groups, members = self._groups, self._members
        while True:
            if changed:
                self._look()
            if flows.unsettled and (not calendar or calendar[0][0] > self.now):
                for flow, end in flows.settle(self.now).items():  # before time goes on
                    self._version[flow] = self._version.get(flow, 0) + 1
                    self._at(end, _FLOW, flow, self._version[flow])
            if not calendar:
                break
            now, _, code, a, b = heappop(calendar)
            if code == _END:
                self.now = now
                self._ended(a, b)
            elif code == _GROUP:
                group = groups[a]
                if group.version != b:
                    continue
                self.now = now
                number, worker = members[a][group.take(now)]
                changed.append(a)
                self._ended(number, worker)
            elif code == _FLOW:
                if self._version.get(a) != b:
                    continue
                self.now = now
                self._flow_ended(a)
            else:
                self.now = now
                if code == _ARRIVE:
                    self._arrived(a, *b)
                elif code == _GRANT:
                    self._granted(a, *b)
                else:
                    for number, worker in self._meetings.pop(b).waiting:
                        self._completed(number, worker)
            self.events += 1
        for host in self.hosts:
            if not host.core.idle:
                raise self._stalled()

    def _at(self, time: float, code: int, a: int, b: Any) -> None:
        self._sequence += 1
        heappush(self._calendar, (time, self._sequence, code, a, b))

    def _push(self, number: int, tokens: Sequence[int]) -> None:
        """Give tokens to their threads, and start those threads that are idle."""
        host = self.hosts[number]
        part, size, idle = host.part, host.size, []
        worker_of, later, queues, running = part.worker_of, part.later, host.queues, host.running
        for token in tokens:
            op = token % size
            worker = worker_of[op]
            if worker < 0:
                self._float(number, token)
                continue
            heappush(queues[worker], (token & TOKEN if part.alone else token) + later[op])
            if running[worker] < 0 and worker not in idle:
                idle.append(worker)
        for worker in idle:
            if running[worker] < 0 and queues[worker]:
                self._begin(number, worker, heappop(queues[worker]) & TOKEN, self._hop)

    def _float(self, number: int, token: int) -> None:
        """Give a token of a floating lane to the thread that has its turn, or offer it to all."""
        host = self.hosts[number]
        pool = host.pool
        assert pool is not None
        worker = pool.owner(token)
        if worker is None:
            pool.offer(token)
            free = (n for n, runs in enumerate(host.running) if runs < 0 and pool.wants(n))
            worker = next(free, None)
            if worker is not None:
                self._next(number, worker, self._hop)
        else:
            heappush(host.queues[worker], token + host.part.later[token % host.size])
            if host.running[worker] < 0:
                self._next(number, worker, self._hop)

    def _next(self, number: int, worker: int, hop: float = 0.0) -> None:
        """Let an idle thread start the next token in its queue."""
        host = self.hosts[number]
        queue = host.queues[worker]
        if not queue and host.pool is not None:
            for token in host.pool.take(worker):
                heappush(queue, token + host.part.later[token % host.size])
        if queue:
            self._begin(number, worker, heappop(queue) & TOKEN, hop)

    def _begin(self, number: int, worker: int, token: int, hop: float) -> None:
        host = self.hosts[number]
        op = token % host.size
        lock = host.lock
        start = (lock if lock > self.now else self.now) + self._dispatch
        host.lock = start
        start += hop
        host.running[worker] = token
        host.started[worker] = start
        time = host.part.times[op]
        if self._factors:
            self._drawn = (self._drawn + 1) % _DRAWS
            time *= self._factors[self._drawn]
        group, width = host.group[worker], host.part.widths[op]
        if host.sort[op] == 2:
            self._meet(number, worker, token)
        elif group < 0 or not width:
            self._sequence += 1
            heappush(self._calendar, (start + time, self._sequence, _END, number, worker))
        else:
            wait = start - self.now
            self._groups[group].begin(self.now, host.member[worker], time + wait, width)
            self._changed.append(group)

    def _look(self) -> None:
        """Schedule the end of the next op of each group that changed, unless it is scheduled."""
        for number in self._changed:
            group = self._groups[number]
            if group.noted != group.version:
                group.noted = group.version
                end = group.end()
                if end != math.inf:
                    self._sequence += 1
                    heappush(self._calendar, (end, self._sequence, _GROUP, number, group.version))
        self._changed.clear()

    def _ended(self, number: int, worker: int) -> None:
        """The work of a thread for its op is done; a put may still wait for room."""
        host = self.hosts[number]
        token = host.running[worker]
        op = token % host.size
        if host.sort[op] == 1:
            assert host.part.ends is not None
            iteration = token // host.size
            size, source = host.part.sizes.get(op, 0), host.part.host
            waits = 0
            for peer, channel in host.part.targets[op]:
                sent = self.wires.put(
                    self.now, source, peer, size, (peer, channel, iteration), (number, worker)
                )
                waits += not sent.over
                for message in sent.through:
                    self._through(source, *message)
            host.busy[worker] += self.now - host.started[worker]
            if waits:
                self.wires.wait((number, worker), waits)
                return
        self._completed(number, worker)

    def _completed(self, number: int, worker: int) -> None:
        """An op is complete: the core returns what became ready, and the thread continues."""
        host, now = self.hosts[number], self.now
        token, size, core = host.running[worker], host.size, host.core
        if host.sort[token % size] != 1:
            host.busy[worker] += now - host.started[worker]
        if self._record:
            iteration, op = divmod(token, size)
            self.records.append((number, worker, op, iteration, host.started[worker], now))
        before = core.completed
        ready = core.complete(token)
        host.running[worker] = -1
        if host.pool is not None and host.part.worker_of[token % size] < 0:
            host.pool.complete(token)
        if core.completed != before:
            self._iterations(number, before)
        queue = host.queues[worker]
        worker_of, later, part = host.part.worker_of, host.part.later, host.part
        others = []
        for item in ready:
            op = item % size
            if worker_of[op] == worker:
                heappush(queue, (item & TOKEN if part.alone else item) + later[op])
            else:
                others.append(item)
        if host.inbox:
            self._open_inbox(number)
        if host.running[worker] < 0:
            if queue:
                self._begin(number, worker, heappop(queue) & TOKEN, 0.0)
            elif host.pool is not None:
                self._next(number, worker)
        if others:
            self._push(number, others)

    def _iterations(self, number: int, before: int) -> None:
        """Iterations are complete, so their slots are free for the peers that send."""
        host = self.hosts[number]
        completed = host.core.completed
        host.ends += [self.now] * (completed - before)
        for peer in host.peers:
            way = self.wires.latency(host.part.host, self.hosts[peer].part.host)
            self._at(self.now + way, _GRANT, peer, (host.part.host, completed))

    def _open_inbox(self, number: int) -> None:
        host = self.hosts[number]
        taken, host.inbox = host.inbox, []
        for op, iteration in taken:
            assert isinstance(host.core, HostCore)
            for token in host.core.arrive(op, iteration):
                later = host.part.later[op]
                heappush(host.queues[host.part.worker_of[op]], (token & TOKEN) + later)

    def _arrived(self, number: int, op: int, iteration: int) -> None:
        """A value has arrived; a thread that does everything polls for it between two ops."""
        host = self.hosts[number]
        if host.part.alone and host.running[0] >= 0:
            host.inbox.append((op, iteration))
            return
        assert isinstance(host.core, HostCore)
        self._push(number, host.core.arrive(op, iteration))

    def _granted(self, number: int, peer: str, completed: int) -> None:
        """A peer has completed iterations, so their slots are free."""
        core = self.hosts[number].core
        assert isinstance(core, HostCore)
        self._push(number, core.grant(peer, completed))

    def _flow_ended(self, flow: int) -> None:
        del self._version[flow]
        key = self._of_flow.pop(flow, None)
        if key is not None:
            self.flows.end(flow)
            meeting = self._meetings[key]
            meeting.flows -= 1
            if not meeting.flows:
                self._at(self.now + self.wires.meeting_latency(key), _MEET, 0, key)
            return
        source, ended = self.wires.flow_ended(self.now, flow)
        for message in ended.through:
            self._through(source, *message)
        for number, worker in ended.released:
            self._completed(number, worker)

    def _through(self, source: str, peer: str, channel: int, iteration: int, late: float) -> None:
        """A message has left; it arrives after the latency of its route."""
        number = self.index[peer]
        ends = self.hosts[number].part.ends
        assert ends is not None
        self._at(late, _ARRIVE, number, (ends.arrivals[source, channel], iteration))

    def _meet(self, number: int, worker: int, token: int) -> None:
        """A host joins a collective, which begins when all its hosts are there."""
        host = self.hosts[number]
        assert host.part.ends is not None
        one = host.part.ends.collectives[token % host.size]
        key = (one.kind, one.number, token // host.size, one.hosts, one.gpus)
        meeting = self._meetings.setdefault(key, _Meeting([]))
        meeting.waiting.append((number, worker))
        meeting.size = max(meeting.size, self.wires.collective_bytes(host.part, token % host.size))
        if len(meeting.waiting) < len(one.hosts):
            return
        for source, target in zip(one.hosts, (*one.hosts[1:], one.hosts[0]), strict=True):
            route = self.machine.network.route(source, target)
            flow = self.flows.begin(self.now, route, max(1.0, meeting.size))
            self._of_flow[flow] = key
            meeting.flows += 1

    def _stalled(self) -> StallError:
        """The error if no event is left but iterations are: which op waits for which."""
        lines = []
        for host in self.hosts:
            for iteration, name, _ in host.core.waiting()[:3]:
                lines.append(f"op {name!r} of host {host.part.host!r} in iteration {iteration}")
            if isinstance(host.core, HostCore):
                for iteration, name in host.core.held()[:3]:
                    lines.append(f"put {name!r} of {host.part.host!r} for a slot ({iteration})")
        what, expected = (
            "the simulated hosts wait for each other",
            "every op to become ready",
        )
        return StallError(what, expected, "; ".join(lines[:8]), "purine check prints the cycle")
