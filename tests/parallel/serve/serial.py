"""A serial reference: runs what workers do one after the other, in a given order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

import purine as pu
from purine.graph import FETCH, LAST, NOTHING, Graph, Op
from purine.registry.lookup import lookup
from purine.runtime.feeding import read_stream
from purine.runtime.values import initial_states

__all__ = ["Serial"]


class Serial:
    """A graph of workers and its states, which the iterations of workers change.

    An iteration has two halves: up to the last read of parameters, and the rest. `begin` runs the
    first half of a worker's next iteration, and `end` the second.
    """

    def __init__(self, graph: Graph, data: pu.data.DataSet | None = None, *, seed: int = 3) -> None:
        self.graph = graph
        self.kernels = {
            op.name: lookup(op).bind(op) for op in graph.ops.values() if op.kind != "Data"
        }
        self.kernels |= read_stream(graph, data)
        self.shared = {s.next: s.shared for s in graph.states.values() if s.shared}
        self.iterations: dict[int, int] = {}
        self.begun: dict[int, Iterator[dict[str, Tensor]]] = {}
        first = initial_states(graph, seed)
        self.states = {self.key(name): value for name, value in first.items()}

    def key(self, state: str) -> str:
        """The name of a state's value: that of all workers where it is shared."""
        return self.graph.states[state].shared or state

    def begin(self, worker: int) -> None:
        """Read what the next iteration of a worker reads."""
        self.begun[worker] = self._iteration(worker)
        next(self.begun[worker])

    def end(self, worker: int) -> dict[str, Tensor]:
        """Complete the iteration that was begun; returns all that it computed."""
        return next(self.begun.pop(worker))

    def run(self, workers: Iterable[int]) -> list[dict[str, Tensor]]:
        """One iteration of each of these workers, in this order, with all that it computed."""
        results = []
        for worker in workers:
            self.begin(worker)
            results.append(self.end(worker))
        return results

    def _iteration(self, worker: int) -> Iterator[dict[str, Tensor]]:
        iteration = self.iterations.get(worker, 0)
        self.iterations[worker] = iteration + 1
        values: dict[str, Tensor] = {}
        order = [self.graph.ops[name] for name in self.graph.order]
        order = [op for op in order if op.worker == worker and op.runs_in(iteration)]
        reads = [op for op in order if op.kind == FETCH or op.name.endswith("/ticket")]
        for op in reads:
            self._call(op, values)
        yield values
        for op in order:
            if op not in reads:
                self._call(op, values)
        for name, state in self.graph.states.items():
            if not state.shared and state.next in values:
                self.states[name] = values[state.next]
        yield values

    def _call(self, op: Op, values: dict[str, Tensor]) -> None:
        results = self.kernels[op.name](*(self._read(op, name, values) for name in op.inputs))
        outputs = results if isinstance(results, tuple) else (results,)
        for output, value in zip(op.outputs, outputs, strict=True):
            if output != NOTHING:
                values[output] = value
                if output in self.shared:
                    self.states[self.shared[output]] = value

    def _read(self, op: Op, name: str, values: dict[str, Tensor]) -> Tensor | None:
        if name in self.graph.states:
            return self.states[self.key(name)]
        return values.get(name) if op.kind == LAST else values[name]
