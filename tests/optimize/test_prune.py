"""Pruning: what nothing needs is gone, and test-time forms are in place."""

from __future__ import annotations

import pytest

import purine as pu
from purine.errors import GraphError
from purine.kinds import Net, batch_norm, conv, flatten, inner_product, softmax_loss


def normalised() -> pu.Graph:
    net = Net()
    data, label = net.data((4, 3, 8, 8))
    x = batch_norm(conv(data, 4, kernel=3, name="conv1"), name="bn1")
    softmax_loss(inner_product(flatten(x), 3, name="fc"), label, name="loss")
    return net.graph()


def test_what_no_output_and_no_state_needs_is_gone() -> None:
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4)), lr=0.1)
    pruned = pu.prune(step, ["loss"])
    assert "accuracy" in step.ops
    assert "accuracy" not in pruned.ops
    assert {name for name in step.ops if name not in pruned.ops} == {"accuracy"}
    assert pruned.states == step.states


def test_states_that_nobody_asks_for_go_with_what_updates_them() -> None:
    step = pu.backward(normalised())
    forward = pu.prune(step, ["loss"], states=())
    assert "bn1/mean" in pu.prune(step, ["loss"]).states
    assert not any(name.startswith("grad/") for name in forward.ops)


def test_a_training_graph_keeps_running_statistics() -> None:
    step = pu.prune(pu.solvers.sgd(pu.backward(normalised()), lr=0.1), ["loss"])
    assert step.states["bn1/mean"].next == "bn1/mean_next"


def test_evaluation_uses_running_statistics_and_changes_no_state() -> None:
    test = pu.check(pu.evaluation(normalised()))
    assert test.ops["bn1"].kind == "BatchNormTest"
    changed = [name for name, state in test.states.items() if state.next != name]
    assert changed == ["iteration"]
    assert test.ops["data"].attributes == {"source": "test", "shuffle": False}


def test_an_output_behind_a_dropout_keeps_its_name() -> None:
    test = pu.check(pu.evaluation(pu.zoo.nin(batch=2), ["drop1"]))
    assert test.inputs == ()
    assert test.outputs == ("drop1",)
    assert "drop1" in test.producers


def test_inference_is_fed_and_needs_no_labels() -> None:
    graph = pu.check(pu.inference(pu.zoo.lenet(batch=2), ["fc2"]))
    assert graph.inputs == ("data",)
    assert "label" not in graph.blobs
    assert "iteration" not in graph.states


def test_an_output_that_is_not_there_is_named() -> None:
    with pytest.raises(GraphError, match="did you mean fc2"):
        pu.prune(pu.zoo.lenet(batch=2), ["fc2_"])
