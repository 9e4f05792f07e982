"""`purine predict`, and the figures of `--dry-run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from purine.trace.trace import Trace
from tests.command import call

JOB = ("--net", "mlp", "--iters", "6", "--batch", "32")


def figures(*arguments: str | Path) -> dict[str, float]:
    done = call("predict", *JOB, *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_figures_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    done = call("predict", *JOB, "--devices", "cpu:0-1", "--trace-out", file)
    assert done.code == 0, done.err
    for part in ("a step takes", "images/s", "for 6 iterations", "memory of cpu:1", "limit:"):
        assert part in done.out
    assert Trace.load(file).iterations == tuple(range(12))
    assert "iterations: 11" in call("trace", file).out


def test_devices_need_not_exist_and_links_decide() -> None:
    slow = figures("--devices", "host0-3:cpu:0", "--what-if", "link=10mbit")
    quick = figures("--devices", "host0-3:cpu:0", "--what-if", "link=100gbit")
    assert slow["seconds"] > 3 * quick["seconds"]
    assert slow["exposed"] + slow["bubble"] > 0.5
    assert slow["bytes"] == quick["bytes"]
    assert "links of 100 Mbit/s would give" in slow["limit"]
    eight = figures("--what-if", "devices=cpu:0-7")
    assert len(eight["memory"]) == 8


def test_a_slow_device() -> None:
    even = figures("--devices", "cpu:0-1", "--batch", "256")
    slow = figures("--devices", "cpu:0-1", "--batch", "256", "--what-if", "slow=cpu:1@0.1")
    assert slow["seconds"] > 3 * even["seconds"]
    assert slow["bubble"] > 0.3


def test_times_of_a_trace(tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert call("train", *JOB, "--trace", "--out", run).code == 0
    same = figures("--from-trace", run)
    assert same["basis"] == "times are those of this job"
    other = figures("--from-trace", run, "--devices", "cpu:0-1")
    assert other["basis"] == "times are those of the same net on other devices"
    assert figures("--from-trace", run)["seconds"] == same["seconds"]
    moved = tmp_path / "alone.json"
    moved.write_bytes((run / "trace.json").read_bytes())
    assert "same names" in figures("--from-trace", moved)["basis"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("link", "expected: key=value"),
        ("lnik=1gbit", "did you mean 'link'?"),
        ("link=fast", "200mbit, 10gbit"),
        ("latency=5", "50us"),
        ("slow=cpu:0", "slow=cpu:2@0.5"),
        ("slow=cpu:0@0", "slow=cpu:2@0.5"),
        ("devices=gpu", "devices are 'gpu'"),
        ("transport=pigeon", "no transport 'pigeon'"),
    ],
)
def test_a_wrong_what_if_is_refused(what: str, message: str) -> None:
    done = call("predict", *JOB, "--what-if", what)
    assert done.code == 2
    assert message in done.err


def test_workers_are_refused() -> None:
    done = call("predict", *JOB, "--devices", "cpu:0-1", "--parallel", "asynchronous=ssp")
    assert done.code == 2
    assert "not predicted" in done.err


def test_a_dry_run_has_the_figures() -> None:
    done = call("train", *JOB, "--dry-run")
    assert "a step takes" in done.out
    assert "limit:" in done.out
