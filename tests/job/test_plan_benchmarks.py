"""The benchmarks of plans and proofs, with few small cases."""

from __future__ import annotations

import json
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(BENCHMARKS / name))


def test_all_candidates_of_a_case_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = benchmark("plan.py", monkeypatch)
    options = Namespace(most=3, turns=1, seconds=0.01, trial=0.1, measure=0.5)
    case = "mlp:32:cpu:0-1"
    made = plan["planned"](case, options)
    row = plan["compared"](case, made, plan["in_turns"](made.rows, options))
    assert row["ratio"] >= 1
    assert row["plain"] >= 1
    assert row["candidates"] == len(made.rows) <= 6
    plan["report"]([row], 1.0)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["cases"] == 1


def test_schedules_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deadlocks = benchmark("deadlocks.py", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["deadlocks.py", "--count", "4"])
    deadlocks["main"]()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["refused"], last["accepted_and_completed"]) == (2, 2)


def test_a_folded_scheme_is_compared_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many devices as are simulated one by one, both are the same."""
    on_paper = benchmark("on_paper.py", monkeypatch)
    row = on_paper["agree"](Namespace(worker="agree 2 1 1gbit"))
    assert row["difference"] == 0
    assert not row["folds"]
