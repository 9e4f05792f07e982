"""The graphs of single workers."""

from __future__ import annotations

import purine as pu
from purine.graph import Builder, verify
from purine.lowering.workers import has_workers, worker_parts


def test_the_parts_are_graphs_and_have_every_node_once() -> None:
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4, hidden=(8,))), lr=0.1)
    assert not has_workers(step)
    graph = pu.parallel.serve(step, "cpu:0-2", "downpour", push=2)
    assert has_workers(graph)
    parts = worker_parts(graph)
    assert list(parts) == [0, 1, 2]
    for number, part in parts.items():
        verify(part)
        assert {op.worker for op in part.ops.values()} == {number}
    for which in ("ops", "states"):
        names = [name for part in parts.values() for name in getattr(part, which)]
        assert sorted(names) == sorted(getattr(graph, which))
    assert sum((part.outputs for part in parts.values()), ()) == graph.outputs


def test_all_have_a_state_that_keeps_its_value() -> None:
    b = Builder()
    b.state(b.blob("x", ()))
    b.state(b.blob("unused", ()))
    for worker in (0, 1):
        b.op(f"y{worker}", "aten.relu", ["x"], [b.blob(f"y{worker}", ())], worker=worker)
    b.outputs = ["y0", "y1"]
    parts = worker_parts(b.graph())
    assert [list(part.states) for part in parts.values()] == [["x", "unused"], ["x"]]
    assert [part.outputs for part in parts.values()] == [("y0",), ("y1",)]
