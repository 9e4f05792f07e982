"""The dispatcher's core for several workers: a `Core` for each, and the states that they share.

A *push* is an op that makes the next version of shared states. This core decides which tokens may
run; it has no threads, no I/O and no torch. The executor calls `start` when a fetch or a push
begins and `complete` when any op ends, all under one lock.

- A fetch runs when the pushes of the other workers within its bound are complete.
- One push of a state runs at a time. It locks all its states at once when it is handed out, so no
  update is lost. Lanes never wait for a lock: a token that cannot run waits here.
- An iteration opens when all iterations of other workers that it may wait for are open. So it
  waits only for older iterations, and the oldest one always makes progress: there is no deadlock.
- A push may write over the newest version if no fetch still has readers. Fetches then wait for it.

With a record, the fetches and pushes of each state run in the recorded order, and so do the
openings and the results.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from purine.core import Core
from purine.dispatch.host_core import HostCore
from purine.runtime.members import Carrier, Finished, Member
from purine.runtime.record import COMPLETES, CUT, OPENS, Record
from purine.runtime.script import Script, events_of

__all__ = ["WorkersCore"]

Ready = tuple[int, int]
"""A worker and one of its tokens."""


@dataclass
class _State:
    """A shared state: `done` is, by worker that pushes it, the number of iterations with complete
    pushes."""

    done: dict[int, int]
    version: int = 0
    locked: bool = False
    overwritten: bool = False
    readers: int = 0
    """Fetches of the newest version that still have readers."""
    coming: int = 0
    """Fetches that were handed out and have not started."""
    waiting: list[Ready] = field(default_factory=list)
    order: deque[tuple[int, int]] | None = None
    """In a replay, the (worker, op) that still have to come."""


class WorkersCore:
    """The cores of all workers, and the states that they share."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        starts: Sequence[int] | None = None,
        start: int = 0,
        credit: int = 2,
        replay: Record | None = None,
        digest: str = "",
        carriers: Mapping[int, Carrier] | None = None,
    ) -> None:
        starts = tuple(starts or [0] * len(members))
        self.members, self.credit = tuple(members), credit
        self.carriers = dict(carriers or {})
        self._carrier_of = {c.of: number for number, c in self.carriers.items()}
        self.applied: list[Counter[str]] = [Counter() for _ in members]
        """By worker how many pushes it has made of each state, in all of its lives."""
        self._handed: set[Ready] = set()
        """The fetches and pushes of couriers that may run and have not begun."""
        self.cores: list[Core | HostCore] = [
            Core(member.plan, start=begin, credit=credit)
            for member, begin in zip(members, starts, strict=True)
        ]
        self.active = [number not in self.carriers for number in range(len(members))]
        for carrier in self.carriers.values():
            if carrier.of is not None:
                carrier.begun = carrier.carried = starts[carrier.of]
        self.opened = self.limit = start
        """How many iterations of all workers are open, and how many may be."""
        self.completed = start
        """How many iterations of all workers are complete."""
        self.finished: deque[Finished] = deque()
        """Those of them that the caller has not taken, in the order of their results."""
        self._states: dict[str, _State] = {}
        for worker, member in enumerate(members):
            for name, _ in member.fetches.values():
                self._states.setdefault(name, _State({}))
            for name in (name for names in member.pushes.values() for name in names):
                self._states.setdefault(name, _State({})).done[worker] = starts[worker]
        self._seen: list[dict[str, int]] = [{} for _ in members]
        """By worker the version of each state that it has seen, its own later pushes counted."""
        self._held: list[dict[tuple[int, int], list[int]]] = [{} for _ in members]
        """By worker and (fetch, iteration): the version, and how many readers have not run."""
        self._readers = [Counter(f for of in m.readers.values() for f in of) for m in members]
        self._measured: list[dict[int, list[int]]] = [{} for _ in members]
        events = events_of(members)
        self._number = {event: number for number, event in enumerate(events, 1)}
        self.record = Record(digest, start, starts, credit, events)
        self._script = None if replay is None else Script(replay, members)
        if self._script is not None:
            for name, state in self._states.items():
                state.order = self._script.orders.get(name, deque())

    @property
    def idle(self) -> bool:
        return self.completed == self.limit

    def versions(self) -> dict[str, int]:
        """How many pushes have been applied to each shared state."""
        return {name: state.version for name, state in self._states.items()}

    def extend(self, limit: int) -> list[Ready]:
        """Let workers open iterations while fewer than `limit` of them all are open."""
        self.cut()
        self.limit = max(self.limit, limit)
        return self._open()

    def occupy(self, courier: int, core: Core | HostCore) -> list[Ready]:
        """Start a courier, with a core of its own."""
        assert not self.active[courier], "it goes already"
        self.cores[courier], self.active[courier] = core, True
        carrier = self.carriers[courier]
        if carrier.of is None:
            return self._admitted(courier, core.extend(core.completed + self.credit))
        return self._carry(courier)

    def vacate(self, courier: int) -> list[Ready]:
        """Stop a courier: its pending fetches and pushes are dropped, and their locks released."""
        self.active[courier] = False
        size, member, names = self.cores[courier].size, self.members[courier], list[str]()
        for number, token in [ready for ready in self._handed if ready[0] == courier]:
            self._handed.discard((number, token))
            op = token % size
            if op in member.fetches:
                self._states[member.fetches[op][0]].coming -= 1
            for name in member.pushes.get(op, ()):
                self._states[name].locked = False
                names.append(name)
        for state in self._states.values():
            state.waiting = [ready for ready in state.waiting if ready[0] != courier]
        self._held[courier].clear()
        self._seen[courier].clear()
        return self._woken(names)

    def _carry(self, courier: int, *, last: bool = False) -> list[Ready]:
        """Let a courier begin a round, if enough iterations are due or this is the `last` one."""
        carrier, core = self.carriers[courier], self.cores[courier]
        if carrier.of is None or not self.active[courier] or not core.idle:
            return []
        done = self.cores[carrier.of].completed
        new, first = done - carrier.begun, core.completed == 0
        if not (first or new >= carrier.pace or (last and new)):
            return []
        carrier.begun = done
        return self._admitted(courier, core.extend(core.completed + 1))

    def flush(self) -> list[Ready]:
        """No iteration of the workers is in flight: let couriers carry the remaining updates."""
        return [ready for courier in self.carriers for ready in self._carry(courier, last=True)]

    @property
    def carried(self) -> bool:
        """Whether the couriers of the present workers have carried all updates."""
        return all(
            self.cores[courier].idle and carrier.carried == self.cores[carrier.of].completed
            for courier, carrier in self.carriers.items()
            if carrier.of is not None and self.active[courier]
        )

    @property
    def rounds(self) -> int:
        """The number of complete rounds of couriers."""
        return sum(carrier.rounds for carrier in self.carriers.values())

    def locked(self, name: str) -> bool:
        """Whether a push of a state is in progress."""
        return self._states[name].locked

    def cut(self) -> None:
        """Record a cut if no iteration is in flight."""
        if self.idle and self.record.events and self.record.events[-1] != CUT:
            self.record.events.append(CUT)

    def leave(self, worker: int) -> list[Ready]:
        """A worker opens no more iterations, and bounds ignore it from now on."""
        self.active[worker] = False
        return self._woken(self._states) + self._open()

    def join(self, worker: int) -> list[Ready]:
        """A worker that left, and has no iteration in flight, continues.

        It begins after all open iterations, so that none of them waits for it.
        """
        core = self.cores[worker]
        assert not self.active[worker], "it has not left"
        assert core.idle, "it has iterations in flight"
        open_ones = (
            _limit_of(own) for own, here in zip(self.cores, self.active, strict=True) if here
        )
        begin = max((core.completed, *open_ones))
        self.cores[worker] = Core(core.plan, start=begin, credit=self.credit)
        for state in self._states.values():
            if worker in state.done:
                state.done[worker] = begin
        self.active[worker] = True
        return self._open()

    def start(self, worker: int, token: int) -> tuple[str, ...]:
        """A fetch or a push begins; the states whose newest version a push may write over."""
        member, core = self.members[worker], self.cores[worker]
        iteration, op = divmod(token, core.size)
        self._handed.discard((worker, token))
        if op in member.fetches:
            self._fetch(worker, op, iteration)
            return ()
        states = [self._states[name] for name in member.pushes[op]]
        missed = max(
            state.version - self._seen[worker].get(name, state.version)
            for name, state in zip(member.pushes[op], states, strict=True)
        )
        self._measure(worker, iteration, 1, missed)
        for state in states:
            state.overwritten = not (state.readers or state.coming)
        return tuple(name for name in member.pushes[op] if self._states[name].overwritten)

    def _fetch(self, worker: int, op: int, iteration: int) -> None:
        member = self.members[worker]
        name, bound = member.fetches[op]
        state = self._states[name]
        state.coming -= 1
        lacks = max(0, iteration - self._newest(state, worker, iteration))
        assert bound is None or lacks <= bound or self._script, "a fetch is beyond its bound"
        self._measure(worker, iteration, 0, lacks)
        self._seen[worker][name] = state.version
        count = self._readers[worker][op]
        if count or op in member.lasting:
            state.readers += 1
        if op not in member.lasting and count:
            self._held[worker][op, iteration] = [state.version, count]
        self._note(worker, member.plan.ops[op])
        if state.order is not None:
            state.order.popleft()

    def _newest(self, state: _State, worker: int, iteration: int) -> int:
        """The first iteration whose pushes by all other workers are not yet complete."""
        here = (other for other in state.done if self.active[other] and other not in self.carriers)
        done = (state.done[other] for other in here if other != worker)
        return min(done, default=iteration)

    def complete(self, worker: int, token: int) -> list[Ready]:
        """An op of a worker is complete; returns the tokens that may run now."""
        member, core = self.members[worker], self.cores[worker]
        iteration, op = divmod(token, core.size)
        touched: list[str] = []
        if op in member.pushes:
            touched += self._push(worker, op, iteration)
        elif op in member.fetches and self._script is not None:
            touched.append(member.fetches[op][0])
        if op in member.readers:
            self._release(worker, op, iteration)
        before = core.completed
        ready = core.complete(token)
        if worker in self.carriers and not self.active[worker]:
            return self._woken(touched)  # it goes no more, and only ends what it has begun
        if core.completed == before:
            return self._woken(touched) + self._admitted(worker, ready) if touched or ready else []
        if worker in self.carriers:
            woken = self._woken(touched) + self._admitted(worker, ready)
            return woken + self._arrived(worker, core.completed - before)
        for complete in range(before, core.completed):
            self._finish(worker, complete)
        courier = self._carrier_of.get(worker)
        carried = [] if courier is None else self._carry(courier)
        return self._woken(touched) + carried + self._admitted(worker, ready) + self._open()

    def _arrived(self, courier: int, count: int) -> list[Ready]:
        """A courier has completed rounds."""
        carrier, core = self.carriers[courier], self.cores[courier]
        carrier.rounds += count
        self._measured[courier].clear()
        carrier.carried = carrier.begun
        if carrier.of is not None:
            return self._carry(courier) + self._open()
        if not self.active[courier]:
            return []
        return self._admitted(courier, core.extend(core.completed + self.credit))

    def _push(self, worker: int, op: int, iteration: int) -> tuple[str, ...]:
        """A push is complete, or was left out of its iteration; returns its states."""
        member = self.members[worker]
        runs, names = member.runs(op, iteration), member.pushes[op]
        for name in names:
            state = self._states[name]
            state.done[worker] = iteration + 1
            if runs:
                self.applied[worker][name] += 1
                state.version += 1
                state.locked = state.overwritten = False
                state.readers = 0
                if name in self._seen[worker]:
                    self._seen[worker][name] += 1
                if state.order is not None:
                    state.order.popleft()
        if runs:
            self._note(worker, member.plan.ops[op])
        return names

    def _release(self, worker: int, op: int, iteration: int) -> None:
        """Fetches whose last reader was this op release their version."""
        member, held = self.members[worker], self._held[worker]
        for fetch in member.readers[op]:
            entry = held.get((fetch, iteration))
            if entry is None:  # it was left out of this iteration, or its result lives on
                continue
            entry[1] -= 1
            if not entry[1]:
                del held[fetch, iteration]
                state = self._states[member.fetches[fetch][0]]
                if entry[0] == state.version:
                    state.readers -= 1

    def _finish(self, worker: int, iteration: int) -> None:
        measured = self._measured[worker].pop(iteration, [0, 0])
        done = Finished(worker, iteration, *measured)
        self._note(worker, COMPLETES)
        results = [done] if self._script is None else self._script.results(done)
        self.finished += results
        self.completed += len(results)

    def _measure(self, worker: int, iteration: int, which: int, value: int) -> None:
        measured = self._measured[worker].setdefault(iteration, [0, 0])
        measured[which] = max(measured[which], value)

    def _note(self, worker: int, what: str) -> None:
        if not self.carriers:  # of several hosts no one could replay
            self.record.events.append(self._number[worker, what])

    def _admitted(self, worker: int, tokens: Iterable[int]) -> list[Ready]:
        """The tokens that may run; the others wait with a state that they wait for."""
        member, size = self.members[worker], self.cores[worker].size
        admitted = []
        for token in tokens:
            op = token % size
            shared = op in member.fetches or op in member.pushes
            if not shared or self._admits(worker, op, token):
                admitted.append((worker, token))
        return admitted

    def _admits(self, worker: int, op: int, token: int) -> bool:
        member, iteration = self.members[worker], token // self.cores[worker].size
        if not member.runs(op, iteration):
            return True
        if op in member.fetches:
            name, bound = member.fetches[op]
            state = self._states[name]
            bounded = bound is not None and self._script is None
            late = bounded and self._newest(state, worker, iteration) < iteration - (bound or 0)
            if late or state.overwritten or not _is_next(state, worker, op):
                state.waiting.append((worker, token))
                return False
            state.coming += 1
            self._hand_out(worker, token)
            return True
        states = [self._states[name] for name in member.pushes[op]]
        for state in states:
            if state.locked or not _is_next(state, worker, op):
                state.waiting.append((worker, token))
                return False
        for state in states:
            state.locked = True
        self._hand_out(worker, token)
        return True

    def _hand_out(self, worker: int, token: int) -> None:
        if worker in self.carriers:
            self._handed.add((worker, token))

    def _woken(self, names: Iterable[str]) -> list[Ready]:
        """The tokens that waited for one of these states and may run now."""
        woken = []
        for name in names:
            state = self._states[name]
            waiting, state.waiting = state.waiting, []
            for worker, token in waiting:
                if self._admits(worker, token % self.cores[worker].size, token):
                    woken.append((worker, token))
        return woken

    def _open(self) -> list[Ready]:
        ready: list[Ready] = []
        while self.opened < self.limit:
            worker = self._next_worker()
            if worker is None:
                break
            core = self.cores[worker]
            self.opened += 1
            self._note(worker, OPENS)
            if worker in self._carrier_of:
                carried = self.carriers[self._carrier_of[worker]].carried
                self._measure(worker, _limit_of(core), 0, _limit_of(core) - carried)
            ready += self._admitted(worker, core.extend(_limit_of(core) + 1))
        return ready

    def _next_worker(self) -> int | None:
        """The worker that opens an iteration next: the one with the fewest in flight."""
        if self._script is not None:
            opens = self._script.opens
            return opens.popleft() if opens and self._has_credit(opens[0]) else None
        able = [w for w in range(len(self.cores)) if w not in self.carriers and self._may_open(w)]
        limits = {w: _limit_of(self.cores[w]) for w in able}
        flight = {w: limits[w] - self.cores[w].completed for w in able}
        return min(able, key=lambda w: (flight[w], limits[w]), default=None)

    def _has_credit(self, worker: int) -> bool:
        core = self.cores[worker]
        return _limit_of(core) < core.completed + self.credit

    def _is_supplied(self, worker: int) -> bool:
        """Whether the courier of a worker has completed a round, and is not too far behind."""
        courier = self._carrier_of.get(worker)
        if courier is None:
            return True
        carrier, core = self.carriers[courier], self.cores[courier]
        behind = _limit_of(self.cores[worker]) - carrier.carried
        return core.completed > 0 and (carrier.bound is None or behind <= carrier.bound)

    def _may_open(self, worker: int) -> bool:
        """Whether a worker has credit left, and all iterations that its next one waits for are
        open."""
        if not (self.active[worker] and self._has_credit(worker) and self._is_supplied(worker)):
            return False
        bound, limit = self.members[worker].bound, _limit_of(self.cores[worker])
        here = (core for core, here in zip(self.cores, self.active, strict=True) if here)
        return bound is None or all(_limit_of(core) >= limit - bound for core in here)

    def waiting(self, worker: int) -> list[tuple[int, str, int]]:
        """The waiting ops of a worker: (iteration, op, number of ops it waits for)."""
        core, own = self.cores[worker], []
        for state in self._states.values():
            for other, token in state.waiting:
                if other == worker:
                    iteration, op = divmod(token, core.size)
                    own.append((iteration, core.plan.ops[op], 0))
        return core.waiting() + own


def _limit_of(core: Core | HostCore) -> int:
    """The first iteration that a core may not start yet."""
    return core.core.limit if isinstance(core, HostCore) else core.limit


def _is_next(state: _State, worker: int, op: int) -> bool:
    """Whether an op is the next one of a state, if a record gives their order."""
    return state.order is None or (bool(state.order) and state.order[0] == (worker, op))
