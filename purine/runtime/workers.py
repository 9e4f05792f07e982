"""Running the workers of a graph: an executor for each, around one core and one store.

The store holds the newest version of every shared state. A fetch or push gets the version from it
when it begins, under the lock that guards all executors; a complete push stores its result. So a
version lives as long as it has readers. A push writes over a version without readers, and over a
copy of one that still has some.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from torch import Tensor

from purine.analysis.aliasing import Aliasing
from purine.core import Core
from purine.dispatch.host_core import HostCore
from purine.errors import ConfigError, HostLostError, RunError
from purine.graph import Graph
from purine.lowering import Options, lower, options_for
from purine.registry.kind import Kernel
from purine.runtime.buffers import Buffers
from purine.runtime.couriers import posts_of
from purine.runtime.executor import Activity, Executor, Settings
from purine.runtime.members import Finished, Member, member_of
from purine.runtime.program import Program, compile_program
from purine.runtime.record import Record
from purine.runtime.workers_core import WorkersCore
from purine.trace.events import Read
from purine.trace.trace import Trace
from purine.transports.base import Transport

__all__ = ["Reached", "Workers"]

_LOOK = 0.01
"""Seconds between two looks at a shared state that is being changed."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The number of complete iterations: of all workers together, and of each."""

    all: int = 0
    each: tuple[int, ...] = ()


@dataclass
class _Tracing:
    """What a trace has beside the events of the executors that are here."""

    records: bool
    writers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By shared state the op that pushed its newest version, and the iteration."""
    reads: list[Read] = field(default_factory=list)
    left: Trace = field(default_factory=Trace)
    """What the couriers that go no more have recorded."""

    def took(self, op: str, iteration: int, names: Iterable[str]) -> None:
        """Note whose versions of shared states an op takes."""
        for writer in dict.fromkeys(map(self.writers.get, names)):
            if writer is not None:
                self.reads.append((*writer, op, iteration))


class Workers:
    """One execution of the workers of a graph, in place of an `Executor`.

    `parts` are their graphs, by their numbers in the whole graph; from here on a worker is numbered
    by its index among these. `states` gives the value of every state; of a shared one, under any of
    its names. `reached` is where it begins. With `single`, ops run one by one. With `replay` all
    recorded events are repeated in the same order. Of a graph on several hosts it is the execution
    of `host`. Its couriers, which have posts, have no program before they start.
    """

    def __init__(
        self,
        parts: Mapping[int, Graph],
        states: Mapping[str, Tensor],
        sources: Mapping[str, Kernel],
        settings: Settings,
        *,
        single: bool,
        digest: str,
        reached: Reached,
        replay: Record | None = None,
        host: str = "",
    ) -> None:
        self.posts = posts_of(parts, host)
        self._numbers = tuple(parts)
        programs: dict[int, Program] = {}
        members: list[Member] = []
        for worker, part in enumerate(parts.values()):
            if worker in self.posts:
                members.append(self.posts[worker].member)
            else:
                programs[worker], member = _compiled(part, sources, single=single)
                members.append(member)
        self.lock = threading.Lock()
        self.host = threading.Condition(self.lock)
        starts = reached.each or (0,) * len(parts)
        self.core = WorkersCore(
            members,
            start=reached.all,
            starts=starts,
            credit=settings.credit,
            replay=replay,
            digest=digest,
            carriers={courier: post.carrier for courier, post in self.posts.items()},
        )
        self._cuts = None if replay is None else replay.cuts
        self._failure: RunError | None = None
        self._process = os.getpid()
        graphs = [one.graph for one in programs.values()] + [p.plain for p in self.posts.values()]
        every = [item for graph in graphs for item in graph.states.items()]
        self._shared = {name: state.shared for name, state in every if state.shared}
        self.store: dict[str, Tensor] = {}
        """The newest version of each shared state. A push replaces it or writes over it."""
        self.tracing = _Tracing(records=settings.record)
        for name, shared in self._shared.items():
            self.store.setdefault(shared, states[name])
        self._settings = settings
        self._first = {courier: post.states(states) for courier, post in self.posts.items()}
        self._leaving: dict[int, threading.Thread] = {}
        """By courier that goes no more the thread that ends its lanes."""
        self._executors: dict[int, Executor] = {}
        for worker, program in programs.items():
            own = program.graph.states
            self._executors[worker] = Executor(
                program,
                states={n: v for n, v in states.items() if n in own and n not in self._shared},
                start=starts[worker],
                settings=settings,
                seat=_Seat(self, worker, program),
            )

    @property
    def executors(self) -> list[Executor]:
        """The executors of all workers, and of the couriers that run."""
        return list(self._executors.values())

    def occupy(self, courier: int, transport: Transport | None) -> None:
        """Start a courier, over a transport that connects with the other end meanwhile."""
        leaving = self._leaving.get(courier)
        if leaving is not None:
            leaving.join()
        program, exchange = self.posts[courier].connected(transport)
        if exchange is None:
            core: Core | HostCore = Core(program.plan, credit=1)
        else:
            core = exchange.open(program.plan, start=0, credit=1)
        states = {name: value.clone() for name, value in self._first[courier].items()}
        with self.lock:
            self._raise_if_stopped()
            self.core.cores[courier] = core
            # Rounds count from 0 in each life of a worker, and a trace has one of them.
            record = leaving is None and self.tracing.records
            self._executors[courier] = executor = Executor(
                program,
                states=states,
                settings=replace(self._settings, credit=1, record=record),
                exchange=exchange,
                seat=_Seat(self, courier, program),
            )
            self._push(self.core.occupy(courier, core))
            executor._start()
            self.host.notify_all()

    def lost(self, courier: int) -> None:
        """A worker on another host is gone, so its courier stops. Holds the lock."""
        executor = self._executors.pop(courier, None)
        if executor is not None:
            self._push(self.core.vacate(courier))
            end = threading.Thread(target=self._end, args=(executor,), name="leaving", daemon=True)
            self._leaving[courier] = end
            end.start()
            self.host.notify_all()

    def _end(self, executor: Executor) -> None:
        """End the lanes of a courier that has stopped."""
        executor.close()
        with self.lock:
            self.tracing.left += executor.trace()

    @property
    def begun(self) -> int:
        """The number of rounds that the running couriers have begun."""
        with self.lock:
            return sum(self.core.cores[courier].opened for courier in self.posts)

    @property
    def carried(self) -> int:
        """The number of iterations of all workers that the rounds so far stand for."""
        return sum(carrier.rounds * carrier.pace for carrier in self.core.carriers.values())

    def away(self, courier: int) -> bool:
        """Whether a courier does not run."""
        return courier not in self._executors

    def _push(self, tokens: Iterable[tuple[int, int]]) -> None:
        """Give tokens to the executors of their workers. Holds the lock."""
        for worker, token in tokens:
            executor = self._executors.get(worker)
            if executor is not None:
                executor._push((token,))

    def extend(self, limit: int) -> None:
        """Let workers open iterations while fewer than `limit` of them all are open.

        A replay continues to a cut: only there its states are those of the recorded run.
        """
        if self._cuts is not None:
            limit = self._next_cut(limit)
        with self.lock:
            self._push(self.core.extend(limit))
            for executor in self.executors:
                executor._start()

    def _next_cut(self, limit: int) -> int:
        assert self._cuts is not None
        cut = next((cut for cut in self._cuts if cut >= limit), None)
        if cut is None:
            what, found = "the record to replay ends before", f"iteration {limit}"
            expected = f"at most {self._cuts[-1]} iterations"
            raise ConfigError(what, expected, found, "ask for fewer steps")
        return cut

    def wait(self) -> tuple[Finished, dict[str, Tensor]]:
        """The next complete iteration of any worker, and its outputs."""
        with self.lock:
            while not self.core.finished:
                self._raise_if_stopped()
                self.host.wait()
            done = self.core.finished.popleft()
        outputs = self._executors[done.worker].wait(done.iteration)
        return replace(done, worker=self._numbers[done.worker]), outputs

    def drain(self) -> int:
        """Wait until everything that may run has run; returns the number of complete iterations."""
        with self.lock:
            while not self.core.idle:
                self._raise_if_stopped()
                self.host.wait()
            while not self.core.carried:
                self._raise_if_stopped()
                self._push(self.core.flush())
                self.host.wait()
            self.core.cut()
            return self.core.completed

    def pause(self, seconds: float) -> None:
        """Wait until an event, or for some time."""
        with self.lock:
            self._raise_if_stopped()
            self.host.wait(seconds)

    def states(self) -> dict[str, Tensor]:
        """The values of all states after `drain`: not copies, they change when the run goes on."""
        own = {n: v for first in self._first.values() for n, v in first.items()}
        for worker, executor in self._executors.items():
            if worker not in self.posts:
                own |= executor.states()
        if not self.posts:
            return own | {name: self.store[shared] for name, shared in self._shared.items()}
        copies = {shared: self._copied(shared) for shared in dict.fromkeys(self._shared.values())}
        return own | {name: copies[shared] for name, shared in self._shared.items()}

    def _copied(self, shared: str) -> Tensor:
        """A copy of a shared state while couriers may change it."""
        with self.lock:
            while self.core.locked(shared):
                self._raise_if_stopped()
                self.host.wait(_LOOK)
            return self.store[shared].clone()

    @property
    def reached(self) -> Reached:
        """The iterations that are complete now."""
        own = (core for number, core in enumerate(self.core.cores) if number not in self.posts)
        return Reached(self.core.completed, tuple(core.completed for core in own))

    @property
    def record(self) -> Record:
        """The events since the start."""
        return self.core.record

    def trace(self) -> Trace:
        """The events recorded so far."""
        trace = self.tracing.left
        for executor in self.executors:
            trace += executor.trace()
        return replace(trace, reads=tuple(self.tracing.reads))

    def end_trace(self) -> Trace:
        """The events recorded so far; from now on nothing is recorded."""
        with self.lock:
            leaving = list(self._leaving.values())
        for thread in leaving:
            thread.join()  # it keeps what its courier has recorded
        with self.lock:
            trace, reads = self.tracing.left, tuple(self.tracing.reads)
            for executor in self.executors:
                trace += executor.end_trace()
            self.tracing = _Tracing(records=False)
        return replace(trace, reads=reads)

    def activity(self) -> Activity:
        """The running ops of all lanes at this moment."""
        running = [op for executor in self.executors for op in executor.activity().running]
        return Activity(self.core.completed, tuple(running))

    def close(self) -> None:
        """Stop all lanes after the ops they are running; values stay readable."""
        if os.getpid() != self._process:
            return
        with self.lock:
            for executor in self.executors:
                executor._stop()
        for executor in self.executors:
            executor.close()

    def asleep(self) -> bool:
        """Whether all lanes of all workers are. Holds the lock."""
        return all(all(executor._asleep) for executor in self.executors)

    def failed(self, failure: RunError) -> None:
        """Stop all executors. Holds the lock."""
        if self._failure is None:
            self._failure = failure
        for executor in self.executors:
            if not executor._stopped:
                executor._stop()

    def _raise_if_stopped(self) -> None:
        if self._failure is not None:
            raise self._failure
        for executor in self.executors:
            executor._raise_if_stopped()


def _compiled(
    part: Graph, sources: Mapping[str, Kernel], *, single: bool
) -> tuple[Program, Member]:
    """The program of a worker, and what it does to shared states."""
    lowered = lower(part, Options() if single else options_for(part))
    program = compile_program(lowered, sources)
    family = Aliasing(lowered.unsegmented or lowered.graph).family
    return program, member_of(lowered.graph, program.plan, family)


class _Seat:
    """The place of one worker's executor; see `Seat`."""

    def __init__(self, workers: Workers, worker: int, program: Program) -> None:
        """The core of the worker is there already."""
        self._workers, self._worker = workers, worker
        self._core = workers.core
        self._own = workers.core.cores[worker]
        self._member = workers.core.members[worker]
        self.lock, self.host = workers.lock, workers.host
        self.plan, self.size = self._own.plan, self._own.size
        graph, ops = program.graph, self._own.plan.ops
        self._reads = {
            op: [
                (number, graph.states[name].shared)
                for (reader, name), number in program.versions.items()
                if reader == ops[op]
            ]
            for op in (*self._member.fetches, *self._member.pushes)
        }
        self._writes = {
            op: [
                (name, state.shared)
                for name, state in graph.states.items()
                if state.shared in names and state.next in graph.ops[ops[op]].outputs
            ]
            for op, names in self._member.pushes.items()
        }
        self._buffers: Buffers

    @property
    def completed(self) -> int:
        return self._own.completed

    @property
    def opened(self) -> int:
        return self._own.opened

    @property
    def idle(self) -> bool:
        return self._core.idle or bool(self._workers.posts) or not self._workers.asleep()

    def extend(self, limit: int) -> NoReturn:
        raise AssertionError("workers are extended together")

    def running(self, buffers: Buffers) -> Callable[[int], None]:
        self._buffers = buffers
        reads, size, run = self._reads, self.size, buffers.run

        def running(token: int) -> None:
            if token % size in reads:
                self._supply(token)
            run(token)

        return running

    def _supply(self, token: int) -> None:
        """Give a fetch or a push that begins the newest versions. Takes the lock."""
        iteration, op = divmod(token, self.size)
        if not self._member.runs(op, iteration):
            return
        with self.lock:
            over = self._core.start(self._worker, token)
            store = self._workers.store
            versions = [(number, name, store[name]) for number, name in self._reads[op]]
            if self._workers.tracing.records:
                names = [name for _, name in self._reads[op]]
                self._workers.tracing.took(self.plan.ops[op], iteration, names)
        pushes = op in self._member.pushes
        for number, name, version in versions:
            copied = pushes and name not in over
            self._buffers.put(iteration, number, version.clone() if copied else version)

    def complete(self, token: int) -> list[int]:
        op = token % self.size
        if self._own is not self._core.cores[self._worker]:
            return []  # another life of the courier has begun
        if op in self._writes:
            self._store(op, token // self.size)
        ready, others = [], []
        for item in self._core.complete(self._worker, token):
            if item[0] == self._worker:
                ready.append(item[1])
            else:
                others.append(item)
        self._workers._push(others)
        if self._core.finished or self._core.idle or self._worker in self._workers.posts:
            self.host.notify_all()
        return ready

    def _store(self, op: int, iteration: int) -> None:
        """Put the result of a push into the store."""
        if self._member.runs(op, iteration):
            for name, shared in self._writes[op]:
                self._workers.store[shared] = self._buffers.take(iteration + 1, name)
                self._workers.tracing.writers[shared] = self.plan.ops[op], iteration

    def waiting(self) -> list[tuple[int, str, int]]:
        return self._core.waiting(self._worker)

    def failed(self, failure: RunError) -> None:
        carrier = self._core.carriers.get(self._worker)
        if carrier is not None and carrier.of is None and isinstance(failure, HostLostError):
            self._workers.lost(self._worker)
        else:
            self._workers.failed(failure)
