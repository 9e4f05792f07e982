"""Copies that are aliases leave what is run; the order that they kept stays."""

from __future__ import annotations

import random

import pytest

from purine.graph import Builder, Graph, Location
from purine.lowering.aliases import without_aliases

HERE, THERE = Location(), Location(device="cpu:1")


def relu(b: Builder, name: str, source: str, location: Location = HERE) -> str:
    b.blob(name, (2,), location=location)
    b.op(name, "Relu", [source], [name], location=location)
    return name


def alias(b: Builder, name: str, source: str) -> str:
    b.blob(name, (2,), location=THERE)
    b.op(name, "Copy", [source], [name], {"alias": True}, location=THERE, lane="inbound")
    return name


def waits(graph: Graph) -> dict[str, set[str]]:
    """For each op that is no alias, all such ops that have to wait for it."""
    behind: dict[str, set[str]] = {}
    for name in reversed(graph.order):
        following = graph.successors[name]
        behind[name] = set(following).union(*(behind[item] for item in following))
    stay = {op.name for op in graph.ops.values() if not op.attributes.get("alias")}
    return {name: behind[name] & stay for name in stay}


def test_readers_of_a_copy_read_the_blob_itself() -> None:
    b = Builder()
    b.blob("x", (2,))
    copy = alias(b, "x@cpu:1", relu(b, "y", "x"))
    relu(b, "z", alias(b, "x@cpu:2", copy), THERE)
    found = without_aliases(b.graph()).graph
    assert list(found.ops) == ["y", "z"]
    assert found.ops["z"].inputs == ("y",)
    assert found.control == frozenset()


def test_order_through_a_copy_of_a_state_stays() -> None:
    b = Builder()
    b.blob("w", (2,))
    b.state("w")
    b.blob("a", (2,))
    relu(b, "x", "a")
    relu(b, "reader", alias(b, "w@cpu:1", "w"), THERE)
    relu(b, "z", "a")
    b.control = {("x", "w@cpu:1"), ("w@cpu:1", "z")}
    assert without_aliases(b.graph()).graph.control == {("x", "z"), ("x", "reader")}


def test_order_through_a_copy_of_a_produced_blob_stays() -> None:
    b = Builder()
    b.blob("a", (2,))
    relu(b, "x", "a")
    first = alias(b, "first", relu(b, "made", "a"))
    relu(b, "reader", alias(b, "second", first), THERE)
    relu(b, "z", "a")
    b.control = {("x", "first"), ("second", "z")}
    expected = {("x", "reader"), ("x", "z"), ("made", "z")}
    assert without_aliases(b.graph()).graph.control == expected


@pytest.mark.parametrize("seed", range(40))
def test_the_ops_that_stay_wait_for_the_same_ops(seed: int) -> None:
    draw = random.Random(seed)
    b = Builder()
    blobs = [b.blob("a", (2,)), b.blob("w", (2,))]
    b.state("w")
    for number in range(24):
        source = draw.choice(blobs)
        make = alias if draw.random() < 0.5 else relu
        blobs.append(make(b, f"op{number}", source))
    for _ in range(14):
        first, second = sorted(draw.sample(range(24), 2))
        b.control.add((f"op{first}", f"op{second}"))
    b.outputs = [draw.choice(blobs[2:])]
    graph = b.graph()
    found = without_aliases(graph).graph
    before = {name: later & found.ops.keys() for name, later in waits(graph).items()}
    assert waits(found) == before
    assert set(found.outputs) <= found.blobs.keys()
