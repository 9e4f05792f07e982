"""Jobs on several devices train as on one, and go on where they stopped."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import purine as pu
from purine.graph import save_yaml
from tests.cli.runs import metrics, same_bits, states
from tests.command import call, tree
from tests.importers.mutations import SAMPLES

LENET = ("train", "--net", "lenet", "--data", "fashion-mini", "--batch", "32", "--threads", "1")
SHORT = (*LENET, "--iters", "8", "--save-every", "4", "--test-every", "8", "--log-every", "1")
SCHEMES = {
    "data": ("cpu:0-1", "data=2"),
    "native": ("cpu:0-1", "data=2,topology=native"),
    "pipeline": ("cpu:0-3", "data=2,pipeline=2"),
    "model": ("cpu:0-1", "model=2"),
    "hybrid": ("cpu:0-1", "model=2,hybrid=true"),
    "shares": ("cpu:0-1", "data=2,shares=5:3"),
}


def summary(run: Path) -> dict[str, Any]:
    found = json.loads((run / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def on(name: str) -> tuple[str, ...]:
    devices, parallel = SCHEMES[name]
    return ("--devices", devices, "--parallel", parallel, "--share-cores")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A serial run, and one by each scheme."""
    folder = tmp_path_factory.mktemp("runs")
    assert call(*SHORT, "--clip", "2", "--out", folder / "serial").code == 0
    for name in SCHEMES:
        called = call(*SHORT, "--clip", "2", *on(name), "--out", folder / name)
        assert called.code == 0, called.err
    return folder


@pytest.mark.parametrize("name", SCHEMES)
def test_the_numbers_are_those_of_one_device(runs: Path, name: str) -> None:
    serial, found = summary(runs / "serial"), summary(runs / name)
    for key in ("test_loss", "test_accuracy", "iterations", "epochs", "parameters"):
        assert found[key] == pytest.approx(serial[key], abs=1e-4)
    for one, other in zip(metrics(runs / "serial"), metrics(runs / name), strict=True):
        assert other == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_says_where_it_was_trained(runs: Path, name: str) -> None:
    devices, parallel = SCHEMES[name]
    found = summary(runs / name)
    assert len(found["devices"]) == int(devices[-1]) + 1
    assert found["parallel"].startswith(parallel)
    config = yaml.safe_load((runs / name / "config.yaml").read_text())
    assert config["devices"] == devices
    assert config["parallel"].items() >= {"data": 2}.items() or "data" not in parallel
    assert summary(runs / "serial")["parallel"] is None


@pytest.mark.parametrize("name", SCHEMES)
def test_checkpoints_hold_the_states_of_the_net(runs: Path, name: str) -> None:
    assert states(runs / name).keys() == states(runs / "serial").keys()
    called = call("test", runs / name)
    assert called.code == 0, called.err
    assert f"accuracy {summary(runs / name)['test_accuracy']:.4f}" in called.out


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_goes_on_with_the_same_bits(runs: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(runs / name, out)
    shutil.rmtree(out / "checkpoints" / "000000008")
    (out / "summary.json").unlink()
    called = call("train", "--resume", "--out", out)
    assert called.code == 0, called.err
    assert "from iteration 4" in called.out
    assert same_bits(runs / name, out)
    assert metrics(runs / name) == metrics(out)


def test_a_config_repeats_its_run(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    called = call("train", runs / "pipeline" / "config.yaml", "--out", out)
    assert called.code == 0, called.err
    assert same_bits(runs / "pipeline", out)
    assert (out / "config.yaml").read_text() == (runs / "pipeline" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("begun", "options", "parallel"),
    [
        ("data", "--devices cpu:0-3 --share-cores", {"data": 4}),
        ("data", "--devices cpu:0", None),
        ("data", "--parallel shares=3:1 --share-cores", {"data": 2, "shares": [3, 1]}),
        (
            "shares",
            "--devices cpu:0-2 --parallel shares=1:2:1 --share-cores",
            {"data": 3, "shares": [1, 2, 1]},
        ),
        ("serial", "--devices cpu:0-1 --share-cores", {"data": 2}),
        ("model", "--devices cpu:0-1 --parallel data=2", {"data": 2}),
        ("pipeline", "--devices cpu:0-1 --parallel model=2", {"model": 2}),
        ("pipeline", "--devices cpu:0 --parallel data=1", {"data": 1}),
    ],
)
def test_a_run_goes_on_elsewhere(
    runs: Path, tmp_path: Path, begun: str, options: str, parallel: dict[str, object] | None
) -> None:
    out = tmp_path / "out"
    shutil.copytree(runs / begun, out)
    shutil.rmtree(out / "checkpoints" / "000000008")
    called = call("train", "--resume", "--out", out, "--threads", "1", *options.split())
    assert called.code == 0, called.err
    assert summary(out)["test_loss"] == pytest.approx(summary(runs / begun)["test_loss"], abs=1e-4)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config.get("parallel") == parallel


def test_other_devices_for_a_pipeline_need_a_scheme(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(runs / "pipeline", out)
    before = (out / "config.yaml").read_text()
    called = call("train", "--resume", "--out", out, "--devices", "cpu:0-1")
    assert called.code == 2
    assert "the scheme is for 4 devices, and 2 are named" in called.err
    assert "data 2 * pipeline 2 * model 1 = 4 devices, by the run's own scheme" in called.err
    assert "replace the scheme: --parallel data=2, or another" in called.err
    assert (out / "config.yaml").read_text() == before


def test_accumulated_batches_are_more_micro_batches(tmp_path: Path) -> None:
    options = (*LENET, "--batch", "16", "--accumulate", "2", "--iters", "4", "--clip", "2")
    assert call(*options, "--out", tmp_path / "serial").code == 0
    called = call(*options, *on("pipeline"), "--out", tmp_path / "out")
    assert called.code == 0, called.err
    found = summary(tmp_path / "out")["test_loss"]
    assert found == pytest.approx(summary(tmp_path / "serial")["test_loss"], abs=1e-4)


def test_a_solver_of_caffe_clips_and_accumulates_alike(tmp_path: Path) -> None:
    solver = SAMPLES / "lenet_solver.prototxt"
    options = ("train", solver, "--data", "fashion-mini", "--batch", "16", "--threads", "1")
    options = (*options, "--accumulate", "2", "--clip", "1", "--iters", "4")
    assert call(*options, "--out", tmp_path / "serial").code == 0
    called = call(*options, *on("pipeline"), "--out", tmp_path / "out")
    assert called.code == 0, called.err
    one, other = states(tmp_path / "serial"), states(tmp_path / "out")
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_a_job_file_with_a_grid(tmp_path: Path) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(
        "batch: 8\niters: 2\nthreads: 1\nshare_cores: true\ndevices: cpu:0-1\n"
        "parallel:\n  pipeline: 2\n  cut: [fc1]\n  recompute: [conv1, conv2]\n"
        "  schedule: |\n    0: F0 F1 B0 B1\n    1: F0 F1 B0 B1\n"
    )
    called = call("train", job, "--out", out)
    assert called.code == 0, called.err
    assert (
        "2 devices (pipeline=2,schedule=grid,micro=2,recompute=conv1|conv2,cut=fc1)" in called.out
    )
    again = call("train", out / "config.yaml", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert same_bits(out, tmp_path / "again")


def test_a_dry_run_tells_what_a_job_needs(tmp_path: Path) -> None:
    called = call(*SHORT, *on("pipeline"), "--dry-run", "--out", tmp_path / "out")
    assert called.code == 0, called.err
    for text in (
        *("on 4 devices (data=2,pipeline=2,micro=4)", "cpu:0 ", "cpu:3 ", "MB available (cpu)"),
        *("between devices: ", "4 micro-batches over 2 stages", "20.0% idle"),
        *("0: F0 F1 .  .  B0 B0 F2", "1: .  F0 B0 B0 F1"),
    ):
        assert text in called.out
    assert tree(tmp_path) == []


def test_samples_that_are_no_images_are_not_called_so(tmp_path: Path) -> None:
    data = "synthetic-tokens:length=8,vocabulary=20,count=40"
    net = pu.zoo.gpt2(batch=4, context=8, vocabulary=20, layers=1, heads=2, width=8)
    save_yaml(net, tmp_path / "net.yaml")
    job = ("--data", data, "--net", tmp_path / "net.yaml", "--iters", "1")
    called = call("train", *job, "--out", tmp_path / "out")
    assert called.code == 0, called.err
    assert "samples/s" in called.out
    assert "images/s" not in called.out


WORKERS = ("--devices", "cpu:0-1", "--share-cores", "--parallel")


@pytest.mark.parametrize("scheme", ["ssp,staleness=2", "downpour,push=2", "gossip", "diloco"])
def test_workers_train_are_measured_and_go_on(tmp_path: Path, scheme: str) -> None:
    run = tmp_path / "run"
    called = call(*SHORT, *WORKERS, f"asynchronous={scheme}", "--out", run)
    assert called.code == 0, called.err
    assert re.search(r"\n  workers, .*: 0: [\d,]+/s \(\d.*, 1: [\d,]+/s \(\d", called.out)
    found = summary(run)
    assert found["parallel"] == f"workers=2,asynchronous={scheme}"
    assert (found["iterations"], len(metrics(run))) == (8, 9)
    tested = call("test", run, "--json")
    assert json.loads(tested.out)["accuracy"] == pytest.approx(found["test_accuracy"])
    assert json.loads(tested.out)["iteration"] == 8
    more = call("train", "--resume", "--iters", "12", "--out", run)
    assert more.code == 0, more.err
    assert summary(run)["iterations"] == 12


def test_a_run_of_workers_does_not_go_on_without_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*SHORT, *WORKERS, "asynchronous=ssp", "--out", run).code == 0
    again = call("train", "--resume", "--iters", "12", "--parallel", "data=2", "--out", run)
    assert again.code == 2
    assert "its workers differs" in again.err


def test_workers_of_which_nothing_may_be_stale_are_replicas(runs: Path, tmp_path: Path) -> None:
    scheme = (*WORKERS, "asynchronous=ssp,staleness=0")
    assert call(*SHORT, "--clip", "2", *scheme, "--out", tmp_path / "run").code == 0
    assert same_bits(tmp_path / "run", runs / "data")
