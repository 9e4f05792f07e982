"""Running a program: a thread per CPU lane, and one for all GPUs, around one core.

A lane runs the next ready op itself, in line; only an op of another lane costs a hop between
threads. One lock guards the core and the queues and is held for microseconds; kernels run outside
of it, and torch's kernels release the interpreter's lock as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from purine.compile.script import keep_order
from purine.core import Core, Station, compile_plan
from purine.errors import RunError, StallError
from purine.graph import Graph, Location, Op
from purine.lowering.aliases import without_aliases
from purine.lowering.collectives import without_collectives
from purine.lowering.packing import with_packed_filters
from purine.lowering.segments import Segmented, joined
from purine.lowering.shares import in_shares
from purine.machine.cores import pin, threads_of_all
from purine.machine.settings import hold, let_go
from purine.machine.threads import set_kernel_threads
from purine.registry.kind import Kernel
from purine.runtime.buffers import Buffers
from purine.runtime.program import compile_program
from purine.runtime.streams import OUTBOUND, Streams, is_gpu
from purine.trace.events import FETCH, Event
from purine.trace.trace import Trace, edges_of

__all__ = ["Executor"]


_COMPUTE = 1 << 62
_TOKEN = _COMPUTE - 1
"""A queue holds tokens, and those of compute lanes with a bit more where others go before them."""


class Executor:
    """One execution of a graph on this machine.

    `states` gives the value of every state at iteration `start`, `feeds` that of every input, the
    same in all iterations. The executor owns the states' tensors: it writes over them. `credit`
    bounds the iterations in flight. `cores` are those of each device; a compute lane uses as many
    threads as its device has cores, or `threads` where the device has no cores of its own. With
    `segments` ops of a lane are dispatched together where they can be. `fused` makes the kernels of
    fused ops. While iterations are in flight float32 products of GPUs are in `tf32` or are not;
    None leaves that to torch.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        states: Mapping[str, Tensor],
        sources: Mapping[str, Kernel] | None = None,
        feeds: Mapping[str, Tensor] | None = None,
        start: int = 0,
        credit: int = 2,
        threads: int | None = None,
        cores: Mapping[str, tuple[int, ...]] | None = None,
        segments: bool = False,
        fused: Callable[[Op], Kernel] | None = None,
        tf32: bool | None = None,
        record: bool = False,
    ) -> None:
        whole, kernels = without_aliases(graph), dict(sources or {})
        for prepare in (without_collectives, in_shares, with_packed_filters):
            prepared = prepare(whole)
            whole = prepared.graph
            kernels |= prepared.kernels
        found = joined(whole) if segments else Segmented(whole, {})
        self.graph = graph = found.graph
        self.plan = compile_plan(graph)
        self.core = Core(self.plan, start=start, credit=credit)
        self.buffers = Buffers(
            graph,
            self.plan,
            compile_program(
                graph,
                self.plan,
                kernels,
                whole=whole,
                members=found.members,
                fused=fused,
            ),
            states=states,
            feeds=feeds or {},
            start=start,
            credit=credit,
        )
        gpus = any(is_gpu(location) for location, _ in self.plan.stations)
        self._streams = (
            Streams(graph, self.plan, self.buffers, start=start, record=record) if gpus else None
        )
        self._run = self.buffers.run if self._streams is None else self._streams.run
        self.threads = threads or threads_of_all()
        self.cores = cores or {}
        self._tf32 = tf32
        self._holds = False
        self._results: dict[int, dict[str, Any]] = {}
        self._collected = start
        self._lock = threading.Lock()
        self._host = threading.Condition(self._lock)
        # A lane sleeps by acquiring its bell, which whoever finds it asleep releases: half the cost
        # of a condition variable, and hops between lanes are what a graph of small ops pays for.
        self._workers, place = _workers(self.plan.stations, self.cores)
        self._place = tuple(place[station] for station in self.plan.station)
        # Where lanes share a thread, compute comes after the others: somebody else waits for those.
        shared = len(self._workers) < len(self.plan.stations)
        self._later = tuple(
            _COMPUTE if shared and self.plan.stations[station][1].startswith("compute") else 0
            for station in self.plan.station
        )
        self._bells = [threading.Lock() for _ in self._workers]
        for bell in self._bells:
            bell.acquire()
        self._asleep = [False for _ in self._workers]
        self._queues: list[list[int]] = [[] for _ in self._workers]
        self._failure: RunError | None = None
        self._stopped = False
        self._process = os.getpid()
        self._record = record
        self._records: list[list[tuple[int, int, int]]] = [[] for _ in self._workers]
        self._threads = [
            threading.Thread(target=self._lane, args=(index,), name=f"{place} {lane}", daemon=True)
            for index, (place, lane) in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def extend(self, limit: int) -> None:
        """Let iterations below `limit` run."""
        if self._tf32 is not None:
            hold(self._tf32)
        with self._lock:
            if self._holds:
                let_go()  # one is enough
            self._holds = self._tf32 is not None
            for token in self.core.extend(limit):
                op = token % self.core.size
                worker = self._place[op]
                heappush(self._queues[worker], token + self._later[op])
                self._ring(worker)
            self._let_go_if_idle()

    def wait(self, iteration: int) -> dict[str, Tensor]:
        """The outputs of an iteration, once all of it is complete."""
        with self._lock:
            while iteration not in self._results:
                self._raise_if_stopped()
                self._host.wait()
            self._results.pop(iteration - 1, None)
            found = self._results[iteration]
        if self._streams is not None:
            with self._gpus_answering():
                found = self._streams.settle(found)
        return found

    def drain(self) -> int:
        """Wait until everything that may run has run; returns the number of complete iterations."""
        with self._lock:
            while not self.core.idle:
                self._raise_if_stopped()
                self._host.wait()
            completed = self.core.completed
        if self._streams is not None:
            with self._gpus_answering():
                self._streams.synchronize()
        return completed

    def states(self) -> dict[str, Tensor]:
        """The values of all states after `drain`: not copies, they change when the run goes on."""
        assert self.core.idle
        return self.buffers.states(self.core.completed)

    def trace(self) -> Trace:
        """What was recorded so far."""
        recorded = [item for records in self._records for item in list(records)]
        events, edges = [], list(edges_of(self.graph))
        if self._streams is not None:
            recorded = [item for item in recorded if not self._on_gpu(item[0])]
            times, reads = self._streams.times() if self._failure is None else ([], [])
            recorded += times
            for token, blob, begin, end in reads:
                made = self._event(token, begin, end)
                event = replace(made, op=f"{blob}@host", kind=FETCH, lane=OUTBOUND)
                events.append(event)
                edges.append((made.op, event.op, 0))
        events += [self._event(token, begin, end) for token, begin, end in recorded]
        return Trace(tuple(events), tuple(dict.fromkeys(edges)))

    def close(self) -> None:
        """Stop all lanes after the ops they are running; values stay readable."""
        if os.getpid() != self._process:
            return  # a forked child has none of the threads, and locks as they were at the fork
        with self._lock:
            self._stopped = True
            for worker in range(len(self._bells)):
                self._ring(worker)
            self._host.notify_all()
        for thread in self._threads:
            thread.join()
        with self._lock:
            self._let_go_if_idle()
        if self._streams is not None and self._failure is None:
            with self._gpus_answering():
                self._streams.synchronize()

    @contextmanager
    def _gpus_answering(self) -> Iterator[None]:
        """Wait for GPUs: they tell of what went wrong in an op at any later time."""
        try:
            yield
        except RuntimeError as error:
            with self._lock:
                self._fail(_late(error))
            raise _late(error) from error

    def _on_gpu(self, token: int) -> bool:
        return is_gpu(self.graph.ops[self.plan.ops[token % self.core.size]].location)

    def _event(self, token: int, begin: int, end: int) -> Event:
        iteration, index = divmod(token, self.core.size)
        op = self.graph.ops[self.plan.ops[index]]
        return Event(op.name, op.kind, iteration, str(op.location), op.lane, begin, end)

    def _lane(self, worker: int) -> None:
        location, lane = self._workers[worker]
        cores = self.cores.get(location.device, ())
        pin(cores)
        set_kernel_threads((len(cores) or self.threads) if lane.startswith("compute") else 1)
        keep_order()
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

    def _next(self, worker: int) -> int | None:
        """The next token of a lane; without one the lane is asleep from now on. Holds the lock."""
        queue = self._queues[worker]
        if self._stopped:
            return None
        if queue:
            return heappop(queue) & _TOKEN
        self._asleep[worker] = True
        if all(self._asleep) and not self.core.idle:
            self._fail(_stall(self.core, self.graph))
        return None

    def _ring(self, worker: int) -> None:
        """Wake a lane that sleeps. Holds the lock."""
        if self._asleep[worker]:
            self._asleep[worker] = False
            self._bells[worker].release()

    def _run_from(self, worker: int, token: int | None) -> None:
        """Run a token and then, in line, whatever is next on this lane until nothing is ready."""
        lock, place, size, queues = self._lock, self._place, self.core.size, self._queues
        run, release, complete = self._run, self.buffers.release, self.core.complete
        queue, asleep, later = queues[worker], self._asleep, self._later
        record = self._records[worker] if self._record else None
        while token is not None:
            if record is None:
                run(token)
            else:
                if self._streams is not None:
                    self._streams.wait(token)
                begin = perf_counter_ns()
                run(token)
                record.append((token, begin, perf_counter_ns()))
            with lock:
                release(token)
                ready = complete(token)
                if self.core.completed != self._collected:
                    self._collect()
                for item in ready:
                    op = item % size
                    target = place[op]
                    heappush(queues[target], item + later[op])
                    if asleep[target]:
                        self._ring(target)
                ready_here = queue and not self._stopped
                token = heappop(queue) & _TOKEN if ready_here else self._next(worker)

    def _collect(self) -> None:
        """Take the outputs of the iterations that became complete. Holds the lock."""
        while self._collected < self.core.completed:
            outputs = self.buffers.collect(self._collected)
            if self._streams is not None:
                outputs = self._streams.collect(self._collected, outputs)
            self._results[self._collected] = outputs
            self._collected += 1
        self._let_go_if_idle()
        self._host.notify_all()

    def _let_go_if_idle(self) -> None:
        """End the hold on torch's settings where nothing is in flight. Holds the lock."""
        if self._holds and (self._stopped or self.core.idle):
            self._holds = False
            let_go()

    def _raise_if_stopped(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise RunError(
                "the lanes have ended",
                expected="a run that is going on",
                found="one that was closed",
                remedy="call steps again",
            )

    def _fail(self, error: BaseException) -> None:
        """Note the first failure and wake everybody. Holds the lock."""
        if self._failure is None:
            self._failure = error if isinstance(error, RunError) else _unexpected(error)
        self._stopped = True
        self._let_go_if_idle()
        for worker in range(len(self._bells)):
            self._ring(worker)
        self._host.notify_all()


def _workers(
    stations: Sequence[Station], cores: Mapping[str, tuple[int, ...]]
) -> tuple[list[Station], list[int]]:
    """The lanes that get a thread, and which of these threads serves each lane.

    A device with a single core has a single thread for all its lanes. With more, one that holds
    the interpreter's lock would often wait for the core, and everybody else for the lock. All GPUs
    have one thread, which only enqueues.
    """
    workers: list[Station] = []
    serving: dict[Station, int] = {}
    for location, lane in stations:
        single = len(cores.get(location.device, ())) == 1
        key = (location, "compute" if single else lane)
        if is_gpu(location):
            key = (Location(location.host, "cuda:0"), "compute")
        if key not in serving:
            serving[key] = len(workers)
            workers.append(key)
        serving[location, lane] = serving[key]
    return workers, [serving[station] for station in stations]


def _stall(core: Core, graph: Graph) -> StallError:
    waiting = core.waiting()
    lines = []
    for iteration, name, _ in waiting[:5]:
        op = graph.ops[name]
        needs = ", ".join(
            f"{blob} from {graph.producers[blob].name}"
            for blob in op.inputs
            if blob in graph.producers
        )
        lines.append(f"op {name!r} at {op.location} in iteration {iteration} waits for {needs}")
    return StallError(
        f"no op can run and iteration {core.completed} is not complete",
        expected="every op to become ready in the end",
        found="; ".join(lines) + (f"; and {len(waiting) - 5} more" if len(waiting) > 5 else ""),
        remedy="check the graph: verify finds cycles over data and control edges",
    )


def _late(error: RuntimeError) -> RunError:
    said = str(error).strip() or type(error).__name__
    return RunError(
        f"a GPU failed: {said.splitlines()[0]}",
        expected="ops that end",
        found=f"{type(error).__name__}, told after the op was enqueued",
        remedy="run again with CUDA_LAUNCH_BLOCKING=1 to see the op; the last checkpoint is intact",
    )


def _unexpected(error: BaseException) -> RunError:
    failure = RunError(f"the dispatcher failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
