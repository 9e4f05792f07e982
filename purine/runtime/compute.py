"""Executions besides runs: one iteration of a fed graph, and means over a test set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from purine.analysis.infer import check, with_batch
from purine.arguments import at_least, checked
from purine.data import DataSet
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.lowering import lower
from purine.machine.settings import tf32_of
from purine.nearest import unknown_name
from purine.registry.clock import ITERATION
from purine.runtime import values as tensors
from purine.runtime.executor import Executor, Settings
from purine.runtime.feeding import batch_of, data_ops, read_rows
from purine.runtime.program import Program, compile_program
from purine.runtime.values import LARGEST_SEED, Values, at_home, initial_states
from purine.transports.world import World, host_lost

__all__ = ["compute", "means_over_test_set", "outputs_over_test_set"]


@checked
def compute(
    graph: Graph, feeds: Values | None = None, *, states: Values | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """Run one iteration of a graph whose inputs are fed, and return its outputs.

    Values may also be numpy arrays, lists and numbers.

    >>> from purine.kinds import Net, relu
    >>> net = Net()
    >>> y = relu(net.input("x", (2,)), name="y")
    >>> compute(net.graph(), {"x": [-1.0, 2.0]})["y"].tolist()
    [0.0, 2.0]
    """
    graph = check(graph)
    at_least("seed", seed, 0, LARGEST_SEED)
    feeds, states = feeds or {}, states or {}
    _check_names(graph, feeds, states)
    given = {**feeds, **states}
    values = {name: tensors.as_tensor(graph, name, value) for name, value in given.items()}
    for name, value in values.items():
        tensors.check_value(graph, name, value)
    with Executor(
        compile_program(lower(graph)),
        states=_first_states(graph, seed, {name: values[name].clone() for name in states}),
        feeds={name: at_home(graph, name, values[name]) for name in graph.inputs},
        settings=Settings(credit=1, tf32=tf32_of(graph, False)),
    ) as executor:
        executor.extend(1)
        return executor.wait(0)


def _check_names(graph: Graph, feeds: Values, states: Values) -> None:
    """Raise an error unless every input is fed, and only inputs and states have values."""
    for name in graph.inputs:
        if name not in feeds:
            raise RunError(
                f"input blob {name!r} is not fed",
                blob=name,
                expected=f"a value for each of {', '.join(graph.inputs)}",
                found=", ".join(feeds) or "none",
                remedy=f"add {name!r} to feeds",
            )
    for op in data_ops(graph):
        raise ConfigError(
            f"op {op.name!r} reads data, and a graph to compute is fed",
            op=op,
            expected="a graph whose inputs are fed, made with Net.input or pu.inference",
            found="a Data op",
            remedy="run it with pu.Run(graph, data=...), or cut the Data op off: pu.inference(net)",
        )
    known = (*graph.inputs, *graph.states)
    for name in (*feeds, *states):
        if name not in known:
            remedy = "correct the name, or leave it out of feeds and states"
            raise unknown_name(RunError, "input or state", name, known, remedy=remedy)


def means_over_test_set(
    graph: Graph,
    data: DataSet | None,
    values: Mapping[str, Tensor],
    seed: int,
    settings: Settings,
    *,
    world: World | None = None,
) -> dict[str, float]:
    """The mean of each output over the test part of `data`, each sample counted once.

    Samples that do not fill a batch form a smaller one. States without `values` are filled from
    `seed`. Several hosts share out the batches, unless one batch changes what the next one reads.
    """
    sources = data_ops(graph)
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
    batches = partial(outputs_over_test_set, graph, data, values, seed, settings)
    changing = {name for name, state in graph.states.items() if state.next != name}
    if world is None or changing - {ITERATION}:
        totals = _sums(graph, batches())
    else:
        share = world.hosts.index(world.host), len(world.hosts)
        own = partial(batches, share=share, between=partial(_refuse_lost, world))
        told = world.jointly(lambda: json.dumps(_sums(graph, own())), op="evaluate")
        parts = [json.loads(told[host]) for host in world.hosts]
        totals = {name: sum(part[name] for part in parts) for name in graph.outputs}
    return {name: total / len(data.test) for name, total in totals.items()}


def _refuse_lost(world: World) -> None:
    """Raise if a host is lost: all are needed after a test."""
    for host, why in world.losses().items():
        raise host_lost(host, why, op="evaluate", blob="states")


def _sums(graph: Graph, batches: Iterator[tuple[int, Mapping[str, Tensor]]]) -> dict[str, float]:
    """The sum of each output over all samples of batches, whose outputs are means."""
    sums: dict[int, dict[str, float]] = {}
    for size, outputs in batches:
        of_size = sums.setdefault(size, dict.fromkeys(graph.outputs, 0.0))
        for name, value in outputs.items():
            of_size[name] += float(value)
    totals = dict.fromkeys(graph.outputs, 0.0)
    for size, of_size in sums.items():
        for name, total in of_size.items():
            totals[name] += total * size
    return totals


def outputs_over_test_set(
    graph: Graph,
    data: DataSet,
    values: Mapping[str, Tensor],
    seed: int,
    settings: Settings,
    *,
    share: tuple[int, int] = (0, 1),
    between: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
    """The size and the outputs of each batch of the test part of `data`, in order.

    Of several shares (number, of how many) each has some of the batches; the smaller last batch
    belongs to the first. `between` is called between two batches.
    """
    assert data.test is not None
    batch, count = batch_of(graph, data_ops(graph)[0]), len(data.test)
    whole, rest = divmod(count, batch)
    number, shares = share
    own = range(whole * number // shares, whole * (number + 1) // shares)
    last = range(1 if rest and number == 0 else 0)
    for size, start, batches in ((batch, 0, own), (rest, count - rest, last)):
        if batches:
            sized = graph if size == batch else with_batch(graph, size)
            # States that one execution changes are copies.
            given = {
                name: values[name] if state.next == name else values[name].clone()
                for name, state in sized.states.items()
                if name in values and name != ITERATION
            }
            if ITERATION in sized.states:
                given[ITERATION] = torch.tensor(batches.start)
            program = compile_program(lower(sized), read_rows(sized, data, start))
            states = _first_states(sized, seed, given)
            for outputs in _outputs(program, states, batches, settings, between):
                yield size, outputs


def _outputs(
    program: Program,
    states: Mapping[str, Tensor],
    batches: range,
    settings: Settings,
    between: Callable[[], None],
) -> Iterator[Mapping[str, Tensor]]:
    """The outputs of some batches, whose numbers are their iterations."""
    with Executor(program, states=states, start=batches.start, settings=settings) as executor:
        for iteration in batches:
            between()
            executor.extend(min(batches.stop, iteration + settings.credit))
            yield executor.wait(iteration)


def _first_states(graph: Graph, seed: int, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    states = initial_states(graph, seed, given)
    return {name: at_home(graph, name, value) for name, value in states.items()}
