"""Stopping and going on: a run that was disturbed ends with the bits of one that was not."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from purine.job import RunFolder, Saved, Trained, Training, make_plan, merge
from purine.runtime import checkpoint
from tests.cli.runs import SMALL, metrics, same_bits
from tests.command import call, tree
from tests.forked import python, start

OPTIONS = {"net": "mlp", "batch": 32, "iters": 9, "log_every": 1, "save_every": 3, "test_every": 4}
ARGUMENTS = (*SMALL, "--iters", "9", "--log-every", "1", "--save-every", "3", "--test-every", "4")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert call(*ARGUMENTS, "--out", folder).code == 0
    return folder


def stopped(folder: Path, after: int) -> int:
    """Begin the run and stop it after so many results; returns where it was saved."""
    plan = make_plan(merge(OPTIONS, {"out": str(folder)}))
    seen: list[object] = []
    with Training(plan, RunFolder.create(plan.job, plan.net)) as training:
        for event in training.events(
            lambda: sum(isinstance(item, Trained) for item in seen) >= after
        ):
            seen.append(event)
    assert isinstance(seen[-1], Saved)
    assert not (folder / "summary.json").exists()
    return seen[-1].iteration


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_resumed_equals_undisturbed(undisturbed: Path, tmp_path: Path, after: int) -> None:
    out = tmp_path / "out"
    saved = stopped(out, after)
    assert after <= saved <= min(after + 2, 9)
    assert [row["iteration"] for row in metrics(out) if "loss" in row] == [*range(1, saved + 1)]
    called = call("train", "--resume", "--out", out)
    assert called.code == 0, called.err
    assert same_bits(undisturbed, out)
    assert metrics(undisturbed) == metrics(out)
    assert (out / "config.yaml").read_text() == (undisturbed / "config.yaml").read_text()
    assert (out / "summary.json").is_file()


def test_lines_behind_the_checkpoint_are_cut_off(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    (out / "summary.json").unlink()
    shutil.rmtree(checkpoint.latest(out) or out)
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 10, "lo')
    assert call("train", "--resume", "--out", out).code == 0
    assert metrics(undisturbed) == metrics(out)
    assert same_bits(undisturbed, out)


def test_a_run_without_a_checkpoint_begins_again(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    shutil.rmtree(out / "checkpoints")
    (out / "summary.json").unlink()
    called = call("train", "--resume", "--out", out)
    assert called.code == 0
    assert "no checkpoint yet, so it begins again" in called.err
    assert metrics(undisturbed) == metrics(out)
    assert same_bits(undisturbed, out)


def test_only_the_summary_is_missing(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    (out / "summary.json").unlink()
    assert call("train", "--resume", "--out", out).code == 0
    assert metrics(undisturbed) == metrics(out)
    assert (out / "summary.json").is_file()


def test_a_run_can_be_made_longer(undisturbed: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    shutil.copytree(undisturbed, out)
    assert call("train", "--resume", "--out", out, "--iters", "12").code == 0
    assert call(*ARGUMENTS, "--iters", "12", "--out", whole).code == 0
    assert same_bits(whole, out)
    assert "iters: 12\n" in (out / "config.yaml").read_text()


def test_the_same_options_may_be_given_again(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    assert call(*ARGUMENTS, "--keep", "1", "--resume", "--out", out).code == 0


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ("--lr 0.5", ["--lr 0.5", "0.01"]),
        ("--seed 3", ["--seed 3", "started with 0"]),
        ("--batch 16", ["--batch 16", "32"]),
        ("--net lenet", ["--net lenet", "mlp"]),
        ("--data synthetic:image=1x28x28,classes=10,count=99", ["--data synthetic", "fashion"]),
        ("--iters 4", ["--iters 4", "9 iterations", "4 iterations"]),
        ("--lr-policy cosine", ["learning rate", "Fixed(lr=0.01)", "Cosine("]),
    ],
)
def test_contradictions_are_refused(
    undisturbed: Path, tmp_path: Path, options: str, texts: list[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    before = {name: (out / name).stat().st_mtime_ns for name in tree(out)}
    called = call("train", "--resume", "--out", out, *options.split())
    assert called.code == 2
    for text in texts:
        assert text in called.err
    assert {name: (out / name).stat().st_mtime_ns for name in tree(out)} == before


def test_an_existing_run_is_never_overwritten(undisturbed: Path) -> None:
    before = {name: (undisturbed / name).stat().st_mtime_ns for name in tree(undisturbed)}
    called = call(*ARGUMENTS, "--out", undisturbed)
    assert called.code == 2
    assert "there is a run in this folder already" in called.err
    assert "--resume" in called.err
    assert {name: (undisturbed / name).stat().st_mtime_ns for name in before} == before


def test_two_processes_cannot_train_in_one_folder(undisturbed: Path) -> None:
    with RunFolder.existing(undisturbed).only_writer():
        called = call("train", "--resume", "--out", undisturbed)
    assert called.code == 2
    assert "another process is training in this folder" in called.err


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_and_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    arguments = (*SMALL, "--iters", "1000000", "--test-every", "20", "--out", out)
    reader, writer = os.pipe()
    with open(tmp_path / "errors", "w+") as errors, open(reader) as output:
        process = start("-m", "purine", *arguments, streams=(0, writer, errors.fileno()))
        os.close(writer)
        for line in output:
            if "test loss" in line:
                os.kill(process.pid, number)
                break
        rest = output.read()
        assert process.wait() == code
    assert f"purine train --resume --out {out}" in rest
    assert "Traceback" not in (tmp_path / "errors").read_text()
    saved = checkpoint.load(out).iteration
    assert str(saved) in rest
    assert call(*SMALL, "--iters", str(saved), "--test-every", "20", "--out", whole).code == 0
    assert same_bits(whole, out)


@pytest.mark.multiprocess
def test_a_second_signal_ends_at_once() -> None:
    code = (
        "import os, signal\n"
        "from purine.cli.progress import stop_signals\n"
        "with stop_signals() as signals:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert signals.received == [signal.SIGINT]\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here')\n"
    )
    done = python("-c", code)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == ""


def test_resuming_a_finished_run_keeps_its_trace(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call(*SMALL, "--iters", "3", "--trace", "--out", out).code == 0
    before = (out / "trace.json").read_bytes()
    assert call("train", "--resume", "--out", out).code == 0
    assert (out / "trace.json").read_bytes() == before


def test_a_run_with_nothing_left_says_how_to_train_longer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert call(*SMALL, "--iters", "2", "--out", folder).code == 0
    called = call("train", "--resume", "--out", folder)
    assert called.code == 0
    assert "done:" not in called.out
    assert "nothing is left to train: all 2 iterations" in called.out
    command = called.out.splitlines()[-1].split()
    assert command == f"purine train --resume --out {folder} --iters 4".split()
    assert "done: 4 iterations" in call(*command[1:]).out
