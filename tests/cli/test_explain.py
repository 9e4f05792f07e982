"""`purine explain` and `purine calibrate` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.analysis.cost import Profile
from purine.job import calibrate as measuring
from tests.command import call

JOB = ("--net", "mlp", "--iters", "8", "--batch", "32", "--trace")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explain") / "a"
    assert call("train", *JOB, "--out", out).code == 0
    return out


def test_a_run_beside_its_prediction(run: Path) -> None:
    done = call("explain", run, "--top", "3")
    assert done.code == 0, done.err
    for part in ("predicted,", "share of all devices' time", "where they part most", "aten.addmm"):
        assert part in done.out
    assert "in one of the two only" not in done.out


def test_times_of_the_run_itself_part_nowhere(run: Path) -> None:
    done = call("explain", run, "--from-trace", run)
    assert done.code == 0, done.err
    parts = done.out.partition("where they part most")[2].splitlines()[2:]
    assert parts
    assert all(line.endswith(("+0%", "-0%")) for line in parts)


def test_a_trace_without_its_job_is_refused(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "t.json"
    alone.write_bytes((run / "trace.json").read_bytes())
    done = call("explain", alone)
    assert done.code == 2
    assert "no job beside it" in done.err


def test_calibrate_writes_the_profile_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "calibrate", lambda **_: Profile(name="measured"))
    monkeypatch.setenv("PURINE_CACHE", str(tmp_path))
    done = call("calibrate", "--out", tmp_path / "p.yaml")
    assert done.code == 0, done.err
    told = call("predict", *JOB[:-1], "--profile", tmp_path / "p.yaml")
    assert told.code == 0
    assert call("calibrate").code == 0
    assert len(list((tmp_path / "profiles").glob("*.yaml"))) == 1
