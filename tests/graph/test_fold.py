"""Folding by name path: what is kept, and that nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

import purine as pu
from purine.graph import Builder, Graph, Location, to_dot, to_text
from purine.graph.fold import blocks, fold
from purine.zoo import resnet50


def small() -> Graph:
    return resnet50(2, image=(3, 32, 32), classes=4, width=4, layers=(1, 2))


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_every_op_is_in_one_block(depth: int) -> None:
    step = pu.solvers.sgd(pu.backward(small()), momentum=0.9)
    members = blocks(step, depth)
    assert sorted(name for ops in members.values() for name in ops) == sorted(step.ops)


def test_depth_is_the_number_of_parts() -> None:
    net = small()
    assert len(blocks(net, 1)["stage2"]) == 22
    assert len(blocks(net, 2)["stage2/block1"]) == 12
    assert fold(net, 9) == net


def test_gradients_and_updates_fold_like_what_they_are_of() -> None:
    step = pu.solvers.sgd(pu.backward(small()))
    assert {"stage2", "grad/stage2", "update/stage2"} <= set(blocks(step, 1))


def test_a_folded_graph_has_the_blobs_between_its_blocks() -> None:
    folded = fold(small(), 1)
    assert folded.ops["stage2"].inputs == ("stage1/block1/relu",)
    assert folded.ops["stage2"].outputs == ("stage2/block2/relu",)
    assert "stage2/block1/relu" not in folded.blobs
    assert "stage2/block1/conv1/weight" not in folded.states
    assert {"fc/weight", "seed", "iteration"} <= set(folded.states)
    assert folded.outputs == ("loss", "accuracy")


def test_a_folded_step_keeps_states_whole() -> None:
    """The text and the drawing refer to the blobs of states."""
    folded = fold(pu.solvers.sgd(pu.backward(small()), momentum=0.9), 1)
    for name, state in folded.states.items():
        assert {name, state.next} <= set(folded.blobs)
    assert to_dot(folded).count("peripheries=2") == len(folded.states)
    assert "update/stage1" in to_text(folded)


def test_a_block_lies_at_one_location() -> None:
    builder = Builder(small())
    for name in ("stage2/block2/add", "stage2/block2/relu"):
        builder.ops[name] = replace(builder.ops[name], location=Location(device="cpu:1"))
    members = blocks(builder.graph(), 1)
    there = [name for name in members if name.startswith("stage2 at ")]
    assert [members[name] for name in there] == [("stage2/block2/add", "stage2/block2/relu")]
