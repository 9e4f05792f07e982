"""What the options given to a resumed run may change, by the rules of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.errors import ConfigError, PurineError
from purine.job import RunFolder, make_plan, merge
from purine.job.config import given_options
from purine.job.launch import resume, started_again
from purine.job.options import OPTIONS, Resume
from tests.job.test_options import VALUES

RUN = {"net": "mlp", "batch": 8, "iters": 4, "threads": 1}
DATA = "synthetic:image=1x4x4,classes=3,count=50"
OTHER = {name: value for name, (_, value) in VALUES.items()} | {
    "net": "nin",
    "data": DATA.replace("50", "60"),
    "threads": 2,
    "lr_policy": "fixed:warmup=0",  # the same rate, written in another way
}


def names(rule: Resume) -> list[str]:
    return [name for name, option in OPTIONS.items() if option.resume is rule]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs") / "run"
    plan = make_plan(merge(RUN, {"data": DATA, "out": str(out)}))
    return RunFolder.create(plan.job, plan.net)


def test_without_options_the_plan_is_that_of_the_run(folder: RunFolder) -> None:
    plan = resume(folder, {})
    assert plan.job == folder.read_config()
    assert plan.iterations == 4
    assert resume(folder, given_options(plan.job)).job == plan.job


@pytest.mark.parametrize("name", names(Resume.CHANGE))
def test_what_may_change(folder: RunFolder, name: str) -> None:
    before = folder.read_config()
    plan = resume(folder, {name: OTHER[name]})
    changed = {key for key in OPTIONS if getattr(plan.job, key) != getattr(before, key)}
    assert getattr(plan.job, name) == OTHER[name]
    assert changed == ({"epochs", "iters"} if name == "epochs" else {name})
    assert plan.iterations == {"iters": 7, "epochs": 19}.get(name, 4)


@pytest.mark.parametrize("name", sorted({*names(Resume.SAME)} - {"test_net"}))
def test_what_has_to_stay(folder: RunFolder, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resume(folder, {name: OTHER[name]})
    if name != "net":  # which does not even fit the data
        assert f"{OPTIONS[name].flag} {OTHER[name]} contradicts the run" in str(refused.value)


def test_a_test_net_that_is_not_there(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(PurineError) as refused:
        resume(folder, {"test_net": str(tmp_path / "missing.yaml")})
    assert refused.value.where == str(tmp_path / "missing.yaml")


def test_a_run_may_move_to_other_devices(folder: RunFolder) -> None:
    assert names(Resume.PLACE) == ["devices", "parallel", "compress", "share_cores"]
    job = resume(folder, {"devices": "cpu:0-1", "share_cores": True}).job
    assert (job.devices, job.parallel, job.share_cores) == ("cpu:0-1", "data=2", True)
    pipeline = {"devices": "cpu:0-1", "share_cores": True, "parallel": "pipeline=2"}
    assert resume(folder, pipeline).job.parallel == "pipeline=2,micro=4"
    plan = resume(folder, {"devices": "host0-1:cpu:0", "compress": "bf16"})
    assert plan.job.compress == "bf16"
    assert any(op.kind == "EncodeCast" for op in plan.step.ops.values())


def test_weights_only_count_at_the_start(folder: RunFolder) -> None:
    assert names(Resume.IGNORE) == ["weights"]
    assert resume(folder, {"weights": "missing.safetensors"}).job.weights is None


def test_a_run_does_not_end_sooner_or_change_its_rate(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match="--iters 3 would end before the run does"):
        resume(folder, {"iters": 3})
    with pytest.raises(ConfigError, match="the learning rate would not be that of the run so far"):
        resume(folder, {"lr_policy": "cosine"})


def test_a_job_that_torchrun_starts_again_goes_on(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = [{"out": str(folder.path)}], [{"out": str(tmp_path / "other")}]
    assert not started_again(own)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not started_again(own), "the first start"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert started_again([{"net": "mlp"}, *own])
    assert not started_again(other), "it ended before there was a folder"
    assert not started_again([{"net": "mlp"}])
