"""The rule of a CustomGradient is what a backward runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import purine as pu
from purine.errors import GraphError, KindError
from purine.graph import Builder, Graph
from purine.ops.custom_gradient import CUSTOM_GRADIENT, add_custom_gradient
from purine.ops.infer import complete


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
