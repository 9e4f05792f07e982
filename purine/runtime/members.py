"""The data of each worker for the core of several workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from purine.core import Plan
from purine.graph import FETCH, Graph

__all__ = ["Carrier", "Finished", "Member", "member_of"]


@dataclass(frozen=True)
class Member:
    """The accesses of the ops of a worker to shared states; ops by their numbers in its plan.

    `fetches` are (state, bound) by op, `pushes` the states by op. `readers` are, by op, the fetches
    whose results it reads. The results of `lasting` fetches outlive their readers. `turns` are
    (every, phase) of fetches and pushes that do not run in all iterations.
    """

    plan: Plan
    fetches: Mapping[int, tuple[str, int | None]]
    pushes: Mapping[int, tuple[str, ...]]
    readers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    lasting: frozenset[int] = frozenset()
    turns: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def bound(self) -> int | None:
        """The smallest bound of its fetches."""
        return min((s for _, s in self.fetches.values() if s is not None), default=None)

    def runs(self, op: int, iteration: int) -> bool:
        """Whether a fetch or a push runs in an iteration."""
        every, phase = self.turns.get(op, (1, 0))
        return iteration % every == phase


def member_of(graph: Graph, plan: Plan, families: Mapping[str, str]) -> Member:
    """The member for the graph of one worker; blobs of one family may share memory."""
    number = {name: index for index, name in enumerate(plan.ops)}
    fetches: dict[int, tuple[str, int | None]] = {}
    pushes: dict[int, list[str]] = {}
    readers: dict[int, list[int]] = {}
    lasting: set[int] = set()
    living = {*graph.outputs, *(state.next for state in graph.states.values())}
    for state in graph.states.values():
        if not state.shared:
            continue
        if state.next != state.read:
            pushes.setdefault(number[graph.producers[state.next].name], []).append(state.shared)
        seen = {
            name
            for name, family in families.items()
            if family == families[state.read] and name != state.read
        }
        for op in graph.consumers[state.read]:
            if op.kind == FETCH:
                fetches[number[op.name]] = (state.shared, state.staleness)
                for reader in {op.name for name in seen for op in graph.consumers.get(name, ())}:
                    readers.setdefault(number[reader], []).append(number[op.name])
                if not seen.isdisjoint(living):
                    lasting.add(number[op.name])
    turns = {
        op: (graph.ops[plan.ops[op]].every, graph.ops[plan.ops[op]].phase)
        for op in (*fetches, *pushes)
        if graph.ops[plan.ops[op]].every != 1
    }
    return Member(
        plan,
        fetches,
        {op: tuple(states) for op, states in pushes.items()},
        {op: tuple(sorted(of)) for op, of in readers.items()},
        frozenset(lasting),
        turns,
    )


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete iteration of a worker.

    `staleness` is the largest number of older iterations of another worker that were missing from
    the fetched values. `missed` is the largest number of versions that other workers made of a
    state between its fetch and its push.
    """

    worker: int
    iteration: int
    staleness: int = 0
    missed: int = 0


@dataclass
class Carrier:
    """A courier: a member that carries values between hosts for another member, `of`.

    Without `of` its worker is on another host, and a round begins whenever values come from there.
    Otherwise a round begins when the worker has completed `pace` iterations since the last one
    began, and the worker may be `bound` iterations ahead of its last completed round.
    """

    of: int | None
    pace: int = 1
    bound: int | None = None
    begun: int = 0
    """What its worker had completed when the last round began."""
    carried: int = 0
    """The same for the last round that is complete."""
    rounds: int = 0
    """Complete rounds, of all lives of the worker together."""
