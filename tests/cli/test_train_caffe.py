"""`purine train` on definitions of Caffe's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from purine.graph import load_yaml
from purine.job import Job, make_plan
from tests.cli.runs import metrics, same_bits
from tests.command import call
from tests.importers.mutations import SAMPLES
from tests.wrong_inputs.refused import refused

SOLVER = SAMPLES / "lenet_solver.prototxt"
NET = SAMPLES / "lenet_train_test.prototxt"
SMALL = ("--data", "fashion-mini", "--batch", "20", "--threads", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caffe") / "run"
    called = call("train", SOLVER, *SMALL, "--iters", "6", "--log-every", "2", "--out", folder)
    assert (called.code, called.err) == (0, "")
    return folder


def config(run: Path) -> dict[str, object]:
    found = yaml.safe_load((run / "config.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_a_solver_is_a_job_and_options_count_more(run: Path) -> None:
    found = config(run)
    assert found["lr_policy"] == "inv:gamma=0.0001,power=0.75"
    assert (found["lr"], found["momentum"], found["weight_decay"]) == (0.01, 0.9, 0.0005)
    assert (found["test_every"], found["save_every"]) == (500, 5000)
    assert (found["iters"], found["batch"], found["log_every"]) == (6, 20, 2)
    assert found["scale"] == 1 / 256
    assert Path(str(found["net"])).is_absolute()
    assert "accuracy" not in load_yaml(run / "net.yaml").ops
    assert "accuracy" in load_yaml(run / "test_net.yaml").ops


def test_the_rate_is_inside_the_momentum(run: Path) -> None:
    plan = make_plan(Job(net=str(NET), solver=str(SOLVER), data="fashion-mini", batch=20))
    assert plan.step.ops["update/conv1/weight"].attributes["lr_in_momentum"] is True
    assert (plan.iterations, plan.job.test_every) == (10000, 500)


def test_the_test_net_measures(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert 0 < summary["test_accuracy"] < 1
    called = call("test", run, "--json")
    assert json.loads(called.out)["accuracy"] == pytest.approx(summary["test_accuracy"])


def test_its_config_repeats_a_run(run: Path, tmp_path: Path) -> None:
    assert call("train", run / "config.yaml", "--out", tmp_path / "again").code == 0
    assert same_bits(run, tmp_path / "again")
    assert metrics(run) == metrics(tmp_path / "again")


def test_a_run_goes_on_with_the_same_bits(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    options = ("train", "--net", NET, "--solver", SOLVER, *SMALL, "--log-every", "2")
    assert call(*options, "--iters", "3", "--out", folder).code == 0
    moved = folder.rename(tmp_path / "moved")
    called = call("train", SOLVER, "--resume", "--net", NET, "--iters", "6", "--out", moved)
    assert (called.code, called.err) == (0, "")
    assert same_bits(run, moved)


def test_resuming_with_another_solver_is_refused(run: Path) -> None:
    other = SAMPLES / "cifar10_full_solver.prototxt"
    called = call("train", "--resume", "--solver", other, "--out", run)
    assert called.code == 2
    assert "contradicts the run" in called.err


def test_a_database_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = "the source 'examples/mnist/mnist_train_lmdb' of layer 'mnist' (Data) is not there"
    texts = [f"{NET}:2: {source}", f"in one of {Path().resolve()}, {NET.parent}", "to do: "]
    out = ["--out", str(tmp_path / "a")]
    called = refused(tmp_path, ["train", str(SOLVER), *out], [*texts, "name data with --data"])
    assert "--image" not in called.err
    refused(tmp_path, ["show", str(NET)], [*texts, "--image 3,32,32"])


@pytest.mark.parametrize("options", [[], ["--solver", str(SAMPLES / "inner_solver.prototxt")]])
def test_a_solver_is_no_net(tmp_path: Path, options: list[str]) -> None:
    arguments = ["train", "--net", str(SOLVER), *SMALL, *options, "--out", str(tmp_path / "a")]
    texts = [f"{SOLVER}: this is a solver, not a net", f"to do: write purine train {SOLVER}"]
    refused(tmp_path, arguments, texts)


def test_a_mean_image_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET.read_text().replace("scale: 0.00390625", 'mean_file: "mean.binaryproto"'))
    options = ["train", "--net", str(net), *SMALL, "--iters", "0", "--out", str(tmp_path / "a")]
    texts = ["net.prototxt:", "the mean image 'mean.binaryproto' is not there", "--mean-file"]
    refused(tmp_path, options, [*texts, str(tmp_path), "--mean 0 subtracts nothing"])
    called = call(*options, "--mean", "3")
    assert (called.code, called.err) == (0, "")
    imported = call("import", "caffe", net, "--image", "1,28,28", "-o", tmp_path / "net.yaml")
    assert imported.code == 0
    assert "note: " in imported.err
    assert "--mean-file or --mean" in imported.err


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET.read_text().replace("scale: 0.00390625", "scale: 0.5", 1))
    options = ("--net", net, *SMALL, "--iters", "0", "--out", tmp_path / "a")
    called = call("train", *options)
    assert called.code == 0
    assert called.err.startswith("note: the test phase has scale")


def test_a_solver_finds_its_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    solver = tmp_path / "sub" / "solver.prototxt"
    solver.write_text('net: "nets/a.prototxt" base_lr: 0.1\n')
    options = ("train", solver, *SMALL, "--iters", "0")
    monkeypatch.chdir(tmp_path)
    called = call(*options, "--out", tmp_path / "none")
    assert called.code == 2
    assert "sub/solver.prototxt:1" in called.err
    assert "found: none of them" in called.err
    (tmp_path / "alone.prototxt").write_text('net: "a.prototxt" base_lr: 0.1')
    called = call("train", "alone.prototxt", "--out", tmp_path / "none")
    assert "expected: a file at a.prototxt\n  found: nothing there\n" in called.err
    for number, place in enumerate(("sub", "sub/nets", "nets")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "a.prototxt").write_text(NET.read_text())
        assert call(*options, "--out", tmp_path / f"run{number}").code == 0


def test_a_net_within_the_solver_and_nets_apart(tmp_path: Path) -> None:
    inner, apart = tmp_path / "inner.prototxt", tmp_path / "apart.prototxt"
    inner.write_text(f"base_lr: 0.1 net_param {{ {NET.read_text()} }}")
    apart.write_text(f'base_lr: 0.1 train_net: "{NET}" test_net: "{NET}"')
    for number, solver in enumerate((inner, apart)):
        folder = tmp_path / f"run{number}"
        called = call("train", solver, *SMALL, "--iters", "1", "--out", folder)
        assert (called.code, called.err) == (0, "")
        assert "accuracy" in load_yaml(folder / "test_net.yaml").ops


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("base_lr: 0.1\nmomentun: 0.9\n", "solver.prototxt:2"),
        ("base_lr: 0.1\ntest_interval: -3\n", "solver.prototxt:2"),
        ("base_lr: 0.1\n", "the solver names no net"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text(text)
    called = call("train", path, "--data", "fashion-mini", "--out", tmp_path / "run")
    assert called.code == 2
    assert told in called.err
    assert not (tmp_path / "run").exists()


def test_a_test_net_with_parameters_of_its_own_is_refused(tmp_path: Path) -> None:
    text = NET.read_text().replace('name: "ip2"\n', 'name: "ip2" include { phase: TRAIN }\n')
    text += """layer { name: "other" type: "InnerProduct" bottom: "ip1" top: "ip2"
      inner_product_param { num_output: 10 } include { phase: TEST } }"""
    head, _, tail = text.partition('layer {\n  name: "accuracy"')
    tail, _, other = tail.partition('layer { name: "other"')
    path = tmp_path / "net.prototxt"
    path.write_text(f'{head}layer {{ name: "other"{other}\nlayer {{\n name: "accuracy"{tail}')
    called = call("train", "--net", path, *SMALL, "--out", tmp_path / "run")
    assert called.code == 2
    assert "'other/weight' of the test net" in called.err


def test_check_and_show_take_definitions(tmp_path: Path) -> None:
    called = call("check", NET, "--image", "1,28,28")
    assert (called.code, called.err) == (0, "")
    assert call("check", SOLVER, "--image", "1,28,28").code == 0
    called = call("show", NET, "--image", "1,28,28", "--batch", "2")
    assert "conv2" in called.out
    called = call("check", NET)
    assert called.code == 2
    assert "--image 3,32,32" in called.err


def test_lenet_learns_fashion_mini(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--data", "fashion-mini", "--iters", "150", "--out", folder)
    assert call("train", SOLVER, *options).code == 0
    assert json.loads((folder / "summary.json").read_text())["test_accuracy"] > 0.65
