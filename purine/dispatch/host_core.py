"""The dispatcher's core for one host of several, which also waits for other hosts.

An arrival is ready when its iteration is open here and its value has arrived. A put is ready when
its blob exists and the receiver has a free slot for it. A receiver has `slots` slots for each blob
and returns those of an iteration when the iteration is complete there, so a put of iteration i
waits until the receiver has completed iteration i - slots.

Collectives of a group of hosts run in one order over all iterations: one whose turn has not come is
held back. A collective on a GPU is also held back until the iterations before its own are complete
here. So a thread that waits until a GPU is idle (to free memory, to load a kernel, to capture a
graph) does not wait for a peer that waits for later work of this thread.

No set of hosts can deadlock on this. Consider the oldest iteration that some host has not
completed. All earlier ones are complete everywhere, so its puts have slots. Its ops wait only for
ops of the same iteration, among which there is no cycle, even if a collective counts as one op of
all its hosts. A put without a slot blocks nothing: it waits here and not on a lane.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from purine.core import Core, Plan
from purine.lowering.deadlines import SPAN

__all__ = ["TOKEN", "HostCore"]

TOKEN = (1 << 62) - 1
"""The bits of a token that are not its order."""


class _Turns:
    """The order of the collectives of one group, over all iterations.

    With `settled` they also wait for the iterations before their own.
    """

    def __init__(self, ops: Sequence[int], size: int, start: int, *, settled: bool) -> None:
        self.settled = settled
        self._place = {op: place for place, op in enumerate(ops)}
        self._size, self._next = size, start * len(ops)
        self._ready: dict[int, int] = {}
        """By turn the token that is ready for it."""

    def take(self, token: int, completed: int) -> list[int]:
        """The ready token, if it is its turn; otherwise it is kept."""
        iteration, op = divmod(token, self._size)
        self._ready[iteration * len(self._place) + self._place[op]] = token
        return self.runnable(completed)

    def pass_on(self, completed: int) -> list[int]:
        """The collective whose turn it was is complete; the next token, if it may run."""
        self._next += 1
        return self.runnable(completed)

    def runnable(self, completed: int) -> list[int]:
        """The token whose turn it is, if it is ready and need not wait."""
        token = self._ready.get(self._next)
        if token is None or (self.settled and token // self._size > completed):
            return []
        return [self._ready.pop(self._next)]


class HostCore:
    """A `Core` whose arrivals and puts also wait for other hosts.

    `arrivals` are the numbers of the ops that complete when a value arrives, `puts` those that
    send, with their receivers. `deadlines` gives the order of puts: the position of the op that
    waits for the value, in this iteration or the next. A ready put has this order in its high bits,
    above the token: `token & TOKEN` is the token itself. `turns` are the collectives of each group
    in their order, and `on_gpus` those that run on a GPU.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        arrivals: Collection[int],
        puts: Mapping[int, Collection[str]],
        start: int = 0,
        credit: int = 2,
        slots: int | None = None,
        deadlines: Mapping[int, int] | None = None,
        turns: Sequence[Sequence[int]] = (),
        on_gpus: Collection[int] = (),
    ) -> None:
        self.core = Core(plan, start=start, credit=credit)
        self.plan, self.size = plan, self.core.size
        self.slots = credit + 1 if slots is None else slots
        self._arrivals = frozenset(arrivals)
        self._puts = dict(puts)
        self._deadlines = deadlines or {}
        self._expected: set[int] = set()
        """Arrivals whose iteration is open and whose value is not here."""
        self._early: set[int] = set()
        """Arrivals whose value is here and whose iteration is not open yet."""
        peers = [peer for targets in self._puts.values() for peer in targets]
        self._granted = dict.fromkeys(peers, start + self.slots)
        """By peer: it has slots for the iterations below this one."""
        self._held: dict[str, list[int]] = {peer: [] for peer in self._granted}
        self._turns: dict[int, _Turns] = {}
        self._settled: list[_Turns] = []
        for ops in turns:
            order = _Turns(ops, self.size, start, settled=not set(on_gpus).isdisjoint(ops))
            self._turns |= dict.fromkeys(ops, order)
            self._settled += [order] * order.settled

    @property
    def completed(self) -> int:
        return self.core.completed

    @property
    def opened(self) -> int:
        return self.core.opened

    @property
    def idle(self) -> bool:
        return self.core.idle

    def extend(self, limit: int) -> list[int]:
        return self._runnable(self.core.extend(limit))

    def complete(self, token: int) -> list[int]:
        before = self.completed
        ready = self._runnable(self.core.complete(token))
        turns = self._turns.get(token % self.size)
        if turns is not None:
            ready = [*turns.pass_on(self.completed), *ready]
        if self._settled and self.completed != before:
            ready += [token for order in self._settled for token in order.runnable(self.completed)]
        return ready

    def arrive(self, op: int, iteration: int) -> list[int]:
        """The value of an arrival is in its slot; returns the tokens that became ready."""
        token = iteration * self.size + op
        assert self.completed <= iteration < self.completed + self.slots, "no slot is free for it"
        assert token not in self._early, "it arrived twice"
        if token in self._expected:
            self._expected.remove(token)
            return [token]
        self._early.add(token)
        return []

    def grant(self, peer: str, completed: int) -> list[int]:
        """A peer has completed the iterations below `completed`; returns the puts that may run."""
        if peer not in self._granted:
            return []
        limit = self._granted[peer] = max(self._granted[peer], completed + self.slots)
        held = self._held[peer]
        self._held[peer] = [token for token in held if token // self.size >= limit]
        free = (token for token in held if token // self.size < limit)
        return [self._urgent(token) for token in free if not self._hold(token)]

    def _hold(self, token: int) -> bool:
        """Whether a put has to wait for a slot at one of its peers, for which it is kept."""
        iteration, op = divmod(token, self.size)
        for peer in self._puts[op]:
            if iteration >= self._granted[peer]:
                self._held[peer].append(token)
                return True
        return False

    def _urgent(self, token: int) -> int:
        """The token of a put, with its order among the puts of all iterations in the high bits.

        What is added is a multiple of the number of ops, so the op is still the remainder.
        """
        iteration, op = divmod(token, self.size)
        order = iteration * SPAN + self._deadlines.get(op, 0)
        return token + order * (self.size << TOKEN.bit_length())

    def waiting(self) -> list[tuple[int, str, int]]:
        return self.core.waiting()

    def missing(self) -> list[tuple[int, str]]:
        """The arrivals that the host waits for: (iteration, op), the oldest first."""
        return [
            (token // self.size, self.plan.ops[token % self.size])
            for token in sorted(self._expected)
        ]

    def held(self) -> list[tuple[int, str]]:
        """The puts that wait for a slot: (iteration, op), the oldest first."""
        tokens = sorted(token for held in self._held.values() for token in held)
        return [(token // self.size, self.plan.ops[token % self.size]) for token in tokens]

    def _runnable(self, ready: list[int]) -> list[int]:
        runnable = []
        for token in ready:
            op = token % self.size
            if op in self._arrivals:
                if token not in self._early:
                    self._expected.add(token)
                    continue
                self._early.remove(token)
            elif op in self._puts:
                if self._hold(token):
                    continue
                token = self._urgent(token)
            elif op in self._turns:
                runnable += self._turns[op].take(token, self.completed)
                continue
            runnable.append(token)
        return runnable
