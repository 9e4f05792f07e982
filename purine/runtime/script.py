"""The order of a replay, as queues; and the events that a record may have."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from purine.runtime.members import Finished, Member
from purine.runtime.record import COMPLETES, OPENS, Record

__all__ = ["Script", "events_of"]


def events_of(members: Sequence[Member]) -> tuple[tuple[int, str], ...]:
    """The events that members may have; the order of ops in a plan does not count."""
    return tuple(
        (worker, what)
        for worker, member in enumerate(members)
        for what in (
            OPENS,
            COMPLETES,
            *sorted(member.plan.ops[op] for op in {*member.fetches, *member.pushes}),
        )
    )


class Script:
    """A record as queues: the next worker to open an iteration, the next access to each state, the
    next result.

    Results wait here until those before them are complete.
    """

    def __init__(self, record: Record, members: Sequence[Member]) -> None:
        self.opens: deque[int] = deque()
        self.orders: dict[str, deque[tuple[int, int]]] = {}
        self._results: deque[int] = deque()
        self._complete: list[deque[Finished]] = [deque() for _ in members]
        ops = [{name: op for op, name in enumerate(member.plan.ops)} for member in members]
        for worker, what in record:
            if what == OPENS:
                self.opens.append(worker)
            elif what == COMPLETES:
                self._results.append(worker)
            else:
                member, op = members[worker], ops[worker][what]
                fetched = [member.fetches[op][0]] if op in member.fetches else []
                for name in (*fetched, *member.pushes.get(op, ())):
                    self.orders.setdefault(name, deque()).append((worker, op))

    def results(self, done: Finished) -> list[Finished]:
        """An iteration is complete; the results that come next."""
        self._complete[done.worker].append(done)
        results = []
        while self._results and self._complete[self._results[0]]:
            results.append(self._complete[self._results.popleft()].popleft())
        return results
