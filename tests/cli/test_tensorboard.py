"""`purine train --tensorboard`."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.job import tensorboard
from tests.cli.runs import SMALL, metrics
from tests.command import call


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads of a run."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(item.step, item.value) for item in events.Scalars(tag)] for tag in tags}


def expected(run: Path, name: str) -> list[tuple[object, object]]:
    return [(row["iteration"], row[name]) for row in metrics(run) if name in row]


def test_events_are_the_metrics_also_of_a_run_that_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    often = ("--log-every", "2", "--test-every", "4", "--save-every", "6", "--tensorboard")
    assert call(*SMALL, "--iters", "8", *often, "--out", tmp_path).code == 0
    again = ("train", "--resume", "--out", tmp_path, "--iters", "12")
    assert call(*again).code == 0
    found = scalars(tmp_path)
    for tag, name in (
        ("train/loss", "loss"),
        ("train/accuracy", "accuracy"),
        ("train/lr", "lr"),
        ("test/loss", "test_loss"),
        ("test/accuracy", "test_accuracy"),
    ):
        written = expected(tmp_path, name)
        assert [step for step, _ in found[tag]] == [step for step, _ in written]
        assert [value for _, value in found[tag]] == pytest.approx([v for _, v in written])
    assert "train/seconds" not in found


def test_workers_have_their_own_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    files = tensorboard.EventFiles(tmp_path, 0)
    worker = {"worker": 1, "iterations": 3, "staleness": 0.5, "images_per_second": None}
    files.add({"iteration": 4, "loss": 1.5, "workers": [worker]})
    files.close()
    found = scalars(tmp_path)
    assert found == {
        "train/loss": [(4, 1.5)],
        "worker1/iterations": [(4, 3.0)],
        "worker1/staleness": [(4, 0.5)],
    }


def test_runs_of_before_the_option_go_on(tmp_path: Path) -> None:
    assert call(*SMALL, "--iters", "1", "--out", tmp_path).code == 0
    assert "tensorboard" not in (tmp_path / "config.yaml").read_text()
    assert not (tmp_path / "tensorboard").exists()


def test_without_the_package_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    called = call(*SMALL, "--iters", "2", "--tensorboard", "--out", tmp_path / "run")
    assert called.code == 2
    assert "TensorBoard is not installed" in called.err
    assert "pip install 'purine[tensorboard]'" in called.err
    assert not (tmp_path / "run").exists()
