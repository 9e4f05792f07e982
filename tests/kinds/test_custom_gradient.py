"""The rule of a CustomGradient is what a backward runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import purine as pu
from purine.analysis.infer import complete
from purine.analysis.rule_parts import needs_whole_batch
from purine.errors import GraphError, KindError
from purine.graph import Builder, Graph
from purine.kinds.custom_gradient import CUSTOM_GRADIENT, add_custom_gradient
from purine.registry import aten
from purine.registry.clock import add_clock


def rule(kind: str = "aten.mul.Tensor") -> Graph:
    body = Builder()
    for name in ("cotangent", "saved", "gradient"):
        body.blob(name, None, "float64")
    body.op("mul", kind, ["cotangent", "saved"], ["gradient"])
    body.outputs = ["gradient"]
    return body.graph()


def net(body: Graph) -> Graph:
    """loss = sum of sign(w), where the gradient of sign is its cotangent times w."""
    builder = Builder()
    builder.blob("w", (3,), "float64")
    builder.state("w", trainable=True)
    for name in ("sign", "value"):
        builder.blob(name, (3,), "float64")
    for name in ("sum", "loss"):
        builder.blob(name, (), "float64")
    builder.op("sign", "aten.sign", ["w"], ["sign"])
    add_custom_gradient(builder, "custom", [("sign", "value")], body, ["w"], ["w"])
    builder.op("sum", "aten.sum", ["value"], ["sum"])
    builder.op("loss", "ScalarLoss", ["sum"], ["loss"])
    builder.outputs = ["loss"]
    return builder.graph()


def test_a_backward_runs_the_rule() -> None:
    graph = net(rule())
    assert pu.graph.from_yaml(pu.graph.to_yaml(graph)) == graph
    step = pu.backward(graph)
    assert CUSTOM_GRADIENT not in {op.kind for op in step.ops.values()}
    w = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    found = pu.compute(pu.prune(step, ["loss", "grad/w"]), {}, states={"w": w})
    assert found["loss"] == 1.0
    assert torch.equal(found["grad/w"], w)


def test_the_op_by_itself_shows_its_results() -> None:
    w = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    found = pu.compute(pu.prune(net(rule()), ["value"]), {}, states={"w": w})
    assert torch.equal(found["value"], w.sign())


def test_a_gradient_of_another_form_is_refused() -> None:
    with pytest.raises(GraphError, match="of op 'custom' gives a gradient of blob 'w'"):
        pu.backward(net(rule("aten.dot")))


@pytest.mark.parametrize(
    "change",
    [{"saved": ()}, {"saved": (9,)}, {"sources": ()}, {"rule": "- {type: output, blob: x}"}],
    ids=str,
)
def test_rules_that_do_not_fit_their_op_are_refused(change: dict[str, object]) -> None:
    graph = net(rule())
    builder = Builder(graph)
    op = graph.ops["custom"]
    builder.ops["custom"] = replace(op, attributes={**op.attributes, **change})
    builder.blobs["value"] = replace(graph.blobs["value"], shape=None)
    with pytest.raises((KindError, GraphError)):
        complete(builder.graph())


LINEAR = [
    lambda g, x, w: -2 * g * x,
    lambda g, x, w: g * (x > 0) / w,
    lambda g, x, w: torch.where(x > 0, g, torch.zeros_like(g)),
    lambda g, x, w: g.masked_fill(x > 0, 0.0),
    lambda g, x, w: (g * x).sum(0),
    lambda g, x, w: (g * x).sum(1, keepdim=True).expand(4, 3) * w,
    lambda g, x, w: g.t() @ x,
    lambda g, x, w: g @ w.diag(),
    lambda g, x, w: g + 2 * g,
]
WHOLE = [
    lambda g, x, w: g.clamp(-1, 1),
    lambda g, x, w: g / g.norm(),
    lambda g, x, w: g.sign() * x,
    lambda g, x, w: g - g.mean(0),
    lambda g, x, w: g - g.sum(0),
    lambda g, x, w: x * g.sum(0),
    lambda g, x, w: g + x,
    lambda g, x, w: x / g,
    lambda g, x, w: g.t().sum(1) * x,
    lambda g, x, w: g * g,
]


def recorded(function: Callable[..., Tensor]) -> Graph:
    """The rule of a function of a cotangent, data and a weight."""
    given = torch.ones(4, 3), torch.ones(4, 3), torch.ones(3)
    traced = make_fx(function)(*given)
    body, names = Builder(), {}
    for node in traced.graph.nodes:
        if node.op == "output":
            body.outputs = [names[node.args[0]]]
            continue
        names[node] = body.blob(node.name, None, "float32")
        if node.op == "call_function":
            values: list[str] = []

            def number(value: object, values: list[str] = values) -> int | None:
                if value not in names:
                    return None
                values.append(names[value])
                return len(values) - 1

            _, settings = aten.attributes_of(node.target, node.args, node.kwargs, number)
            body.op(node.name, aten.name_of(node.target), values, [node.name], settings)
    return body.graph()


@pytest.mark.parametrize(("functions", "whole"), [(LINEAR, False), (WHOLE, True)])
def test_rules_that_see_more_than_their_sample_need_the_whole_batch(
    functions: list[Callable[..., Tensor]], whole: bool
) -> None:
    for function in functions:
        graph = recorded(function)
        assert needs_whole_batch(graph, 1) is whole, graph


def test_a_rule_that_needs_the_whole_batch_refuses_parts_of_it() -> None:
    body = Builder()
    for name in ("cotangent", "gradient"):
        body.blob(name, None, "float64")
    body.op("clamp", "aten.clamp", ["cotangent"], ["gradient"], {"min": -1.0, "max": 1.0})
    body.outputs = ["gradient"]
    builder = Builder()
    builder.blob("w", (3,), "float64")
    builder.state("w", trainable=True)
    for name in ("data", "twice", "value"):
        builder.blob(name, (2, 3), "float64")
    for name in ("sum", "loss"):
        builder.blob(name, (), "float64")
    builder.op("data", "Data", ["seed", "iteration"], ["data"], lane="io")
    builder.op("twice", "aten.mul.Tensor", ["data", "w"], ["twice"])
    add_custom_gradient(builder, "custom", [("twice", "value")], body.graph(), ["twice"], [])
    builder.op("sum", "aten.mean", ["value"], ["sum"])
    builder.op("loss", "ScalarLoss", ["sum"], ["loss"])
    builder.outputs = ["loss"]
    add_clock(builder)
    step = pu.solvers.sgd(pu.backward(builder.graph()), lr=0.1)
    with pytest.raises(GraphError, match="the gradient rule of op 'custom' needs the whole batch"):
        pu.parallel.replicate(step, ["cpu:0", "cpu:1"])
    with pytest.raises(GraphError, match="the gradient rule of op 'custom' needs the whole batch"):
        pu.parallel.accumulate(step, 2)
