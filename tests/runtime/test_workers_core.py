"""The core of several workers, under random interleavings: bounds, updates, records and replay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine.core import compile_plan
from purine.graph import Builder, Graph
from purine.runtime.members import Finished, Member, member_of
from purine.runtime.record import COMPLETES, Record
from purine.runtime.workers_core import WorkersCore

Choose = Callable[[int], int]
"""Picks one of so many tokens."""


@dataclass(frozen=True)
class Habits:
    """What a worker does: which states it pushes, when, and how stale what it fetches may be."""

    bound: int | None = None
    push: int = 1
    fetch: int = 1
    together: bool = False
    pushes: bool = True


def worker(habits: Habits) -> Graph:
    """A worker that fetches the shared states x and y, computes, and pushes both."""
    b = Builder()
    for name in ("batch", "grad", *(f"{s}{part}" for s in "xy" for part in ("", "/next", "/read"))):
        b.blob(name, ())
    turn = {"every": habits.fetch}
    for s in "xy":
        b.op(f"fetch/{s}", "Fetch", [s], [f"{s}/read"], **turn)  # type: ignore[arg-type]
    b.op("batch", "Data", [], ["batch"])
    b.op("grad", "Grad", ["batch", "x/read", "y/read"], ["grad"])
    turn = {"every": habits.push, "phase": habits.push - 1}
    inputs, outputs = [["x", "grad"], ["y", "grad"]], [["x/next"], ["y/next"]]
    if habits.together:
        inputs, outputs = [["x", "y", "grad"]], [["x/next", "y/next"]]
    for index, (reads, writes) in enumerate(zip(inputs, outputs, strict=True)):
        if habits.pushes:
            b.op(f"push/{index}", "Push", reads, writes, **turn)  # type: ignore[arg-type]
    for s in "xy":
        b.state(s, f"{s}/next" if habits.pushes else None, staleness=habits.bound, shared=s)
    return b.graph()


def member(habits: Habits) -> Member:
    graph = worker(habits)
    families = {name: name.removesuffix("/read") for name in graph.blobs}
    return member_of(graph, compile_plan(graph), families)


@dataclass
class Memory:
    """The version of a state: the pushes (worker, iteration) that made it, in their order."""

    pushes: list[tuple[int, int]] = field(default_factory=list)


class Driver:
    """Runs tokens in any order, on memory that pushes may write over, and looks for mistakes."""

    def __init__(self, habits: list[Habits], core: WorkersCore, choose: Choose) -> None:
        self.habits, self.core, self.choose = habits, core, choose
        self.newest = {"x": Memory(), "y": Memory()}
        self.read: dict[tuple[int, int, str], tuple[Memory, list[tuple[int, int]]]] = {}
        self.versions: dict[tuple[int, int, str], int] = {}
        self.ready: list[tuple[int, int]] = []
        self.running: list[tuple[int, int, dict[str, Memory]]] = []
        self.left: set[int] = set()
        self.joined: dict[int, int] = {}

    def extend(self, limit: int) -> None:
        self.ready += self.core.extend(limit)

    def drain(self) -> None:
        while self.ready or self.running:
            self.step()
        assert self.core.idle or self.left, [self.core.waiting(w) for w in range(len(self.habits))]

    def step(self) -> None:
        """A token that may run begins, or one that runs ends."""
        index = self.choose(len(self.ready) + len(self.running))
        if index < len(self.ready):
            self.begin(*self.ready.pop(index))
        else:
            self.end(*self.running.pop(index - len(self.ready)))

    def begin(self, worker: int, token: int) -> None:
        iteration, op = divmod(token, self.core.cores[worker].size)
        own, written = self.core.members[worker], dict[str, Memory]()
        every, phase = own.turns.get(op, (1, 0))
        if iteration % every == phase:
            if op in own.fetches:
                self.core.start(worker, token)
                (name, bound) = own.fetches[op]
                memory = self.newest[name]
                self.read[worker, iteration, name] = (memory, list(memory.pushes))
                self.versions[worker, iteration, name] = len(memory.pushes)
                self.check_bound(worker, iteration, bound, memory)
            elif op in own.pushes:
                over = self.core.start(worker, token)
                for name in own.pushes[op]:
                    old = self.newest[name]
                    written[name] = old if name in over else Memory(list(old.pushes))
                    written[name].pushes.append((worker, iteration))
        self.running.append((worker, token, written))

    def end(self, worker: int, token: int, written: dict[str, Memory]) -> None:
        iteration, op = divmod(token, self.core.cores[worker].size)
        own = self.core.members[worker]
        if self.core.members[worker].plan.ops[op] == "grad":
            for name in "xy":
                if (worker, iteration, name) in self.read:
                    memory, before = self.read[worker, iteration, name]
                    assert memory.pushes == before, "a push wrote over what is still read"
        for name, memory in written.items():
            before = self.newest[name].pushes
            assert memory is self.newest[name] or memory.pushes[:-1] == before, "an update is lost"
            self.newest[name] = memory
        assert set(written) <= set(own.pushes.get(op, ()))
        self.ready += self.core.complete(worker, token)

    def check_bound(self, worker: int, iteration: int, bound: int | None, memory: Memory) -> None:
        if bound is None:
            return
        for other, habits in enumerate(self.habits):
            if other in (worker, *self.left) or not habits.pushes:
                continue
            for older in range(self.joined.get(other, 0), iteration - bound):
                if older % habits.push == habits.push - 1:
                    assert (other, older) in memory.pushes, "a read beyond its bound"

    def check_end(self) -> None:
        """All pushes are applied once, those of each worker in order."""
        for name, memory in self.newest.items():
            assert self.core.versions()[name] == len(memory.pushes)
            for other, habits in enumerate(self.habits):
                own = [i for w, i in memory.pushes if w == other]
                last, first = self.core.cores[other].completed, self.joined.get(other, 0)
                pushes = range(last) if habits.pushes else range(0)
                wanted = [i for i in pushes if i % habits.push == habits.push - 1]
                assert own == [i for i in wanted if i >= first or i in own]


habits = st.builds(
    Habits,
    st.none() | st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([True, True, True, False]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(habits, min_size=1, max_size=4), st.integers(1, 3), st.randoms(), st.data())
def test_any_interleaving(
    kinds: list[Habits], credit: int, draw: random.Random, data: st.DataObject
) -> None:
    members = [member(one) for one in kinds]
    core = WorkersCore(members, credit=credit)
    driver = Driver(kinds, core, draw.randrange)
    limits = sorted(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    for limit in limits:
        driver.extend(limit)
        if draw.random() < 0.5:
            driver.drain()
    driver.drain()
    core.cut()
    assert core.completed == limits[-1] == len(core.finished) == core.record.iterations
    driver.check_end()
    for done in core.finished:
        bound = kinds[done.worker].bound
        assert bound is None or done.staleness <= bound
    again = WorkersCore(members, credit=credit, replay=Record.from_bytes(core.record.to_bytes()))
    repeated = Driver(kinds, again, draw.randrange)
    for limit in core.record.cuts[1:]:
        repeated.extend(limit)
        repeated.drain()
    assert repeated.newest == driver.newest
    assert repeated.versions == driver.versions
    assert [(d.worker, d.iteration) for d in again.finished] == [
        (d.worker, d.iteration) for d in core.finished
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(habits, min_size=2, max_size=4), st.integers(1, 3), st.randoms())
def test_workers_leave_and_come_back(kinds: list[Habits], credit: int, draw: random.Random) -> None:
    core = WorkersCore([member(one) for one in kinds], credit=credit)
    driver = Driver(kinds, core, draw.randrange)
    limit = 10
    driver.extend(limit)
    for _ in range(6):
        for _ in range(draw.randrange(60)):
            if driver.ready or driver.running:
                driver.step()
        gone = draw.randrange(len(kinds))
        if core.active[gone] and sum(core.active) > 1:
            driver.left.add(gone)
            driver.ready += core.leave(gone)
        elif not core.active[gone] and core.cores[gone].idle:
            ready = core.join(gone)
            driver.left.remove(gone)
            driver.joined[gone] = core.cores[gone].completed
            driver.ready += ready
        limit += 5
        driver.extend(limit)
    driver.drain()
    assert core.idle
    driver.check_end()


def test_synchronous_workers_go_in_step() -> None:
    """With staleness 0 a fetch has all pushes of the iterations before, and nobody is ahead."""
    kinds = [Habits(bound=0), Habits(bound=0)]
    core = WorkersCore([member(one) for one in kinds], credit=3)
    driver = Driver(kinds, core, random.Random(1).randrange)
    driver.extend(40)
    driver.drain()
    order = [(done.iteration, done.worker) for done in core.finished]
    assert sorted(order) == [(i, w) for i in range(20) for w in (0, 1)]
    assert all(done.staleness == 0 for done in core.finished)
    assert [core.cores[w].completed for w in (0, 1)] == [20, 20]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_fast_worker_is_held_at_its_bound(bound: int) -> None:
    """A worker that stands still lets the other one go on for `bound` iterations."""
    kinds = [Habits(bound=bound), Habits(bound=bound)]
    core = WorkersCore([member(one) for one in kinds], credit=5)
    driver = Driver(kinds, core, lambda count: 0)
    driver.extend(100)
    slow = [item for item in driver.ready if item[0] == 1]
    driver.ready = [item for item in driver.ready if item[0] == 0]
    while driver.ready or driver.running:
        driver.step()
        slow += [item for item in driver.ready if item[0] == 1]
        driver.ready = [item for item in driver.ready if item[0] == 0]
    assert core.cores[0].completed == bound + 1
    driver.ready = slow
    driver.drain()
    assert core.idle


def test_the_faster_worker_does_more() -> None:
    kinds = [Habits(), Habits()]
    core = WorkersCore([member(one) for one in kinds], credit=2)
    draw = random.Random(0)

    def choose(count: int) -> int:  # ops of worker 1 are chosen rarely
        index = draw.randrange(count)
        tokens = [*driver.ready, *((w, t) for w, t, _ in driver.running)]
        return index if tokens[index][0] == 0 or draw.random() < 0.1 else draw.randrange(count)

    driver = Driver(kinds, core, choose)
    driver.extend(60)
    driver.drain()
    done = [core.cores[w].completed for w in (0, 1)]
    assert sum(done) == 60
    assert done[0] > done[1]


def test_nobody_copies_what_nobody_reads() -> None:
    """A worker alone writes over the versions that it has read to the end."""
    core = WorkersCore([member(Habits(together=True))], credit=1)
    driver = Driver([Habits(together=True)], core, lambda count: 0)
    first = driver.newest["x"]
    driver.extend(5)
    driver.drain()
    assert driver.newest["x"] is first
    assert len(first.pushes) == 5


def test_what_a_worker_missed_is_measured() -> None:
    kinds = [Habits(), Habits()]
    core = WorkersCore([member(one) for one in kinds], credit=1)
    driver = Driver(kinds, core, lambda count: 0)
    driver.extend(2)
    names = [core.members[0].plan.ops[token % core.cores[w].size] for w, token in driver.ready]
    assert names.count("fetch/x") == 2
    driver.drain()
    first, second = core.finished
    assert (first.missed, second.missed) == (0, 0) or second.missed == 1
    assert first == Finished(first.worker, 0, 0, 0)


def test_a_record_is_cut_where_nothing_was_in_flight() -> None:
    kinds = [Habits(), Habits()]
    core = WorkersCore([member(one) for one in kinds], credit=2, start=7, starts=(3, 4))
    driver = Driver(kinds, core, random.Random(3).randrange)
    driver.joined = {0: 3, 1: 4}
    for limit in (12, 20):
        driver.extend(limit)
        driver.drain()
    core.cut()
    record = core.record
    assert record.cuts == (7, 12, 20)
    before, after = record.split(12)
    assert (before.cuts, after.cuts) == ((7, 12), (12, 20))
    assert sum(after.starts) == 3 + 4 + 5
    assert list(before) + list(after) == list(record)
    ends = [worker for worker, what in before if what == COMPLETES]
    assert after.starts == (3 + ends.count(0), 4 + ends.count(1))
