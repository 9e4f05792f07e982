"""One iteration of a graph whose inputs the caller feeds."""

from __future__ import annotations

from torch import Tensor

from purine.analysis.infer import check
from purine.arguments import at_least, checked
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.lowering import lower
from purine.machine.settings import tf32_of
from purine.nearest import unknown_name
from purine.runtime import values as tensors
from purine.runtime.executor import Executor, Settings
from purine.runtime.feeding import data_ops
from purine.runtime.program import compile_program
from purine.runtime.values import LARGEST_SEED, Values, at_home, initial_states

__all__ = ["compute"]


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
    first = initial_states(graph, seed, {name: values[name].clone() for name in states})
    with Executor(
        compile_program(lower(graph)),
        states={name: at_home(graph, name, value) for name, value in first.items()},
        feeds={name: at_home(graph, name, values[name]) for name in graph.inputs},
        settings=Settings(credit=1, tf32=tf32_of(graph, False)),
    ) as executor:
        executor.extend(1)
        return executor.wait(0)


def _check_names(graph: Graph, feeds: Values, states: Values) -> None:
    """Raise an error unless every input is fed, and nothing but inputs and states has a value."""
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
    for name in (*feeds, *states):
        if name not in graph.inputs and name not in graph.states:
            known = (*graph.inputs, *graph.states)
            remedy = "correct the name, or leave it out of feeds and states"
            raise unknown_name(RunError, "input or state", name, known, remedy=remedy)
