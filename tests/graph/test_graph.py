from dataclasses import replace

import pytest

from purine.errors import GraphError
from purine.graph import NOTHING, Builder, Filler, Graph, Location


def small(*, backwards: bool = False, where: str | None = None) -> Graph:
    """x -> relu1 -> y -> scale -> z, and a state w that scale reads."""
    b = Builder()
    blobs = ["x", "y", "z", "w"]
    ops = [("relu1", "Relu", ["x"], ["y"]), ("scale", "Mul", ["y", "w"], ["z", NOTHING])]
    for name in reversed(blobs) if backwards else blobs:
        b.blob(name, (2, 3), where=where)
    for name, kind, inputs, outputs in reversed(ops) if backwards else ops:
        b.op(name, kind, inputs, outputs, where=where)
    b.state("w", None, Filler("constant", {"value": 1.0}), where=where)
    b.control.add(("relu1", "scale"))
    b.outputs.append("z")
    return b.graph()


def test_equality_and_digest_ignore_order_and_where() -> None:
    first, second = small(), small(backwards=True, where="net.yaml:1")
    assert first == second
    assert first.digest == second.digest
    assert hash(first) == hash(second)


def test_the_digest_tells_graphs_apart() -> None:
    changed = []
    for change in range(8):
        b = Builder(small())
        if change == 0:
            b.blob("more", (1,))
        elif change == 1:
            b.op("more", "Relu", ["x"], [])
        elif change == 2:
            b.state("x")
        elif change == 3:
            b.control.clear()
        elif change == 4:
            b.outputs.clear()
        elif change == 5:
            b.op("more", "Relu", ["x"], [], {"slope": 1})
        elif change == 6:
            b.blobs["x"] = replace(b.blobs["x"], layout="channels-last")
        else:
            b.blob("more", (1,), location=Location(device="cpu:1"))
        changed.append(b.graph())
    assert len({graph.digest for graph in (small(), *changed)}) == 9
    assert all(graph != small() for graph in changed)


def test_the_digest_is_the_same_on_every_machine() -> None:
    assert small().digest == "1a3fb12c1afb61a64c63a938d5ff4f628119128fd2fafb4669d782cadb18ec6e"


def test_neighbours() -> None:
    graph = small()
    assert {name: op.name for name, op in graph.producers.items()} == {"y": "relu1", "z": "scale"}
    assert [op.name for op in graph.consumers["y"]] == ["scale"]
    assert graph.consumers["z"] == ()
    assert graph.inputs == ("x",)
    assert graph.sinks == ("z",)


def test_the_order_is_topological_and_stable() -> None:
    assert small(backwards=True).order == ("relu1", "scale")
    b = Builder()
    for name in "cab":
        b.op(name, "Relu", [], [])
    assert b.graph().order == ("c", "a", "b")
    b.control.add(("b", "c"))
    assert b.graph().order == ("a", "b", "c")


def test_ops_on_a_cycle_are_left_out_of_the_order() -> None:
    b = Builder(small())
    b.control.add(("scale", "relu1"))
    b.op("alone", "Relu", [], [])
    assert b.graph().order == ("alone",)


def test_a_name_is_given_once() -> None:
    b = Builder()
    b.blob("x", (1,), where="net.yaml:1")
    with pytest.raises(GraphError, match="blob 'x' is declared twice") as caught:
        b.blob("x", (1,), where="net.yaml:2")
    assert caught.value.where == "net.yaml:2"
    assert "net.yaml:1" in str(caught.value)
    b.op("x", "Relu", [], [])  # ops and blobs have names of their own
    with pytest.raises(GraphError, match="op 'x' is declared twice"):
        b.op("x", "Relu", [], [])


def test_fresh_names() -> None:
    b = Builder(small())
    assert b.fresh("new") == "new"
    assert b.fresh("y") == "y.1"
    b.blob("y.1", None)
    assert b.fresh("y") == "y.2"
