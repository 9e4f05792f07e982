"""Running the workers of a graph: an executor for each, around one core and one store.

The store holds the newest version of every shared state. A fetch or push gets the version from it
when it begins, under the lock that guards all executors; a complete push stores its result. So a
version lives as long as it has readers. A push writes over a version without readers, and over a
copy of one that still has some.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from purine.runtime.couriers import Post, posts_of
from purine.runtime.executor import Activity, Executor, Settings
from purine.runtime.members import Finished, Member, member_of
from purine.runtime.program import Program, compile_program
from purine.runtime.record import Record
from purine.runtime.workers_core import WorkersCore
from purine.trace.trace import Trace
from purine.transports.base import Transport

__all__ = ["Reached", "Workers", "open_workers"]

_LOOK = 0.01
"""Seconds between two looks at a shared state that is being changed."""


def open_workers(
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
) -> Workers:
    """The execution of a graph with these workers; `single` runs ops one by one.

    Of a graph on several hosts it is that of `host`, whose couriers have not started.
    """
    programs: list[Program | None] = []
    members = []
    posts = posts_of(parts, host, tuple(parts))
    for place, part in enumerate(parts.values()):
        if place in posts:
            programs.append(None)
            members.append(posts[place].member)
            continue
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
        numbers=tuple(parts),
        posts=posts,
    )


@dataclass(frozen=True, slots=True)
class Reached:
    """The number of complete iterations: of all workers together, and of each."""

    all: int = 0
    each: tuple[int, ...] = ()


class Workers:
    """One execution of the programs of all workers, in place of an `Executor`.

    `states` gives the value of every state; of a shared one, under any of its names. `reached` is
    where it begins. With `replay` all recorded events are repeated in the same order. A courier,
    which has a post, has no program before it starts. `numbers` are those of the workers in the
    graph.
    """

    def __init__(
        self,
        programs: Sequence[Program | None],
        members: Sequence[Member],
        *,
        states: Mapping[str, Tensor],
        settings: Settings,
        digest: str,
        reached: Reached | None = None,
        replay: Record | None = None,
        numbers: Sequence[int] = (),
        posts: Mapping[int, Post] | None = None,
    ) -> None:
        reached = reached or Reached()
        self.posts = dict(posts or {})
        self._numbers = tuple(numbers) or tuple(range(len(programs)))
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
            carriers={place: post.carrier for place, post in self.posts.items()},
        )
        self._cuts = None if replay is None else replay.cuts
        self._failure: RunError | None = None
        self._process = os.getpid()
        graphs = [program.graph for program in programs if program is not None]
        graphs += [post.plain for post in self.posts.values()]
        self._shared = {
            name: state.shared
            for graph in graphs
            for name, state in graph.states.items()
            if state.shared
        }
        self.store: dict[str, Tensor] = {}
        """The newest version of each shared state. A push replaces it or writes over it."""
        for name, shared in self._shared.items():
            self.store.setdefault(shared, states[name])
        self._settings = settings
        self._first = {
            place: post.states({n: v for n, v in states.items() if n in post.plain.states})
            for place, post in self.posts.items()
        }
        self._leaving: dict[int, threading.Thread] = {}
        """By courier that goes no more the thread that ends its lanes."""
        self._executors: dict[int, Executor] = {}
        for worker, (program, begin) in enumerate(zip(programs, starts, strict=True)):
            if program is not None:
                own = program.graph.states
                self._executors[worker] = Executor(
                    program,
                    states={n: v for n, v in states.items() if n in own and n not in self._shared},
                    start=begin,
                    settings=settings,
                    seat=_Seat(self, worker, program),
                )

    @property
    def executors(self) -> list[Executor]:
        """The executors of all workers, and of the couriers that run."""
        return list(self._executors.values())

    def occupy(self, place: int, transport: Transport | None) -> None:
        """Start a courier, over a transport that connects with the other end meanwhile."""
        leaving = self._leaving.get(place)
        if leaving is not None:
            leaving.join()
        post = self.posts[place]
        program, exchange = post.connected(transport)
        if exchange is None:
            core: Core | HostCore = Core(program.plan, credit=1)
        else:
            core = exchange.open(program.plan, start=0, credit=1)
        states = {name: value.clone() for name, value in self._first[place].items()}
        with self.lock:
            self._raise_if_stopped()
            self.core.cores[place] = core
            seat = _Seat(self, place, program)
            settings = replace(self._settings, credit=1)
            executor = Executor(
                program, states=states, settings=settings, exchange=exchange, seat=seat
            )
            self._executors[place] = executor
            self._push(self.core.occupy(place, core))
            executor._start()
            self.host.notify_all()

    def lost(self, place: int, failure: RunError) -> None:
        """A worker on another host is gone, so its courier stops. Holds the lock."""
        executor = self._executors.pop(place, None)
        if executor is None:
            return
        self._push(self.core.vacate(place))
        thread = threading.Thread(target=executor.close, name="leaving", daemon=True)
        self._leaving[place] = thread
        thread.start()
        self.host.notify_all()

    @property
    def begun(self) -> int:
        """The number of rounds that the running couriers have begun."""
        with self.lock:
            return sum(self.core.cores[place].opened for place in self.posts)

    @property
    def carried(self) -> int:
        """The number of iterations of all workers that the rounds so far stand for."""
        return sum(carrier.rounds * carrier.pace for carrier in self.core.carriers.values())

    def away(self, place: int) -> bool:
        """Whether a courier does not run."""
        return place not in self._executors

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
        found = self._executors[done.worker].wait(done.iteration)
        return replace(done, worker=self._numbers[done.worker]), found

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
        for place, executor in self._executors.items():
            if place not in self.posts:
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
        cores = [core for place, core in enumerate(self.core.cores) if place not in self.posts]
        return Reached(self.core.completed, tuple(core.completed for core in cores))

    @property
    def record(self) -> Record:
        """The events since the start."""
        return self.core.record

    def trace(self) -> Trace:
        """The events recorded so far."""
        trace = Trace()
        for executor in self.executors:
            trace += executor.trace()
        return trace

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
        every, phase = self._member.turns.get(op, (1, 0))
        if iteration % every == phase:
            for name, shared in self._writes[op]:
                self._workers.store[shared] = self._buffers.take(iteration + 1, name)

    def waiting(self) -> list[tuple[int, str, int]]:
        return self._core.waiting(self._worker)

    def failed(self, failure: RunError) -> None:
        workers, place = self._workers, self._worker
        carrier = self._core.carriers.get(place)
        if carrier is not None and carrier.of is None and isinstance(failure, HostLostError):
            workers.lost(place, failure)
        else:
            workers.failed(failure)
