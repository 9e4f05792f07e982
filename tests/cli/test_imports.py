"""`purine import caffe`."""

from __future__ import annotations

from pathlib import Path

from purine.graph import load_yaml
from purine.importers.caffe import from_caffe
from tests.command import call
from tests.importers.mutations import SAMPLES

NET = SAMPLES / "lenet_train_test.prototxt"


def test_a_net_is_written_and_the_rest_is_told(tmp_path: Path) -> None:
    output = tmp_path / "net.yaml"
    solver = SAMPLES / "lenet_solver.prototxt"
    called = call("import", "caffe", NET, "--solver", solver, "--image", "1,28,28", "-o", output)
    assert (called.code, called.err) == (0, "")
    assert "data: scale=0.00390625" in called.out
    assert "solver: type=SGD, rate=Inv(lr=0.01, gamma=0.0001, power=0.75)" in called.out
    assert load_yaml(output) == from_caffe(NET, image=(1, 28, 28)).net
    assert call("check", output).code == 0


def test_the_net_of_the_test_phase(tmp_path: Path) -> None:
    output = tmp_path / "net.yaml"
    called = call("import", "caffe", NET, "--image", "1,28,28", "--test", "-o", output)
    assert called.code == 0
    assert "accuracy" in load_yaml(output).ops


def test_notes_and_mistakes(tmp_path: Path) -> None:
    cifar, output = SAMPLES / "cifar10_full_train_test.prototxt", tmp_path / "net.yaml"
    called = call("import", "caffe", cifar, "--image", "3,32,32", "--batch", "2", "-o", output)
    assert called.err.startswith("note: ")
    assert "mean.binaryproto" in called.err
    for arguments, told in (
        ([], "--image 3,32,32"),
        (["--image", "3,x,4"], "write for example --image 3,32,32"),
    ):
        called = call("import", "caffe", NET, *arguments, "-o", output)
        assert called.code == 2
        assert told in called.err
