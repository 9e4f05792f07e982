"""`purine import caffe`."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from purine.graph import load_yaml
from purine.importers.caffe import from_caffe
from purine.importers.caffe.weights import write_weights
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


def test_weights_are_written_beside_the_graph(tmp_path: Path) -> None:
    brought = from_caffe(NET, image=(1, 28, 28))
    given = {slot.state: torch.rand(slot.shape) for item in brought.layers for slot in item.slots}
    weights, output = tmp_path / "lenet.caffemodel", tmp_path / "net.yaml"
    write_weights(weights, "LeNet", brought.layers[:-1], given)
    arguments = ("import", "caffe", NET, "--image", "1,28,28", "--weights", weights, "-o", output)
    called = call(*arguments)
    assert called.code == 0
    assert "net.safetensors: 426,070 values" in called.out
    assert "no weights for layers ip2" in called.err
    found = load_file(tmp_path / "net.safetensors")
    assert set(found) == {name for name in given if not name.startswith("ip2/")}
    assert all(torch.equal(value, given[name]) for name, value in found.items())
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    output.unlink()
    called = call(*arguments)
    assert called.code == 2
    assert str(weights) in called.err
    assert not output.exists()
