"""Running a program: a thread per CPU lane, and one for all GPUs, around one core.

A lane runs its next ready op itself, in line; only an op of another lane costs a hop between
threads. One lock guards the core and the queues. Kernels run outside of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from time import monotonic, perf_counter_ns

import torch
from torch import Tensor

from purine.compile.script import keep_order
from purine.core import Core
from purine.dispatch.host_core import TOKEN, HostCore
from purine.dispatch.pool import Pool
from purine.dispatch.threads import COMPUTE, threads_of_lanes, with_peers
from purine.errors import RunError, StallError
from purine.graph import Graph, Location
from purine.graph.nodes import computes, floats
from purine.machine.collector import leave_out, take_in
from purine.machine.cores import available, pin, threads_of_all
from purine.machine.settings import hold, let_go
from purine.machine.threads import set_kernel_threads
from purine.runtime.buffers import Buffers
from purine.runtime.exchange import Exchange, Wait
from purine.runtime.program import Program
from purine.runtime.seat import Seat
from purine.runtime.streams import OUTBOUND, Fetched, Streams, is_gpu, on_host
from purine.trace.events import FETCH, Event
from purine.trace.trace import Trace, edges_of

__all__ = ["Activity", "Executor", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How an executor uses the machine.

    `credit` bounds the iterations in flight. A compute lane uses as many threads as its device has
    `cores`, or `threads` where it has none of its own. `tf32` says whether float32 products on GPUs
    use TF32; None leaves that to torch. `record` keeps a trace.
    """

    credit: int = 2
    threads: int | None = None
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tf32: bool | None = None
    record: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of an executor: complete iterations; (iteration, op, lane) of the running ops; the
    waits for other hosts."""

    completed: int
    running: tuple[tuple[int, str, str], ...] = ()
    waits: tuple[Wait, ...] = ()


_LEAVE = 1.0
"""Seconds after a failure for a thread that may be sending to a lost host. It is left alone then:
nothing ends a send, and threads do not keep the process alive."""


class Executor:
    """One execution of a program on this machine.

    `states` gives the value of every state at iteration `start`, `feeds` that of every input. The
    executor owns the tensors of the states: it writes over them. Its threads start with the first
    iteration that may run, and end with `close`. The executor of one of several workers has a
    `seat` among them.
    """

    def __init__(
        self,
        program: Program,
        *,
        states: Mapping[str, Tensor],
        feeds: Mapping[str, Tensor] | None = None,
        start: int = 0,
        settings: Settings | None = None,
        exchange: Exchange | None = None,
        seat: Seat | None = None,
    ) -> None:
        settings = settings or Settings()
        credit, plan = settings.credit, program.plan
        self.graph, self.plan, self.settings = program.graph, plan, settings
        self.threads = settings.threads or threads_of_all()
        self._exchange = exchange
        self.core: Core | HostCore | Seat
        if seat is not None:
            self.core = seat
        elif exchange is not None:
            self.core = exchange.open(plan, start=start, credit=credit)
        else:
            self.core = Core(plan, start=start, credit=credit)
        self.buffers = Buffers(
            program, states=states, feeds=feeds or {}, start=start, credit=credit
        )
        gpus = any(is_gpu(location) for location, _ in plan.stations)
        self._streams = Streams(self.buffers, start=start, record=settings.record) if gpus else None
        run: Callable[[int], None] = (
            self.buffers.run if self._streams is None else self._streams.run
        )
        self._run = run if exchange is None else exchange.running(run)
        if seat is not None:
            self._run = seat.running(self.buffers)
            if exchange is not None:
                self._run = exchange.running(self._run)
        self._seat = seat
        self._recording = settings.record
        self._results: dict[int, Mapping[str, Fetched]] = {}
        self._collected = start
        self._failure: RunError | None = None
        self._holds = self._stopped = self._left_out = False
        self._process = os.getpid()
        self._lock = threading.Lock() if seat is None else seat.lock
        self._host = threading.Condition(self._lock) if seat is None else seat.host
        self._threads: list[threading.Thread] = []
        self._make_queues()

    def _make_queues(self) -> None:
        """A queue for each thread, and for each op the number of its thread and its priority."""
        stations, station_of = self.plan.stations, self.plan.station
        waits = self._exchange is not None and not self._exchange.transport.prompt
        own = 0 if waits else len(available())
        self._workers, worker_of = threads_of_lanes(stations, self.settings.cores, own=own)
        numbers = [worker_of[station] for station in station_of]
        self._receiver: int | None = None
        count = len(self._workers)
        self._alone = False
        """Whether the thread that computes also puts and receives."""
        if self._exchange is not None:
            self._alone = len(self._workers) == 1 and self._exchange.transport.prompt
            exchange = self._exchange
            self._receiver = with_peers(
                self._workers,
                numbers,
                exchange.host,
                exchange.peers,
                exchange.ends,
                alone=self._alone,
                inline=waits and len(available()) == 1,
            )
        self._serves = self._receiver is not None and self._receiver < count
        """Whether the thread that receives runs ops of a lane too."""
        self._worker_of = tuple(numbers)
        """By op its thread; -1 where the thread that is free first takes it."""
        self._pool: Pool | None = None
        if -1 in numbers:
            lanes = [number if numbers[op] < 0 else -1 for op, number in enumerate(station_of)]
            floating = {at for at, lane in stations if floats(lane)}
            takers = [
                n
                for n, (at, lane) in enumerate(self._workers)
                if lane == "compute" and at in floating
            ]
            self._pool = Pool(lanes, takers)
        shared = self._alone or len(self._workers) < len(stations)
        self._later = tuple(
            COMPUTE if shared and computes(stations[station][1]) else 0 for station in station_of
        )
        # A lane sleeps by acquiring its bell, and whoever has work for it releases the bell. That
        # costs half of a condition variable, and hops dominate a graph of small ops.
        self._bells = [threading.Lock() for _ in self._workers]
        for bell in self._bells:
            bell.acquire()
        self._rings = [bell.release for bell in self._bells]
        if self._exchange is not None and self._receiver is not None:
            self._rings[self._receiver] = self._exchange.transport.wake
        self._running: list[int | None] = [None] * len(self._workers)
        """By thread the token that it runs."""
        self._asleep = [index == self._receiver for index in range(len(self._workers))]
        self._queues: list[list[int]] = [[] for _ in self._workers]
        self._records: list[list[tuple[int, int, int]]] = [[] for _ in self._workers]

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        """Start the threads, once. Holds the lock."""
        if self._threads or self._stopped:
            return
        self._left_out = leave_out()
        for index, (location, lane) in enumerate(self._workers):
            name = f"{location} {lane}"
            target = self._receive if index == self._receiver else self._lane
            thread = threading.Thread(target=target, args=(index,), name=name, daemon=True)
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()
        if self._alone:
            threading.Thread(target=self._beat, name="signs of life", daemon=True).start()

    def extend(self, limit: int) -> None:
        """Let iterations below `limit` run."""
        if self.settings.tf32 is not None:
            hold(self.settings.tf32)
        with self._lock:
            if self._holds:
                let_go()  # one is enough
            self._holds = self.settings.tf32 is not None
            self._push(self.core.extend(limit))
            self._start()
            self._let_go_if_idle()

    def _push(self, tokens: Iterable[int]) -> None:
        """Give tokens to their threads. Holds the lock."""
        for token in tokens:
            op = token % self.core.size
            worker = self._worker_of[op]
            if worker < 0:
                self._float(token)
                continue
            if self._alone:  # a thread that does everything puts values at once, in no order
                token &= TOKEN
            heappush(self._queues[worker], token + self._later[op])
            self._ring(worker)

    def _float(self, token: int) -> None:
        """Give a token of a floating lane to the thread that has its turn, or offer it to all."""
        pool = self._pool
        assert pool is not None
        worker = pool.owner(token)
        if worker is None:
            pool.offer(token)
            worker = next(
                (n for n, asleep in enumerate(self._asleep) if asleep and pool.wants(n)), None
            )
        else:
            heappush(self._queues[worker], token + self._later[token % self.core.size])
        if worker is not None:
            self._ring(worker)

    def wait(self, iteration: int) -> dict[str, Tensor]:
        """The outputs of an iteration, once all of it is complete."""
        with self._lock:
            while iteration not in self._results:
                self._raise_if_stopped()
                self._host.wait()
            self._results.pop(iteration - 1, None)
            outputs = self._results[iteration]
        with self._gpu_errors():
            values = on_host(outputs)
        self._raise_if_abandoned()
        return values

    def drain(self) -> int:
        """Wait until everything that may run has run; returns the number of complete iterations."""
        with self._lock:
            while not self.core.idle:
                self._raise_if_stopped()
                self._host.wait()
            completed = self.core.completed
        if self._streams is not None:
            with self._gpu_errors():
                self._streams.synchronize()
        self._raise_if_abandoned()
        return completed

    def states(self) -> dict[str, Tensor]:
        """The values of all states after `drain`: not copies, they change when the run goes on."""
        assert self.core.idle
        return self.buffers.states(self.core.completed)

    def trace(self) -> Trace:
        """The events recorded so far."""
        recorded = [
            (self._workers[worker][0], item)
            for worker, records in enumerate(self._records)
            for item in list(records)
        ]
        events, edges = [], list(edges_of(self.graph))
        if self._streams is not None:
            recorded = [(at, item) for at, item in recorded if not self._on_gpu(item[0])]
            times, reads = self._streams.times() if self._failure is None else ([], [])
            events += [self._event(*item) for item in times]
            for token, blob, begin, end in reads:
                writer = self._event(token, begin, end)
                event = replace(writer, op=f"{blob}@host", kind=FETCH, lane=OUTBOUND)
                events.append(event)
                edges.append((writer.op, event.op, 0))
        events += [self._event(*item, ran_at) for ran_at, item in recorded]
        return Trace(tuple(events), tuple(dict.fromkeys(edges)))

    def end_trace(self) -> Trace:
        """The events recorded so far; from now on nothing is recorded."""
        self._recording, trace = False, self.trace()
        for records in self._records:
            records.clear()
        return trace

    def close(self) -> None:
        """Stop all lanes after the ops they are running; values stay readable."""
        if os.getpid() != self._process:
            return  # a forked child has no threads, and locks in their state at the fork
        with self._lock:
            self._stop()
            if self._exchange is not None and not self.core.idle:
                self._exchange.abandon()
        stuck = self._exchange is not None and (
            self._failure is not None or self._exchange.meets or bool(self._exchange.losses())
        )
        ends = monotonic() + _LEAVE
        for thread in self._threads:
            thread.join(max(0.0, ends - monotonic()) if stuck else None)
        if self._exchange is not None:
            self._exchange.close()
        with self._lock:
            self._let_go_if_idle()
            if self._left_out:
                self._left_out = False
                take_in()
        if self._streams is not None and self._failure is None:
            with self._gpu_errors():
                self._streams.synchronize()

    @contextmanager
    def _gpu_errors(self) -> Iterator[None]:
        """The block in which the host waits for GPUs, which may report the error of an earlier
        op."""
        try:
            yield
        except RuntimeError as error:
            with self._lock:
                self._fail(_gpu_error(error))
            self._raise_if_abandoned()
            raise _gpu_error(error) from error

    def _on_gpu(self, token: int) -> bool:
        return is_gpu(self.graph.ops[self.plan.ops[token % self.core.size]].location)

    def _event(self, token: int, begin: int, end: int, ran_at: Location | None = None) -> Event:
        iteration, index = divmod(token, self.core.size)
        op = self.graph.ops[self.plan.ops[index]]
        location, lane = op.location, op.lane
        if floats(lane) and ran_at is not None:
            location, lane = ran_at, "compute"
        return Event(op.name, op.kind, iteration, str(location), lane, begin, end)

    def _settle(self, worker: int) -> None:
        """Apply the settings that the kernels of the lane of the calling thread need."""
        location, lane = self._workers[worker]
        peers = () if self._exchange is None else self._exchange.peers
        cores = () if location.host in peers else self.settings.cores.get(location.device, ())
        pin(cores)
        set_kernel_threads((len(cores) or self.threads) if lane.startswith("compute") else 1)
        keep_order()

    def _lane(self, worker: int) -> None:
        self._settle(worker)
        lock, bell = self._lock, self._bells[worker]
        with torch.no_grad():
            with lock:
                token = self._next(worker)
            while not self._stopped:
                if token is None:
                    bell.acquire()
                    with lock:
                        token = self._next(worker)
                    continue
                try:
                    self._run_from(worker, token)
                except BaseException as error:
                    with lock:
                        self._fail(error)
                token = None

    def _receive(self, worker: int) -> None:
        """The thread that waits for other hosts; if it is the only one, it also runs all ops."""
        exchange, queue = self._exchange, self._queues[worker]
        assert exchange is not None
        if self._serves:
            self._settle(worker)
        with torch.no_grad():
            while not self._stopped:
                try:
                    events = exchange.wait()
                    with self._lock:
                        self._asleep[worker] = False
                        self._push(exchange.take(events))
                        token = heappop(queue) & TOKEN if queue else self._next(worker)
                    if token is not None:
                        self._run_from(worker, token)
                except BaseException as error:
                    with self._lock:
                        self._fail(error)

    def _beat(self) -> None:
        """Send heartbeats to the other hosts, also while a kernel takes long."""
        exchange = self._exchange
        assert exchange is not None
        while not exchange.pause() and not self._stopped:
            exchange.completed()

    def _next(self, worker: int) -> int | None:
        """The next token of a lane; without one the lane sleeps from now on. Holds the lock."""
        queue = self._queues[worker]
        if self._stopped:
            return None
        if not queue and self._pool is not None:
            for token in self._pool.take(worker):
                heappush(queue, token + self._later[token % self.core.size])
        if queue:
            return heappop(queue) & TOKEN
        self._asleep[worker] = True
        if self._exchange is None and all(self._asleep) and not self.core.idle:
            self._fail(_stall(self.core, self.graph))
        return None

    def _ring(self, worker: int) -> None:
        """Wake a lane that sleeps. Holds the lock."""
        if self._asleep[worker]:
            self._asleep[worker] = False
            self._rings[worker]()

    def _run_from(self, worker: int, token: int | None) -> None:
        """Run a token and then, in line, the next tokens of this lane until none is ready."""
        lock, core, worker_of, size = self._lock, self.core, self._worker_of, self.core.size
        run, release, complete = self._run, self.buffers.release, core.complete
        queues, asleep, later = self._queues, self._asleep, self._later
        queue, running = queues[worker], self._running
        record = self._records[worker] if self.settings.record else None
        pool, alone = self._pool, self._exchange if self._alone else None
        plain = pool is None and alone is None
        while token is not None:
            running[worker] = token
            if record is None:
                run(token)
            else:
                if self._streams is not None:
                    self._streams.wait(token)
                begin = perf_counter_ns()
                run(token)
                if self._recording:
                    record.append((token, begin, perf_counter_ns()))
            events = alone and alone.wait(0)
            with lock:
                release(token)
                ready = complete(token)
                if core.completed != self._collected:
                    self._collect()
                if plain:  # what `_push` does, without its calls
                    for item in ready:
                        op = item % size
                        target = worker_of[op]
                        heappush(queues[target], item + later[op])
                        if asleep[target]:
                            self._ring(target)
                else:
                    if alone is not None and events:
                        self._push(alone.take(events))
                    if pool is not None and worker_of[token % size] < 0:
                        pool.complete(token)
                    self._push(ready)
                ready_here = queue and not self._stopped
                token = heappop(queue) & TOKEN if ready_here else self._next(worker)
        running[worker] = None

    def activity(self) -> Activity:
        """The running ops and the waits of all lanes at this moment."""
        with self._lock:
            exchange, size = self._exchange, self.core.size
            waits = () if exchange is None else tuple(exchange.waits())
            running = []
            for (location, lane), token in zip(self._workers, self._running, strict=True):
                if token is not None and not (exchange and token % size in exchange.away):
                    iteration, op = divmod(token, size)
                    running.append((iteration, self.plan.ops[op], f"{location.device} {lane}"))
            return Activity(self.core.completed, tuple(running), waits)

    def _collect(self) -> None:
        """Take the outputs of the iterations that became complete. Holds the lock."""
        while self._collected < self.core.completed:
            outputs: Mapping[str, Fetched] = self.buffers.collect(self._collected)
            if self._streams is not None:
                outputs = self._streams.collect(self._collected, outputs)
            self._results[self._collected] = outputs
            self._collected += 1
        if self._exchange is not None:
            self._exchange.completed()
        self._let_go_if_idle()
        self._host.notify_all()

    def _let_go_if_idle(self) -> None:
        """Release torch's settings if no iteration is in flight. Holds the lock."""
        if self._holds and (self._stopped or self.core.idle):
            self._holds = False
            let_go()

    def _raise_if_stopped(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            what, expected, found = "the lanes have ended", "a run that is going on", "a closed one"
            raise RunError(what, expected=expected, found=found, remedy="call steps again")

    def _raise_if_abandoned(self) -> None:
        """Raise the failure after which GPUs no longer waited for other hosts."""
        if self._exchange is not None and self._exchange.abandoned:
            with self._lock:
                self._raise_if_stopped()

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, stop, and wake all threads. Holds the lock."""
        if self._failure is None:
            self._failure = error if isinstance(error, RunError) else _unexpected(error)
        if self._exchange is not None:
            self._exchange.abandon()
        self._stop()
        if self._seat is not None:
            self._seat.failed(self._failure)
        self._let_go_if_idle()

    def _stop(self) -> None:
        """Stop, and wake all threads. Holds the lock."""
        self._stopped = True
        for worker in range(len(self._bells)):
            self._ring(worker)
        self._host.notify_all()


def _stall(core: Core | HostCore | Seat, graph: Graph) -> StallError:
    waiting, producers = core.waiting(), graph.producers
    lines = []
    for iteration, name, _ in waiting[:5]:
        op = graph.ops[name]
        needs = (f"{blob} from {producers[blob].name}" for blob in op.inputs if blob in producers)
        waits = f"op {name!r} at {op.location} in iteration {iteration} waits for "
        lines.append(waits + ", ".join(needs))
    return StallError(
        f"no op can run and iteration {core.completed} is not complete",
        expected="every op to become ready",
        found="; ".join(lines) + (f"; and {len(waiting) - 5} more" if len(waiting) > 5 else ""),
        remedy="check the graph: verify finds cycles over data and control edges",
    )


def _gpu_error(error: RuntimeError) -> RunError:
    message = str(error).strip() or type(error).__name__
    return RunError(
        f"a GPU failed: {message.splitlines()[0]}",
        expected="ops that end",
        found=f"{type(error).__name__}, told after the op was enqueued",
        remedy="run again with CUDA_LAUNCH_BLOCKING=1 to see the op; the last checkpoint is intact",
    )


def _unexpected(error: BaseException) -> RunError:
    failure = RunError(f"the dispatcher failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
