"""Running the workers of a graph: an executor for each, around one core and one store.

The store holds the newest version of every shared state. A fetch and a push get the version from
it when they begin, under the lock that guards all executors, and what a push made is put there when
it is complete. So a version lives as long as somebody reads it. A push writes over a version that
nobody reads, and over a copy of one that somebody does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from purine.analysis.aliasing import Aliasing
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.lowering import Options, lower, options_for
from purine.registry.kind import Kernel
from purine.runtime.buffers import Buffers
from purine.runtime.executor import Activity, Executor, Settings
from purine.runtime.program import Program, compile_program
from purine.runtime.record import Record
from purine.runtime.workers_core import Finished, Member, WorkersCore, member_of
from purine.trace.trace import Trace

__all__ = ["Reached", "Workers", "open_workers"]


def open_workers(
    parts: Sequence[Graph],
    states: Mapping[str, Tensor],
    sources: Mapping[str, Kernel],
    settings: Settings,
    *,
    single: bool,
    digest: str,
    reached: Reached,
    replay: Record | None = None,
) -> Workers:
    """The execution of a graph of which these are the workers; `single` runs ops one by one."""
    programs, members = [], []
    for part in parts:
        lowered = lower(part, Options() if single else options_for(part))
        program = compile_program(lowered, sources)
        programs.append(program)
        family = Aliasing(lowered.unsegmented or lowered.graph).family
        members.append(member_of(lowered.graph, program.plan, family))
    return Workers(
        programs,
        members,
        states=states,
        settings=settings,
        digest=digest,
        reached=reached,
        replay=replay,
    )


@dataclass(frozen=True, slots=True)
class Reached:
    """How many iterations are complete: of all workers together, and of each."""

    all: int = 0
    each: tuple[int, ...] = ()


class Workers:
    """One execution of the programs of all workers, in the place of an `Executor`.

    `states` gives the value of every state; of a shared one, that under any of its names. `reached`
    says where it begins. With `replay` everything that was recorded happens again in the same
    order.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        members: Sequence[Member],
        *,
        states: Mapping[str, Tensor],
        settings: Settings,
        digest: str,
        reached: Reached | None = None,
        replay: Record | None = None,
    ) -> None:
        reached = reached or Reached()
        self.lock = threading.Lock()
        self.host = threading.Condition(self.lock)
        starts = reached.each or (0,) * len(programs)
        self.core = WorkersCore(
            members,
            start=reached.all,
            starts=starts,
            credit=settings.credit,
            replay=replay,
            digest=digest,
        )
        self._cuts = None if replay is None else replay.cuts
        self._failure: RunError | None = None
        self._process = os.getpid()
        self._shared = {
            name: state.shared
            for program in programs
            for name, state in program.graph.states.items()
            if state.shared
        }
        self.store: dict[str, Tensor] = {}
        """The newest version of each shared state. A push replaces it or writes over it."""
        for name, shared in self._shared.items():
            self.store.setdefault(shared, states[name])
        self.seats = [_Seat(self, worker, program) for worker, program in enumerate(programs)]
        self.executors = [
            Executor(
                program,
                states={n: v for n, v in states.items() if n in own and n not in self._shared},
                start=begin,
                settings=settings,
                seat=seat,
            )
            for program, begin, seat in zip(programs, starts, self.seats, strict=True)
            for own in [program.graph.states]
        ]

    def extend(self, limit: int) -> None:
        """Let workers open iterations while fewer than `limit` of them all are open.

        A replay goes on to where nothing was in flight: only there its states are those of then.
        """
        if self._cuts is not None:
            limit = self._next_cut(limit)
        with self.lock:
            for worker, token in self.core.extend(limit):
                self.executors[worker]._push((token,))
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
        return done, self.executors[done.worker].wait(done.iteration)

    def drain(self) -> int:
        """Wait until everything that may run has run; returns the number of complete iterations."""
        with self.lock:
            while not self.core.idle:
                self._raise_if_stopped()
                self.host.wait()
            self.core.cut()
            return self.core.completed

    def states(self) -> dict[str, Tensor]:
        """The values of all states after `drain`: not copies, they change when the run goes on."""
        own = {n: v for executor in self.executors for n, v in executor.states().items()}
        return own | {name: self.store[shared] for name, shared in self._shared.items()}

    @property
    def reached(self) -> Reached:
        """What is complete now."""
        return Reached(self.core.completed, tuple(core.completed for core in self.core.cores))

    @property
    def record(self) -> Record:
        """What has happened since the start."""
        return self.core.record

    def trace(self) -> Trace:
        """The events recorded so far."""
        trace = Trace()
        for executor in self.executors:
            trace += executor.trace()
        return trace

    def activity(self) -> Activity:
        """What all lanes do at this moment."""
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


class _Seat:
    """The place of one worker's executor; see `Seat`."""

    def __init__(self, workers: Workers, worker: int, program: Program) -> None:
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
        return self._core.idle or not self._workers.asleep()

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
        every, phase = self._member.turns.get(op, (1, 0))
        if iteration % every != phase:
            return
        with self.lock:
            over = self._core.start(self._worker, token)
            store = self._workers.store
            versions = [(number, name, store[name]) for number, name in self._reads[op]]
        pushes = op in self._member.pushes
        for number, name, version in versions:
            copied = pushes and name not in over
            self._buffers.put(iteration, number, version.clone() if copied else version)

    def complete(self, token: int) -> list[int]:
        op = token % self.size
        if op in self._writes:
            self._store(op, token // self.size)
        ready = []
        executors = self._workers.executors
        for worker, item in self._core.complete(self._worker, token):
            if worker == self._worker:
                ready.append(item)
            else:
                executors[worker]._push((item,))
        if self._core.finished or self._core.idle:
            self.host.notify_all()
        return ready

    def _store(self, op: int, iteration: int) -> None:
        """Put what a push made into the store."""
        every, phase = self._member.turns.get(op, (1, 0))
        if iteration % every == phase:
            for name, shared in self._writes[op]:
                self._workers.store[shared] = self._buffers.take(iteration + 1, name)

    def waiting(self) -> list[tuple[int, str, int]]:
        return self._core.waiting(self._worker)

    def failed(self, failure: RunError) -> None:
        self._workers.failed(failure)
