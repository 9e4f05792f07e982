"""Provenance: transforms know what a node was made for, whatever the net calls its blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import purine as pu
from purine.errors import GraphError
from purine.graph import Graph, Origin, from_yaml, to_text, to_yaml
from purine.graph.names import origin_of
from purine.graph.nodes import Role
from purine.kinds import Net, inner_product, relu, sigmoid, softmax_loss
from purine.optimize import recompute
from purine.parallel import accumulate, pipeline, place, replicate
from tests.parallel.nets import agree, float64, trained

NAMES = ("micro1", "replica0", "again", "update", "block/grad")


def step(block: str) -> Graph:
    """A step whose net is all in one block."""
    net = Net()
    data, label = net.data((4, 1, 28, 28))
    x = relu(
        sigmoid(inner_product(data, 5, name=f"{block}/fc1"), name=f"{block}/s"), name=f"{block}/r"
    )
    x = inner_product(x, 10, name=f"{block}/fc2")
    net.output(softmax_loss(x, label, name=f"{block}/loss"))
    return pu.solvers.sgd(pu.backward(float64(net.graph())), lr=0.1, momentum=0.9)


TRANSFORMS: dict[str, Callable[[str], Graph]] = {
    "accumulate": lambda block: accumulate(step(block), 2),
    "recompute": lambda block: recompute(step(block), block),
    "recompute blocks": lambda block: recompute(step(block), 2),
    "recompute micro-batches": lambda block: recompute(accumulate(step(block), 2), block),
    "pipeline": lambda block: pipeline(
        step(block), devices="cpu:0-1", micro=2, cut=[f"{block}/fc2"]
    ),
    "place": lambda block: place(step(block), {f"{block}/fc2": "cpu:1"}),
    "replicate": lambda block: replicate(accumulate(step(block), 2), "cpu:0-1"),
}


@pytest.mark.parametrize("block", NAMES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_block_may_be_called_as_transforms_call_theirs(transform: str, block: str) -> None:
    make = TRANSFORMS[transform]
    plain = to_text(make("encoder")).replace("encoder/", f"{block}/")
    assert sorted(to_text(make(block)).splitlines()) == sorted(plain.splitlines())


def test_it_trains_as_it_does_on_one_device() -> None:
    small = recompute(replicate(accumulate(step("micro1"), 2), "cpu:0-1"), "micro1")
    agree(trained(small, steps=2), trained(accumulate(step("micro1"), 4), steps=2))
    assert "replica0/micro1/again/micro1/s" in small.ops


def test_a_name_that_is_taken_is_refused() -> None:
    net = Net()
    data, label = net.data((4, 1, 28, 28))
    x = sigmoid(inner_product(data, 5, name="fc"), name="b/s")
    x = relu(relu(x, name="b/r"), name="again/b/s")
    net.output(softmax_loss(inner_product(x, 10, name="fc2"), label, name="loss"))
    with pytest.raises(GraphError, match="'again/b/s' is declared twice"):
        recompute(pu.backward(net.graph()), "b")


def test_ops_know_what_they_were_made_for() -> None:
    graph = replicate(accumulate(recompute(step("encoder"), "encoder"), 2), "cpu:0-1")
    prefix = "replica1/micro0/"
    wanted: dict[str, tuple[str, Role]] = {
        "encoder/fc1/t": ("encoder/fc1", "forward"),
        "grad/encoder/fc1/mm": ("encoder/fc1", "backward"),
        "again/encoder/s": ("encoder/s", "recompute"),
    }
    for name, (of, role) in wanted.items():
        origin = Origin(f"{prefix}{of}", role, prefix, replica=1, micro=0)
        assert origin_of(graph.ops[f"{prefix}{name}"]) == origin
    assert origin_of(graph.ops["update/encoder/fc1/weight"]) == Origin(
        "encoder/fc1/weight", "update"
    )
    assert origin_of(graph.ops["reduce/grad/encoder/fc1/weight"]).role == "reduce"
    assert graph.states["momentum/encoder/fc1/weight"].origin == Origin(
        "encoder/fc1/weight", "update"
    )
    stages = pipeline(step("encoder"), devices="cpu:0-1", micro=2, cut=["encoder/fc2"])
    assert origin_of(stages.ops["micro1/encoder/loss"]).stage == 1


def test_origins_take_no_part_in_equality_and_are_restored_from_files() -> None:
    graph = accumulate(recompute(step("encoder"), "encoder"), 2)
    again = from_yaml(to_yaml(graph))
    assert again == graph
    assert again.digest == graph.digest
    for name in ("micro1/again/encoder/s", "micro0/encoder/fc1/t", "micro0/grad/encoder/fc2/mm"):
        assert again.ops[name].origin == graph.ops[name].origin
    for name, state in graph.states.items():
        assert again.states[name].origin == state.origin
