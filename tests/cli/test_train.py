"""`purine train` and `purine test`: what a run leaves behind, and that it can be repeated."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import purine as pu
from purine.graph import load_yaml, save_yaml
from purine.trace.trace import Trace
from tests.cli.runs import SMALL, metrics, same_bits, states
from tests.command import call
from tests.data.caffe_files import datum, write_lmdb
from tests.forked import python

ITERS = (*SMALL, "--iters", "5")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    called = call(*ITERS, "--log-every", "2", "--trace", "--trace-iters", "3", "--out", folder)
    assert called.code == 0, called.err
    assert str(folder) in called.out
    return folder


def test_a_run_leaves_all_its_files(run: Path) -> None:
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("config.yaml", "net.yaml", "metrics.jsonl", "summary.json", "trace.json", "checkpoints")
    }
    assert not list(run.glob("*.tmp"))
    assert [path.name for path in (run / "checkpoints").glob("[0-9]*")] == ["000000005"]
    assert load_yaml(run / "net.yaml") == pu.zoo.mlp(32)


def test_the_summary_tells_what_came_out(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["net"], summary["data"], summary["seed"]) == ("mlp", "fashion-mini", 0)
    assert summary["iterations"] == 5
    assert summary["epochs"] == pytest.approx(5 * 32 / 6000)
    assert summary["parameters"] == 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10
    assert 0.0 < summary["test_accuracy"] < 1.0
    assert summary["images_per_second"] > 0
    assert {"test_loss", "seconds", "purine", "torch"} <= summary.keys()


def test_metrics_come_as_asked(run: Path) -> None:
    rows = metrics(run)
    assert [row["iteration"] for row in rows] == [2, 4, 5, 5]
    assert all({"loss", "lr", "epoch"} <= row.keys() for row in rows[:3])
    assert rows[3].keys() == {"iteration", "epoch", "test_loss", "test_accuracy"}


def test_the_trace_keeps_the_iterations_asked_for(run: Path) -> None:
    trace = Trace.load(run / "trace.json")
    assert {event.iteration for event in trace.events} == {0, 1, 2}
    shown = call("trace", run, "--top", "2")
    assert shown.code == 0
    assert "critical path" in shown.out


def test_the_loss_is_that_of_the_library(run: Path) -> None:
    data = pu.data.fashion_mini()
    ready = pu.data.prepare(pu.zoo.mlp(32), data.train)
    step = pu.solvers.sgd(pu.backward(ready), lr=0.01, momentum=0.9, weight_decay=5e-4)
    with pu.Run(step, data=data, seed=0) as direct:
        losses = [result.loss for result in direct.steps(5)]
    logged = [row["loss"] for row in metrics(run) if "loss" in row]
    assert logged == [losses[1], losses[3], losses[4]]


def test_the_same_seed_gives_the_same_bits(run: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    assert call(*ITERS, "--log-every", "2", "--prefetch", "0", "--out", again).code == 0
    assert same_bits(run, again)
    assert metrics(run) == metrics(again)
    assert call(*ITERS, "--seed", "1", "--out", other).code == 0
    assert not same_bits(run, other)


def test_config_yaml_repeats_the_run(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert call("train", run / "config.yaml", "--out", again).code == 0
    assert same_bits(run, again)
    assert metrics(run) == metrics(again)
    assert (run / "config.yaml").read_text() == (again / "config.yaml").read_text()


def test_options_count_more_than_the_job_file(tmp_path: Path) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text("net: mlp\nbatch: 32\nepochs: 3\nweight-decay: 1e-3\nlr_policy: cosine\n")
    assert call("train", job, "--iters", "2", "--lr", "0.5", "--out", out).code == 0
    config = (out / "config.yaml").read_text()
    assert "iters: 2\n" in config
    assert "epochs" not in config
    assert "lr: 0.5\n" in config
    assert "weight_decay: 0.001\n" in config
    assert metrics(out)[0]["iteration"] == 2


def test_every_option_reaches_the_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = "--solver adamw --lr 0.002 --lr-policy step:step=2,gamma=0.5 --clip 0.5 --crop 24"
    more = "--accumulate 2 --pad 2 --mirror --mean 100 --scale 0.01 --layout auto --threads 1"
    called = call(*ITERS, *options.split(), *more.split(), "--log-every", "1", "--out", out)
    assert called.code == 0, called.err
    rows = [row for row in metrics(out) if "lr" in row]
    assert [row["lr"] for row in rows] == pytest.approx([0.002, 0.002, 0.001, 0.001, 0.0005])
    assert any(name.startswith("square/") for name in states(out))
    assert states(out)["fc1/weight"].shape[-1] == 24 * 24


def test_saves_and_tests_come_exactly_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    frequency = ("--save-every", "2", "--test-every", "3", "--keep", "3")
    assert call(*SMALL, "--iters", "7", *frequency, "--out", out).code == 0
    saved = sorted(int(path.name) for path in (out / "checkpoints").glob("[0-9]*"))
    assert saved == [4, 6, 7]
    assert [row["iteration"] for row in metrics(out) if "test_loss" in row] == [3, 6, 7]


def test_an_epoch_ends_where_its_last_sample_was_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = "synthetic:image=1x4x4,classes=3,count=50"
    called = call("train", "--net", "mlp", "--data", data, "--batch", "8", "--epochs", "2",
                  "--out", out)  # fmt: skip
    assert called.code == 0, called.err
    tests = [(row["iteration"], row["epoch"]) for row in metrics(out) if "test_loss" in row]
    assert tests == [(7, 1), (13, 2)]
    assert called.out.count("test loss") == 2


def test_a_net_from_a_file_is_kept_with_the_run(tmp_path: Path) -> None:
    file, out = tmp_path / "own.yaml", tmp_path / "out"
    save_yaml(pu.zoo.mlp(16, hidden=(8,)), file)
    assert call("train", "--net", file, "--iters", "3", "--out", out).code == 0
    assert "batch: 16\n" in (out / "config.yaml").read_text()
    file.unlink()
    again = tmp_path / "again"
    assert call("train", out / "config.yaml", "--out", again).code == 0
    assert same_bits(out, again)
    assert call("test", out).code == 0


def test_a_database_is_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6), np.uint8)
    samples = [datum(image, number % 3) for number, image in enumerate(images)]
    write_lmdb(tmp_path / "train_lmdb", samples)
    write_lmdb(tmp_path / "test_lmdb", samples[:9])
    monkeypatch.chdir(tmp_path)
    data = ("--data", "lmdb:train_lmdb,test_lmdb")
    options = ("--net", "mlp", "--batch", "8", "--iters", "3", "--out", "out")
    assert call("train", *options, *data).code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = call("test", tmp_path / "out", "--json")
    assert json.loads(found.out)["samples"] == 9


def test_without_out_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        called = call(*SMALL, "--iters", "0")
        assert called.code == 0
        assert f"runs/mlp-fashion-mini-{number}" in called.out
        assert (tmp_path / f"runs/mlp-fashion-mini-{number}/summary.json").is_file()


def test_test_measures_what_training_measured(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    found = json.loads(call("test", run, "--json").out)
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["loss"] == summary["test_loss"]
    assert (found["iteration"], found["samples"]) == (5, 1000)
    assert f"accuracy {summary['test_accuracy']:.4f}" in call("test", run).out


def test_test_takes_an_earlier_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    frequency = ("--save-every", "2", "--test-every", "2")
    assert call(*SMALL, "--iters", "4", *frequency, "--out", out).code == 0
    tests = {row["iteration"]: row["test_loss"] for row in metrics(out) if "test_loss" in row}
    found = json.loads(call("test", out, "--checkpoint", "2", "--json").out)
    assert (found["iteration"], found["loss"]) == (2, tests[2])
    missing = call("test", out, "--checkpoint", "3")
    assert missing.code == 2
    assert "no checkpoint of iteration 3" in missing.err
    assert "one of 2, 4" in missing.err


@pytest.mark.multiprocess
def test_a_closed_pipe_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = python("-m", "purine", "show", "--kinds", stdout=writer)
    finally:
        os.close(writer)
    assert done.stderr == ""


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    called = call(*SMALL, "--iters", "40", "--lr", "1e30", "--out", out)
    assert called.code == 2
    assert "the loss is nan in iteration" in called.err or "the loss is inf in" in called.err
    assert "start again with another --out and a smaller --lr" in called.err
    assert "intact" not in called.err
    assert "Traceback" not in called.err
    shutil.rmtree(out)
    called = call(*SMALL, "--iters", "40", "--lr", "1e30", "--save-every", "1", "--out", out)
    assert f"; the checkpoint {out}/checkpoints/00000000" in called.err
    assert "is intact" in called.err


def test_weights_of_which_nothing_fits_are_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "values.safetensors", tmp_path / "out"
    save_file({"extra": torch.zeros(1)}, file)
    called = call(*SMALL, "--weights", file, "--out", out)
    assert (called.code, out.exists()) == (2, False)
    assert f"{file}: nothing in these weights fits the net" in called.err
    assert "expected: values of its states: fc1/bias" in called.err
    assert "found: the net has no states extra" in called.err


def test_a_test_loss_that_is_not_finite_is_told(tmp_path: Path) -> None:
    called = call(*SMALL, "--iters", "1", "--lr", "1e38", "--out", tmp_path / "out")
    assert called.code == 0
    assert "the test loss is nan after iteration 1: " in called.out
    assert "choose another --out and a smaller --lr" in called.out
    last = called.out.splitlines()[-1]
    assert last.startswith("done: ")
    assert "but the test loss is nan;" in last


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_near_float32_and_resumes(
    run: Path, tmp_path: Path, precision: str
) -> None:
    out, parts = tmp_path / "out", tmp_path / "parts"
    job = tmp_path / "job.yaml"
    job.write_text(f"precision: {precision}\n")
    called = call(*ITERS, "--precision", precision, "--out", out)
    assert called.code == 0, called.err
    assert f"with sgd in {precision}" in called.out
    found, expected = (json.loads((folder / "summary.json").read_text()) for folder in (out, run))
    assert (found["precision"], expected["precision"]) == (precision, "fp32")
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=5e-3)
    assert f"precision: {precision}" in (out / "config.yaml").read_text()
    assert load_yaml(out / "net.yaml") == load_yaml(run / "net.yaml")
    assert all(
        str(value.dtype) in ("torch.float32", "torch.int64") for value in states(out).values()
    )

    assert call("train", job, *SMALL[1:], "--iters", "3", "--out", parts).code == 0
    resumed = call("train", "--resume", "--out", parts, "--iters", "5")
    assert resumed.code == 0, resumed.err
    assert same_bits(out, parts)
    other = call("train", "--resume", "--out", parts, "--precision", "fp32", "--iters", "6")
    assert other.code == 2
    assert "precision" in other.err


def overflowing(path: Path, bad: slice) -> Path:
    """Data of 256 samples, of which some are too large for float16."""
    random = np.random.default_rng(0)
    x = random.random((256, 1, 28, 28), np.float32)
    x[bad] *= 1e7
    y = random.integers(0, 10, 256)
    np.savez(path, x_train=x, y_train=y, x_test=x[-8:], y_test=y[-8:])
    return path


@pytest.mark.parametrize(
    "more", [(), ("--devices", "cpu:0-1", "--share-cores", "--threads", "1")], ids=["one", "two"]
)
def test_fp16_goes_on_behind_a_sample_that_overflows(tmp_path: Path, more: tuple[str, ...]) -> None:
    data = overflowing(tmp_path / "d.npz", slice(37, 38))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ("--net", "mlp", "--data", data, "--batch", "16", "--precision", "fp16", *more)
    often = ("--log-every", "1", "--out")
    called = call("train", *options, "--iters", "40", *often, whole)
    assert called.code == 0, called.err
    rows = [row for row in metrics(whole) if "loss" in row]
    bad = [number for number, row in enumerate(rows) if row["loss"] is None]
    assert 2 <= len(bad) <= 3  # one in each epoch of 16 iterations
    for number in bad:
        scale = rows[number]["loss_scale"]
        assert isinstance(scale, float)
        if number + 1 < len(rows):
            assert rows[number + 1]["loss_scale"] == scale / 2
    assert rows[0]["loss_scale"] == 2.0**16
    assert [row["skipped"] for row in rows] == [
        sum(number <= place for number in bad) for place in range(len(rows))
    ]
    assert called.out.count("the loss is") == 1
    told = "its update is skipped, and the loss scale of 65536 is halved"
    assert f"the loss is nan in iteration {bad[0] + 1}: {told}" in called.out
    last = called.out.split("iteration 40/40: ")[1].splitlines()[0]
    assert f"loss scale {rows[-1]['loss_scale']:g}" in last
    assert "nan" not in last
    assert all(value.isfinite().all() for value in states(whole).values())
    assert json.loads((whole / "summary.json").read_text())["skipped"] == len(bad)

    middle = str(bad[0] + 1)
    assert call("train", *options, "--iters", middle, *often, parts).code == 0
    assert call("train", "--resume", "--out", parts, "--iters", "40").code == 0
    assert same_bits(whole, parts)
    assert [row for row in metrics(parts) if "loss" in row] == rows


def test_fp16_ends_where_no_loss_scale_helps(tmp_path: Path) -> None:
    data, out = overflowing(tmp_path / "d.npz", slice(None)), tmp_path / "out"
    options = ("--batch", "16", "--precision", "fp16", "--iters", "40", "--log-every", "1")
    called = call("train", "--net", "mlp", "--data", data, *options, "--out", out)
    assert called.code == 2
    assert "25 iterations in a row overflowed, the last of them 25" in called.err
    assert "a loss of nan with a loss scale of 1" in called.err
    assert "start again with another --out and --precision bf16" in called.err
    assert "000000016 is intact" in called.err
    assert "Traceback" not in called.err
    scales = [row["loss_scale"] for row in metrics(out) if "loss_scale" in row]
    assert scales[15:18] == [2.0, 1.0, 1.0]


def test_tf32_is_for_gpus(tmp_path: Path) -> None:
    called = call(*ITERS, "--precision", "tf32", "--out", tmp_path / "out")
    assert called.code == 2
    assert "precision is tf32, and the job has no GPU" in called.err


def test_a_layout_that_is_not_there(tmp_path: Path) -> None:
    called = call(*ITERS, "--layout", "channels_last", "--out", tmp_path / "out")
    assert called.code == 2
    assert "layout is text 'channels_last'" in called.err


def test_a_dry_run_tells_the_precision(tmp_path: Path) -> None:
    options = ("--precision", "fp16", "--devices", "cpu:0-1", "--threads", "1", "--share-cores")
    called = call(*ITERS, *options, "--dry-run", "--out", tmp_path / "out")
    assert called.code == 0, called.err
    assert "with sgd in fp16 on 2 devices (data=2)" in called.out


def test_a_step_is_compiled_where_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    called = call(*ITERS, "--log-every", "2", "--trace", "--compile", "--out", tmp_path)
    assert called.code == 0, called.err
    kinds = {event.kind for event in Trace.load(tmp_path / "trace.json").events}
    assert "Fused" in kinds
    assert "MomentumUpdate" not in kinds
    for row, other in zip(metrics(tmp_path), metrics(run), strict=True):
        if "loss" in row:
            assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_more_threads_than_cores_are_told(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    called = call(*SMALL, "--iters", "0", "--threads", str(cores), "--dry-run")
    assert (called.code, called.err) == (0, "")
    called = call(*SMALL, "--iters", "0", "--threads", str(cores + 1), "--dry-run")
    assert called.code == 0
    assert called.err.startswith(f"note: --threads {cores + 1} is more than the {cores} cores")
