"""The examples run as they are; here with settings small enough for a test."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import purine as pu

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_every_example_is_tested() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {"own_net", "torch_dataset", "train_lenet"}


def test_train_lenet_goes_on_as_if_never_interrupted(tmp_path: Path) -> None:
    losses = load("train_lenet")["main"](tmp_path, iterations=12, batch=16)
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=16), data.train)
    rate = pu.solvers.Cosine(0.05, max_iterations=12)
    step = pu.solvers.sgd(pu.backward(net), lr=rate, momentum=0.9, weight_decay=5e-4)
    with pu.Run(step, data=data, seed=0) as run:
        assert losses == [result.loss for result in run.steps(12)]


def test_torch_dataset_learns_stripes(capsys: pytest.CaptureFixture[str]) -> None:
    measured = load("torch_dataset")["main"](iterations=40, batch=16, count=256)
    assert measured["accuracy"] > 0.7
    assert "image: float32 1x16x16, label: int64 scalar" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_own_net_shows_its_kind_and_learns() -> None:
    # In a process of its own: the kind it registers would stay in this one.
    code = (
        "import json, runpy, sys; "
        "print(json.dumps(runpy.run_path(sys.argv[1])['main'](iterations=25, batch=16)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES / "own_net.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=EXAMPLES.parent,
        timeout=120,
    )
    *shown, last = done.stdout.splitlines()
    losses = json.loads(last)
    assert sum(losses[-5:]) < sum(losses[:5])
    op = "- {type: op, op_type: Swish, name: block1/swish, inputs: [block1/join], "
    assert op + "outputs: [block1/swish], beta: 1.5}" in shown
