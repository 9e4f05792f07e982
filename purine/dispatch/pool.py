"""Which device runs the floating lanes: in each iteration, the first that is idle.

A *turn* is a lane `float:K` in one iteration. Its ops go to the compute thread that takes it, until
all of them are complete. There are no threads here: the executor makes all calls under its lock. In
this file a compute thread is called a worker; it is not a worker of asynchronous training.

A worker has one turn at a time, and may take another only if that is of an older iteration. No set
of workers can deadlock on this. Consider the oldest iteration that is not complete. Its turns wait
for no other turn of the same iteration (rule `floating_lanes_are_independent`), so those that were
taken make progress; and a worker that has only newer turns takes the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

__all__ = ["Pool"]


class Pool:
    """The turns of the iterations in flight.

    `lanes` gives for each op the number of its floating lane, or -1. `workers` are those that may
    take turns.

    >>> pool = Pool(lanes=[0, 0, 1], workers=[7, 8])
    >>> pool.offer(0), pool.offer(2)    # op 0 of lane 0, and op 2 of lane 1
    (None, None)
    >>> pool.take(8), pool.take(8)      # one turn at a time
    ([0], [])
    >>> pool.owner(1), pool.owner(2)    # the other op of lane 0 goes to the same worker
    (8, None)
    """

    def __init__(self, lanes: Sequence[int], workers: Collection[int]) -> None:
        self._lanes, self._ops = tuple(lanes), len(lanes)
        self._count = 1 + max(lanes, default=0)
        self._sizes = Counter(lane for lane in lanes if lane >= 0)
        self._offered: dict[int, list[int]] = {}
        """By turn that nobody has taken its ready tokens."""
        self._order: list[tuple[int, int]] = []
        """A heap of these turns: (most urgent token, turn)."""
        self._owner: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """By turn that was taken: its worker, and how many of its ops are not complete."""
        self._turns: dict[int, list[int]] = {worker: [] for worker in workers}

    def owner(self, token: int) -> int | None:
        """The worker that has the turn of a token, if it was taken."""
        return self._owner.get(self._turn(token))

    def offer(self, token: int) -> None:
        """A token of a turn that was not taken is ready."""
        turn = self._turn(token)
        tokens = self._offered.setdefault(turn, [])
        tokens.append(token)
        if len(tokens) == 1:
            heappush(self._order, (token, turn))

    def wants(self, worker: int) -> bool:
        """Whether a worker would take a turn now."""
        turns = self._turns.get(worker)
        if turns is None or not self._order:
            return False
        return not turns or self._order[0][1] // self._count < min(turns) // self._count

    def take(self, worker: int) -> list[int]:
        """The ready tokens of the next turn, which now belongs to the worker; or none."""
        if not self.wants(worker):
            return []
        turn = heappop(self._order)[1]
        self._owner[turn], self._left[turn] = worker, self._sizes[turn % self._count]
        self._turns[worker].append(turn)
        return self._offered.pop(turn)

    def complete(self, token: int) -> None:
        """An op of a turn is complete."""
        turn = self._turn(token)
        self._left[turn] -= 1
        if not self._left[turn]:
            del self._left[turn]
            self._turns[self._owner.pop(turn)].remove(turn)

    def _turn(self, token: int) -> int:
        iteration, op = divmod(token, self._ops)
        return iteration * self._count + self._lanes[op]
