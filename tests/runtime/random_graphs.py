"""Random graphs with states, views, updates and control edges, and their serial execution."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from purine.analysis.infer import check
from purine.graph import Builder, Filler, Graph
from purine.registry.lookup import lookup
from purine.runtime.values import initial_states

SIZE = 4
UNARY = ("aten.relu", "aten.tanh", "aten.sigmoid", "aten.neg", "aten.t", "aten.clone")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor", "aten.mm")


def random_graph(seed: int, *, ops: int = 25, lanes: int = 1) -> Graph:
    """A graph of elementwise ops, products, views and updates over small square blobs."""
    draw = random.Random(seed)
    b = Builder()
    blobs: list[str] = []

    def lane() -> str:
        number = draw.randrange(lanes)
        return f"compute:{number}" if number else "compute"

    gaussian = Filler("gaussian", {"std": 0.5})
    states = [f"state{i}" for i in range(draw.randint(1, 4))]
    for name in states:
        b.blob(name, (SIZE, SIZE))
        blobs.append(name)
    b.blob("rate", (), "float64")
    b.state("rate", filler=Filler("constant", {"value": 0.1}))
    for index in range(ops):
        name = f"op{index}"
        b.blob(name, (SIZE, SIZE))
        if draw.random() < 0.5:
            b.op(name, draw.choice(UNARY), [draw.choice(blobs)], [name], lane=lane())
        else:
            inputs = [draw.choice(blobs), draw.choice(blobs)]
            b.op(name, draw.choice(BINARY), inputs, [name], lane=lane())
        blobs.append(name)
    for name in states:
        following, velocity = b.blob(f"{name}/next", (SIZE, SIZE)), f"velocity/{name}"
        gradient = draw.choice(blobs)
        how = draw.random()
        if how < 0.5:
            b.blob(velocity, (SIZE, SIZE))
            b.blob(f"{velocity}/next", (SIZE, SIZE))
            b.state(velocity, f"{velocity}/next")
            b.op(
                f"update/{name}",
                "MomentumUpdate",
                [name, gradient, velocity, "rate"],
                [following, f"{velocity}/next"],
                {"momentum": 0.5},
                lane=lane(),
            )
            b.state(name, following, gaussian)
        elif how < 0.75:
            inputs = [name, gradient, "rate"]
            b.op(f"update/{name}", "SgdUpdate", inputs, [following], lane=lane())
            b.state(name, following, gaussian)
            if draw.random() < 0.5:  # somebody of this iteration reads the updated value as well
                b.blob(f"{name}/seen", (SIZE, SIZE))
                b.op(f"{name}/seen", "aten.tanh", [following], [f"{name}/seen"], lane=lane())
                blobs.append(f"{name}/seen")
        elif how < 0.9:
            b.op(f"update/{name}", "aten.sigmoid", [gradient], [following], lane=lane())
            b.state(name, following, gaussian)
        else:
            del b.blobs[following]
            b.state(name, filler=gaussian)
    names = list(b.ops)
    for _ in range(draw.randint(0, 4)):
        first, second = sorted(draw.sample(range(len(names)), 2))
        b.control.add((names[first], names[second]))
    b.outputs = draw.sample(blobs, min(3, len(blobs)))
    return check(b.graph())


def serial(graph: Graph, iterations: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """The outputs of every iteration and the last states, one op after the other, all copied."""
    states = initial_states(graph, 0)
    outputs = []
    for _ in range(iterations):
        values = {name: value.clone() for name, value in states.items()}
        for name in graph.order:
            op = graph.ops[name]
            kind = lookup(op)
            inputs = [values[blob].clone() for blob in op.inputs]
            call = kind.bind(op) if kind.variants.in_place is None else kind.bind_overwrite(op)
            results = call(*inputs)
            results = (results,) if isinstance(results, Tensor) else results
            values.update(
                (blob, result.clone()) for blob, result in zip(op.outputs, results, strict=True)
            )
        outputs.append({name: values[name] for name in graph.outputs})
        states = {name: values[state.next] for name, state in graph.states.items()}
    return outputs, states


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two float32 tensors are alike to the last bit, NaNs included."""
    if left.dtype != torch.float32:
        return torch.equal(left, right)
    return torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))
