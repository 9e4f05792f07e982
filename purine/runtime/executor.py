"""Running a program on CPU lanes: a thread per lane around one core.

A lane runs the next ready op itself, in line; only an op of another lane costs a hop between
threads. One lock guards the core and the queues and is held for microseconds; kernels run outside
of it, and torch's kernels release the interpreter's lock as well.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from purine.errors import KernelError, RunError, StallError
from purine.graph import Graph
from purine.ops.registry import Kernel
from purine.runtime.core import Core, compile_plan
from purine.runtime.program import Step, compile_program
from purine.runtime.trace import Event, Trace, edges_of

__all__ = ["Executor"]


class Executor:
    """One execution of a graph on the CPU of this machine.

    `states` gives the value of every state at iteration `start`, `feeds` that of every input, the
    same in all iterations. The executor owns the states' tensors: it writes over them. `credit`
    bounds the iterations in flight. `threads` is the number of intra-op threads of a compute lane.
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
        record: bool = False,
    ) -> None:
        self.graph = graph
        self.plan = compile_plan(graph)
        self.program = compile_program(graph, self.plan, sources or {})
        self.core = Core(self.plan, start=start, credit=credit)
        self.threads = threads or torch.get_num_threads()
        self._slots = credit + 1
        numbers = self.program.blobs
        constants = {**states, **(feeds or {})}
        self._values: list[list[Any]] = [[None] * len(numbers) for _ in range(self._slots)]
        for values in self._values:
            for name in self.program.constants:
                values[numbers[name]] = constants[name]
        for name in graph.states:
            self._values[start % self._slots][numbers[name]] = states[name]
        self._uses = [list(self.program.uses) for _ in range(self._slots)]
        self._watched = [list(self.program.watched) for _ in range(self._slots)]
        self._outputs = [(name, numbers[name]) for name in graph.outputs]
        self._results: dict[int, dict[str, Tensor]] = {}
        self._collected = start
        self._lock = threading.Lock()
        self._host = threading.Condition(self._lock)
        self._wake = [threading.Condition(self._lock) for _ in self.plan.stations]
        self._queues: list[list[int]] = [[] for _ in self.plan.stations]
        self._running = len(self.plan.stations)
        self._failure: RunError | None = None
        self._closing = False
        self._record = record
        self._records: list[list[tuple[int, int, int]]] = [[] for _ in self.plan.stations]
        self._threads = [
            threading.Thread(target=self._lane, args=(index,), name=f"{place} {lane}", daemon=True)
            for index, (place, lane) in enumerate(self.plan.stations)
        ]
        for thread in self._threads:
            thread.start()

    def extend(self, limit: int) -> None:
        """Let iterations below `limit` run."""
        with self._lock:
            self._enqueue(self.core.extend(limit), -1)

    def wait(self, iteration: int) -> dict[str, Tensor]:
        """The outputs of an iteration, once all of it is complete."""
        with self._lock:
            while iteration not in self._results and self._failure is None:
                self._host.wait()
            if self._failure is not None:
                raise self._failure
            return self._results.pop(iteration)

    def drain(self) -> int:
        """Wait until everything that may run has run; returns the number of complete iterations."""
        with self._lock:
            while not self.core.idle and self._failure is None:
                self._host.wait()
            if self._failure is not None:
                raise self._failure
            return self.core.completed

    def states(self) -> dict[str, Tensor]:
        """The values of all states after `drain`: not copies, they change when the run goes on."""
        assert self.core.idle
        values = self._values[self.core.completed % self._slots]
        return {name: values[self.program.blobs[name]] for name in self.graph.states}

    def trace(self) -> Trace:
        """What was recorded so far."""
        events = [
            self._event(station, token, begin, end)
            for station, records in enumerate(self._records)
            for token, begin, end in list(records)
        ]
        return Trace(tuple(events), edges_of(self.graph))

    def close(self) -> None:
        """Stop all lanes after the ops they are running; values stay readable."""
        with self._lock:
            self._closing = True
            for wake in self._wake:
                wake.notify()
        for thread in self._threads:
            thread.join()

    def _event(self, station: int, token: int, begin: int, end: int) -> Event:
        iteration, index = divmod(token, self.core.size)
        op = self.graph.ops[self.plan.ops[index]]
        location, lane = self.plan.stations[station]
        return Event(op.name, op.kind, iteration, str(location), lane, begin, end)

    def _lane(self, station: int) -> None:
        compute = self.plan.stations[station][1].startswith("compute")
        torch.set_num_threads(self.threads if compute else 1)
        queue, lock = self._queues[station], self._lock
        with torch.no_grad():
            while True:
                with lock:
                    if not self._await_work(station):
                        return
                    token = heappop(queue)
                try:
                    self._run_from(station, token)
                except Exception as error:
                    with lock:
                        self._fail(error)
                    return

    def _await_work(self, station: int) -> bool:
        """Sleep until there is something to run; False when the lane has to end. Holds the lock."""
        queue = self._queues[station]
        self._running -= 1
        while not queue or self._closing or self._failure is not None:
            if self._closing or self._failure is not None:
                return False
            if self._running == 0 and not self.core.idle and not any(self._queues):
                self._fail(_stall(self.core, self.graph))
                return False
            self._wake[station].wait()
        self._running += 1
        return True

    def _run_from(self, station: int, first: int) -> None:
        """Run a token and then, in line, whatever is next on this lane until nothing is ready."""
        steps, size, slots = self.program.steps, self.core.size, self._slots
        all_values, all_uses, all_watched = self._values, self._uses, self._watched
        queue, lock, complete = self._queues[station], self._lock, self.core.complete
        place, record = self.plan.station, self._records[station] if self._record else None
        token: int | None = first
        begin = 0
        while token is not None:
            slot = token // size % slots
            step = steps[token % size]
            values = all_values[slot]
            arguments = [values[number] for number in step.reads]
            if step.over:
                _separate(step, arguments, all_watched[slot])
            if record is not None:
                begin = perf_counter_ns()
            try:
                results = step.kernel(*arguments)
            except Exception as error:
                raise self._kernel_error(token, arguments, error) from error
            if record is not None:
                record.append((token, begin, perf_counter_ns()))
            del arguments
            writes = step.writes
            if len(writes) == 1:
                if writes[0] >= 0:
                    values[writes[0]] = results
                if step.carries:
                    all_values[(slot + 1) % slots][step.carries[0][1]] = results
            else:
                for number, result in zip(writes, results, strict=True):
                    if number >= 0:
                        values[number] = result
                for index, number in step.carries:
                    all_values[(slot + 1) % slots][number] = results[index]
            del results
            for number in step.drops:
                values[number] = None
            with lock:
                if step.shared:
                    uses = all_uses[slot]
                    for number in step.shared:
                        uses[number] -= 1
                        if not uses[number]:
                            values[number] = None
                if step.families:
                    watched = all_watched[slot]
                    for family in step.families:
                        watched[family] -= 1
                ready = complete(token)
                if self.core.completed != self._collected:
                    self._collect()
                for item in ready:
                    target = place[item % size]
                    heappush(self._queues[target], item)
                    if target != station:
                        self._wake[target].notify()
                stop = self._closing or self._failure is not None
                token = heappop(queue) if queue and not stop else None

    def _enqueue(self, tokens: Sequence[int], station: int) -> None:
        for token in tokens:
            target = self.plan.station[token % self.core.size]
            heappush(self._queues[target], token)
            if target != station:
                self._wake[target].notify()

    def _collect(self) -> None:
        """Take the outputs of iterations that became complete and make their slots anew."""
        while self._collected < self.core.completed:
            slot = self._collected % self._slots
            values = self._values[slot]
            self._results[self._collected] = {name: values[n] for name, n in self._outputs}
            for name, number in self._outputs:
                if name not in self.program.constants:
                    values[number] = None
            self._uses[slot] = list(self.program.uses)
            self._watched[slot] = list(self.program.watched)
            self._collected += 1
        self._host.notify_all()

    def _fail(self, error: Exception) -> None:
        """Note the first failure and wake everybody. Holds the lock."""
        if self._failure is None:
            self._failure = error if isinstance(error, RunError) else _unexpected(error)
        for wake in (*self._wake, self._host):
            wake.notify_all()

    def _kernel_error(self, token: int, inputs: Sequence[Tensor], error: Exception) -> KernelError:
        iteration, index = divmod(token, self.core.size)
        op = self.graph.ops[self.plan.ops[index]]
        given = ", ".join(
            f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            for name, value in zip(op.inputs, inputs, strict=True)
        )
        return KernelError(
            f"op {op.name!r} ({op.kind}) at {op.location}, lane {op.lane}, "
            f"failed in iteration {iteration}: {error}",
            where=op.where,
            op=op.name,
            location=str(op.location),
            expected="a kernel that takes its inputs",
            found=f"{type(error).__name__} on {given or 'no inputs'}",
            remedy="mend the inputs or the op; the last checkpoint is intact",
        )


def _separate(step: Step, arguments: list[Any], watched: Sequence[int]) -> None:
    """Copy what the kernel writes over and somebody else has still to read."""
    for place, family in step.over:
        if watched[family] != 1:
            arguments[place] = arguments[place].clone()


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


def _unexpected(error: Exception) -> RunError:
    failure = RunError(f"the dispatcher failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
