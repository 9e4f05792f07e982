"""`purine export` on the folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.runs import SMALL, states
from tests.command import call, tree


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "run"
    assert call(*SMALL, "--iters", "2", "--out", folder).code == 0
    return folder


def test_values_are_exact(run: Path, tmp_path: Path) -> None:
    trained = states(run)
    file = tmp_path / "net.safetensors"
    called = call("export", run, "--format", "safetensors", "--out", file)
    assert called.out == f"{file}: {file.stat().st_size:,} bytes, after 2 iterations\n"
    stored = load_file(file)
    assert sorted(stored) == sorted(name for name in trained if name.startswith("fc"))
    assert all(torch.equal(stored[name], trained[name]) for name in stored)
    assert call("export", run, "--format", "torch", "--out", tmp_path / "net.pth").code == 0
    loaded = torch.load(tmp_path / "net.pth", weights_only=True)
    assert all(torch.equal(loaded[name.replace("/", ".")], stored[name]) for name in stored)
    # They are also the start of another run.
    again = (*SMALL, "--weights", file, "--iters", "0", "--out", tmp_path / "again")
    assert call(*again).code == 0
    assert all(torch.equal(states(tmp_path / "again")[name], stored[name]) for name in stored)


def test_programs_tell_how_samples_are_prepared(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    called = call("export", run, "--format", "torch", "--out", file, "--output", "relu2")
    assert "it reads data: float32 32x1x28x28; the job prepares samples with mean 0.0" in called.err
    (result,) = torch.export.load(file).module()(torch.zeros(3, 1, 28, 28))
    assert result.min() >= 0


def test_caffe_gets_two_files(run: Path) -> None:
    assert call("export", run, "--format", "caffe").code == 0
    assert (run / "net.caffemodel").stat().st_size > 1000
    assert (run / "net.prototxt").read_text().startswith('name: "run"\n')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "onnx", "--out", "net.pt"), "a file of type .pt cannot hold onnx"),
        (("--format", "torch", "--output", "fc9"), "there is no output 'fc9'"),
        (("--format", "keras"), "Invalid value for '--format'"),
        ((), "Missing option '--format'"),
        (("--format", "torch", "--out", "no/net.pt"), "cannot write the file"),
        (("--format", "torch", "--checkpoint", "7"), "there is no checkpoint of iteration 7"),
    ],
)
def test_mistakes(
    run: Path,
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tree(run)
    called = call("export", run, *arguments)
    assert called.code == 2
    assert message in called.err
    assert tree(tmp_path) == []
    assert tree(run) == before
