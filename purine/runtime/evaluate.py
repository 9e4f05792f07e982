"""Evaluation: the means of a graph's outputs over a test set, each sample counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from purine.analysis.infer import with_batch
from purine.data import DataSet
from purine.errors import ConfigError
from purine.graph import Graph
from purine.lowering import lower
from purine.machine.settings import tf32_of
from purine.registry.clock import ITERATION
from purine.runtime.executor import Executor, Settings
from purine.runtime.feeding import batch_of, data_ops, read_rows
from purine.runtime.program import compile_program
from purine.runtime.values import at_home, initial_states

__all__ = ["Evaluation"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Means over the test part of `data`; states without `values` are filled from `seed`."""

    data: DataSet | None
    values: Mapping[str, Tensor]
    seed: int
    credit: int
    threads: int | None
    tf32: bool

    def means(self, graph: Graph) -> dict[str, float]:
        """The mean of each output; samples that do not fill a batch form a smaller one."""
        data = self._checked_data(graph)
        assert data.test is not None
        batch, count = batch_of(graph, data_ops(graph)[0]), len(data.test)
        whole, rest = divmod(count, batch)
        totals = dict.fromkeys(graph.outputs, 0.0)
        for size, start, times in ((batch, 0, whole), (rest, count - rest, 1)):
            if size and times:
                sized = graph if size == batch else with_batch(graph, size)
                for name, total in self._sums(sized, data, start, times).items():
                    totals[name] += total * size
        return {name: total / count for name, total in totals.items()}

    def _checked_data(self, graph: Graph) -> DataSet:
        """The data set; an error where the graph or the data cannot be evaluated."""
        sources, data = data_ops(graph), self.data
        if not sources or data is None or data.test is None:
            raise ConfigError(
                "there is nothing to evaluate on",
                expected="a graph with a Data op, and data with a test part",
                found=f"{len(sources)} Data ops, data {data.name if data else None!r}",
                remedy="give data with a test part, as pu.data.tensors(x, y, test=(...)), or "
                "run.evaluate(graph, data=...)",
            )
        for name in graph.outputs:
            blob = graph.blobs[name]
            if torch.Size(blob.shape or ()).numel() != 1:
                raise ConfigError(
                    f"output {name!r} has no mean over the test set",
                    blob=blob,
                    expected="outputs that are single numbers",
                    found=f"shape {list(blob.shape or ())}",
                    remedy=f"leave {name!r} out of the outputs: pu.evaluation(net, ['loss'])",
                )
        return data

    def _sums(self, graph: Graph, data: DataSet, start: int, times: int) -> dict[str, float]:
        """The sums of the outputs over `times` batches of the rows from `start` on."""
        program = compile_program(lower(graph), read_rows(graph, data, start))
        tf32, states = tf32_of(graph, self.tf32), self._states(graph)
        settings = Settings(credit=self.credit, threads=self.threads, tf32=tf32)
        totals = dict.fromkeys(graph.outputs, 0.0)
        with Executor(program, states=states, settings=settings) as executor:
            for iteration in range(times):
                executor.extend(min(times, iteration + self.credit))
                for name, value in executor.wait(iteration).items():
                    totals[name] += float(value)
        return totals

    def _states(self, graph: Graph) -> dict[str, Tensor]:
        """States for one execution; those that it changes are copies."""
        given = {
            name: self.values[name] if state.next == name else self.values[name].clone()
            for name, state in graph.states.items()
            if name in self.values and name != ITERATION
        }
        states = initial_states(graph, self.seed, given)
        return {name: at_home(graph, name, value) for name, value in states.items()}
