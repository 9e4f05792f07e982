"""`purine train` on what a Caffe definition names: databases, a mean image, weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from purine.data.prepare import MEAN_IMAGE
from purine.job import Job, make_plan
from tests.cli.runs import same_bits, states
from tests.command import call
from tests.importers.caffe.test_data import (
    IMAGES,
    LABELS,
    NET,
    data_layer,
    write_database,
    write_mean,
)
from tests.importers.caffe.test_weights import draw, write

TRANSFORM = 'mean_file: "mean.binaryproto" scale: 0.01 crop_size: 4 mirror: true'
WEIGHT, BIAS = draw(4, 48).float(), draw(4).float()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    write_database(folder / "train_lmdb")
    write_database(folder / "test_lmdb", 6)
    write_mean(folder / "mean.binaryproto")
    write(folder / "start.caffemodel", {"fc": [WEIGHT.double(), BIAS.double()]})
    text = data_layer("train_lmdb", "TRAIN", transform=TRANSFORM)
    text += data_layer("test_lmdb", "TEST", transform=TRANSFORM) + NET
    (folder / "net.prototxt").write_text(text)
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 4\n'
    )
    return folder


def train(folder: Path, out: Path, *options: object) -> None:
    called = call("train", *options, "--threads", "1", "--out", out)
    assert (called.code, called.err) == (0, "")


def config(run: Path) -> dict[str, object]:
    found = yaml.safe_load((run / "config.yaml").read_text())
    assert isinstance(found, dict)
    return found


def loss_in_tests(mean: Tensor, weight: Tensor, bias: Tensor) -> float:
    """That of Caffe's test phase: the mean first, then the middle of the image as it is."""
    middle = (torch.from_numpy(IMAGES[:6]).float() - mean)[:, :, 1:5, 1:5] * 0.01
    scores = middle.flatten(1) @ weight.T + bias
    return float(F.cross_entropy(scores, torch.from_numpy(LABELS[:6])))


def measured(run: Path) -> float:
    found = json.loads((run / "summary.json").read_text())["test_loss"]
    assert isinstance(found, float)
    return found


def test_sources_mean_and_weights_of_a_definition(files: Path, tmp_path: Path) -> None:
    run, mean = tmp_path / "run", write_mean(files / "mean.binaryproto")
    given = (files / "solver.prototxt", "--weights", files / "start.caffemodel")
    train(files, run, *given, "--iters", "0")
    found = config(run)
    assert found["data"] == f"lmdb:{files / 'train_lmdb'},{files / 'test_lmdb'}"
    assert found["weights"] == str(run / "start.safetensors")
    assert found["mean_file"] == str(run / "mean.safetensors")
    assert "mean" not in found
    assert (found["crop"], found["mirror"], found["scale"]) == (4, True, 0.01)
    start = states(run)
    assert torch.equal(start["fc/weight"], WEIGHT)
    assert torch.equal(start["fc/bias"], BIAS)
    assert torch.equal(start[MEAN_IMAGE], mean)
    assert measured(run) == pytest.approx(loss_in_tests(mean, WEIGHT, BIAS), rel=1e-5)


def test_images_are_cropped_and_mirrored_at_random_in_training_only(
    files: Path, tmp_path: Path
) -> None:
    plan = make_plan(Job(net=str(files / "net.prototxt")))
    assert {"Crop", "Mirror"} <= {op.kind for op in plan.step.ops.values()}
    run, mean = tmp_path / "run", write_mean(files / "mean.binaryproto")
    train(files, run, "--net", files / "net.prototxt", "--iters", "5", "--lr", "0.01")
    trained = states(run)
    expected = loss_in_tests(mean, trained["fc/weight"], trained["fc/bias"])
    assert measured(run) == pytest.approx(expected, rel=1e-5)
    called = call("test", run, "--json")
    assert json.loads(called.out)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_run_repeats_and_goes_on_without_the_files_it_began_with(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    given = ("solver.prototxt", "--weights", "start.caffemodel")
    train(files, tmp_path / "whole", *given)
    train(files, tmp_path / "part", *given, "--iters", "2")
    monkeypatch.chdir(tmp_path)
    (files / "mean.binaryproto").unlink()
    (files / "start.caffemodel").unlink()
    (files / "net.prototxt").unlink()
    train(files, tmp_path / "again", tmp_path / "whole" / "config.yaml")
    assert same_bits(tmp_path / "whole", tmp_path / "again")
    part = (tmp_path / "part").rename(tmp_path / "moved")
    train(files, part, "--resume", "--iters", "4", "--weights", "nowhere.caffemodel")
    assert same_bits(tmp_path / "whole", part)


def test_resuming_before_the_first_checkpoint_starts_from_the_weights(
    files: Path, tmp_path: Path
) -> None:
    given = (files / "solver.prototxt", "--weights", files / "start.caffemodel")
    train(files, tmp_path / "whole", *given)
    train(files, tmp_path / "broken", *given)
    shutil.rmtree(tmp_path / "broken" / "checkpoints")
    (tmp_path / "broken" / "summary.json").unlink()
    called = call("train", "--resume", "--out", tmp_path / "broken")
    assert (called.code, "it begins again" in called.err) == (0, True)
    assert same_bits(tmp_path / "whole", tmp_path / "broken")


def test_converted_weights_are_the_same_and_later_files_win(files: Path, tmp_path: Path) -> None:
    net = files / "net.prototxt"
    given = ("--weights", files / "start.caffemodel", "-o", tmp_path / "net.yaml")
    assert call("import", "caffe", net, *given).code == 0
    other = write(files / "other.caffemodel", {"fc": [draw(4, 48, seed=1), draw(4, seed=1)]})
    converted = tmp_path / "net.safetensors"
    for number, weights in enumerate(
        (["--weights", other, "--weights", converted], ["--weights", f"{other},{converted}"])
    ):
        train(files, tmp_path / f"{number}", "--net", net, *weights, "--iters", "0")
        assert torch.equal(states(tmp_path / f"{number}")["fc/weight"], WEIGHT)


def test_what_weights_leave_out_is_told(files: Path, tmp_path: Path) -> None:
    old, out = {"old": [draw(2)]}, tmp_path / "run"
    options = ("--weights", files / "start.caffemodel", "--iters", "0", "--out", out)
    write(files / "start.caffemodel", old)
    called = call("train", "--net", files / "net.prototxt", *options)
    assert (called.code, out.exists()) == (2, False)
    assert "nothing in these weights fits the net" in called.err
    assert "found: the net has no layers old" in called.err
    write(files / "start.caffemodel", old | {"fc": [draw(4, 48), draw(4)]})
    called = call("train", "--net", files / "net.prototxt", *options)
    assert called.code == 0
    assert "no layers old; they are passed over" in called.err


def test_a_mean_that_is_given_counts_more(files: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    net = ("--net", files / "net.prototxt", "--weights", files / "start.caffemodel")
    train(files, run, *net, "--iters", "0", "--mean", "7")
    assert measured(run) == pytest.approx(loss_in_tests(torch.tensor(7.0), WEIGHT, BIAS), rel=1e-5)
    text = (files / "net.prototxt").read_text().replace('mean_file: "mean.binaryproto"', "")
    (files / "net.prototxt").write_text(text)
    train(files, tmp_path / "b", *net, "--iters", "0", "--mean-file", files / "mean.binaryproto")
    mean = write_mean(files / "mean.binaryproto")
    assert measured(tmp_path / "b") == pytest.approx(loss_in_tests(mean, WEIGHT, BIAS), rel=1e-5)
    options = (tmp_path / "b" / "config.yaml", "--mean", "7")
    train(files, tmp_path / "c", *options)
    assert measured(tmp_path / "c") == pytest.approx(measured(run))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--net", "net.prototxt", "--weights", "none.caffemodel"), "none.caffemodel"),
        (("--net", "net.prototxt", "--weights", "damaged.safetensors"), "damaged.safetensors"),
        (("--net", "net.prototxt", "--weights", "wide.caffemodel"), "layer 'fc'"),
        (("--net", "mlp", "--weights", "start.caffemodel"), "purine import caffe"),
        (("--net", "mlp", "--mean-file", "mean.binaryproto"), "the mean image does not fit"),
        (("--net", "net.prototxt", "--mean", "3", "--mean-file", "m"), "both mean and mean_file"),
        (("--net", "gone.prototxt"), "--data"),
    ],
)
def test_mistakes(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(files)
    Path("damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    write(Path("wide.caffemodel"), {"fc": [draw(4, 49), draw(4)]})
    text = Path("net.prototxt").read_text()
    Path("gone.prototxt").write_text(text.replace("_lmdb", "_gone"))
    called = call("train", *options, "--out", tmp_path / "run")
    assert called.code == 2
    assert told in called.err
    assert not (tmp_path / "run").exists()
