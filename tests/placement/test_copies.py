"""Copies at crossings, put in and taken out."""

from __future__ import annotations

from purine.graph import Builder, Graph, Location
from purine.parallel import pipeline
from purine.placement.copies import insert_copies, without_copies
from tests.parallel.nets import lenet


def crossing() -> Graph:
    """An op that reads from another device, and a state whose next value comes from there."""
    b = Builder()
    there = Location(device="cpu:1")
    b.state(b.blob("x", (2,)), b.blob("y", (2,), location=there))
    b.op("relu", "Relu", ["x"], ["y"], location=there)
    return b.graph()


def test_copies_that_were_put_in_can_be_taken_out() -> None:
    graph = crossing()
    mended = insert_copies(graph)
    assert set(mended.ops) == {"relu", "x@cpu:1", "y@cpu:0"}
    assert mended.states["x"].next == "y@cpu:0"
    assert without_copies(mended) == graph


def test_a_pipeline_without_its_copies_and_with_them_again() -> None:
    step = pipeline(lenet(3), devices="cpu:0-1", micro=2)
    assert insert_copies(without_copies(step)) == step
