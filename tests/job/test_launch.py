"""Starting and resuming runs: nothing is written before the plan is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.errors import ConfigError
from purine.job import RunFolder, job_layers, open_folder, plan_run
from tests.command import tree
from tests.importers.mutations import SAMPLES

SMALL = {"net": "mlp", "batch": 8, "iters": 4, "data": "synthetic:image=1x4x4,classes=3,count=50"}


def test_a_job_file_comes_before_the_options(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("net: mlp\nlr: 0.5\n")
    assert job_layers(None, {"lr": 0.1}) == [{"lr": 0.1}]
    assert job_layers(file, {"lr": 0.1}) == [{"net": "mlp", "lr": 0.5}, {"lr": 0.1}]
    net = str((SAMPLES / "lenet_train_test.prototxt").resolve())
    assert job_layers(SAMPLES / "lenet_train_test.prototxt", {}) == [{"net": net}, {}]


def test_a_plan_writes_nothing_and_its_folder_has_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    layers = [SMALL, {"out": str(out)}]
    plan, folder = plan_run(layers, resumed=False)
    assert folder is None
    assert tree(tmp_path) == []
    created = open_folder(plan, folder)
    assert created == RunFolder(out)
    assert tree(out) == ["config.yaml", "net.yaml"]

    again, resumed = plan_run([{"out": str(out), "iters": 6}], resumed=True)
    assert resumed == created
    assert again.notes == ("the run has no checkpoint yet, so it begins again",)
    assert created.read_config().iters == 4
    assert open_folder(again, resumed).read_config().iters == 6


def test_a_folder_with_a_run_is_refused_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr("purine.job.launch.make_plan", lambda job: pytest.fail("planned"))
    with pytest.raises(ConfigError, match="there is a run in this folder already"):
        plan_run([{"out": str(tmp_path)}], resumed=False)


def test_a_resumed_run_needs_its_folder() -> None:
    with pytest.raises(ConfigError, match="--resume does not say which run"):
        plan_run([{"net": "mlp"}], resumed=True)
