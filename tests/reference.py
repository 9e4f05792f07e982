"""A serial interpreter of graphs: what every executor and every transform is compared with."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torch import Tensor

from purine.graph import NOTHING, Graph
from purine.registry.fillers import fill
from purine.registry.lookup import lookup

__all__ = ["following", "run", "start"]


def start(graph: Graph, *, seed: int = 0, known: Container[str] = ()) -> dict[str, Tensor]:
    """The first value of every state, from its filler; the state `seed` holds the seed.

    States that are `known` are left out.
    """
    values = {}
    for name, state in graph.states.items():
        if name in known:
            continue
        blob = graph.blobs[name]
        assert blob.shape is not None
        values[name] = fill(state.filler, blob.shape, blob.dtype, seed=seed, name=name)
    if "seed" in values:
        values["seed"] = values["seed"].fill_(seed)
    return values


def run(
    graph: Graph,
    feeds: Mapping[str, Tensor] | None = None,
    states: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The values of all blobs after one iteration, op by op in the graph's own order.

    `feeds` holds the inputs and the results of sources (ops of kind `Data`). States that `states`
    does not hold start from their fillers.
    """
    given = {**(states or {}), **(feeds or {})}
    values = {**start(graph, known=given), **given}
    assert len(graph.order) == len(graph.ops), "the graph has a cycle"
    for name in graph.order:
        op = graph.ops[name]
        kind = lookup(op)
        if kind.function is None:
            missing = [blob for blob in op.outputs if blob not in values]
            assert not missing, f"feed the results of source {name!r}: {missing}"
            continue
        results = kind.bind(op)(*(values[blob] for blob in op.inputs))
        results = (results,) if isinstance(results, Tensor) else tuple(results)
        assert len(results) == len(op.outputs), op
        for blob, result in zip(op.outputs, results, strict=True):
            if blob != NOTHING:
                values[blob] = result
    return values


def following(graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The states that the next iteration reads, from the values of this one."""
    return {name: values[state.next] for name, state in graph.states.items()}
