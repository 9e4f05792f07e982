"""The tutorial runs, keeps what it promises, and stays as short as it says."""

from __future__ import annotations

import ast
import itertools
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.py"


@pytest.fixture(scope="module")
def tutorial() -> dict[str, Any]:
    return runpy.run_path(str(TUTORIAL), run_name="__main__")


def test_training_fits_the_curve(tutorial: dict[str, Any]) -> None:
    losses = tutorial["losses"]
    assert losses[-1] < 0.05 * losses[0]
    last = tutorial["ITERATIONS"] - 1
    error = (tutorial["serial"]["y", last] - tutorial["serial"]["target", last]).abs().mean()
    assert error < 0.1


def test_replicas_give_the_serial_numbers(tutorial: dict[str, Any]) -> None:
    assert tutorial["difference"] < 1e-12
    whole = tutorial["serial"]["x", 3]
    halves = [tutorial["replicated"][f"replica{k}/x", 3] for k in range(2)]
    assert torch.equal(torch.cat(halves), whole)


def test_gradients_are_those_of_torch(tutorial: dict[str, Any]) -> None:
    names = [name for name in tutorial["net"].states if name != "iteration"]
    values = tutorial["serial"]
    leaves = {name: values[name, 0].clone().requires_grad_() for name in names}
    w1, b1, w2, b2, w3, b3 = (leaves[name] for name in names)
    hidden = torch.tanh(values["x", 0] @ w1 + b1)
    y = (hidden + torch.tanh(hidden @ w2 + b2)) @ w3 + b3
    ((y - values["target", 0]) ** 2).mean().backward()
    for name in names:
        torch.testing.assert_close(values[f"grad/{name}", 0], leaves[name].grad)


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_the_core_completes_in_any_order(tutorial: dict[str, Any], credit: int) -> None:
    step, iterations = tutorial["step"], 4
    for seed in range(5):
        core = tutorial["Core"](step, iterations, credit=credit)
        draw = random.Random(seed)
        ready, done = core.start(), set()
        while ready:
            iteration, name = ready.pop(draw.randrange(len(ready)))
            for blob in step.ops[name].inputs:
                source = step.states.get(blob, blob)
                before = iteration - (blob in step.states)
                assert before < 0 or (before, source) in done
            if iteration >= credit:
                assert all((iteration - credit, other) in done for other in step.ops)
            done.add((iteration, name))
            ready += core.complete(name, iteration)
        assert done == set(itertools.product(range(iterations), step.ops))
        assert core.left == 0


def test_a_failing_kernel_ends_the_run(tutorial: dict[str, Any]) -> None:
    kinds = tutorial["KINDS"]
    kinds["fails"] = lambda x: x if x.is_meta else 1 / 0
    graph = tutorial["add"](tutorial["step"], "broken", "fails", "y")
    with pytest.raises(ZeroDivisionError):
        tutorial["run"](graph, 3)


def test_it_is_as_short_as_it_says() -> None:
    tree = ast.parse(TUTORIAL.read_text())
    parts = [
        node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.If)
    ]
    statements = [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert len(statements) <= 140
