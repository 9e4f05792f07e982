"""What users get wrong in Caffe's files, through the real entry point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.command import call
from tests.importers.caffe.test_weights import write
from tests.wrong_inputs.refused import refused

BIG = "9" * 400
LONG = "n" * 300

NET = """\
name: "small"
layer { name: "d" type: "Input" top: "data" input_param { shape { dim: 8 dim: 1 dim: 28 dim: 28 }}}
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 5 weight_filler { type: "xavier" } }
}
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer {
  name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param{num_output: 9}}
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""

NETS: dict[str, tuple[str, str | bytes, str]] = {
    "an unknown layer": (
        '"ReLU"',
        '"ReLUU"',
        "net.prototxt:7: layer 'relu' is of unknown type 'ReLUU'",
    ),
    "a layer without a type": ('type: "ReLU" ', "", "net.prototxt:7: a layer has no type"),
    "a type that is a number": ('"ReLU"', "5", "net.prototxt:7: type cannot be '5'"),
    "a type without quotes": ('"ReLU"', "ReLU", "net.prototxt:7: type cannot be 'ReLU'"),
    "a bottom that is not there": (
        'bottom: "fc"',
        'bottom: "fcc"',
        "net.prototxt:13: layer 'prob' reads 'fcc', which no laye",
    ),
    "a bottom before its top": (
        'bottom: "data" top: "conv"',
        'bottom: "pool" top: "conv"',
        "net.prototxt:4: layer 'conv' reads 'pool', which no laye",
    ),
    "a layer without a bottom": (
        'bottom: "fc" ',
        "",
        "net.prototxt:13: layer 'prob' (Softmax) has 0 bottoms",
    ),
    "two bottoms": (
        'bottom: "fc" ',
        'bottom: "fc" bottom: "fc" ',
        "net.prototxt:13: layer 'prob' (Softmax) has 2 bottoms",
    ),
    "two tops": (
        'top: "prob"',
        'top: "prob" top: "more"',
        "net.prototxt:13: layer 'prob' (Softmax) has 2 tops",
    ),
    "an unknown field": (
        "num_output: 4",
        "num_outputs: 4",
        "net.prototxt:5: ConvolutionParameter has no field 'num_o",
    ),
    "a field twice": (
        "num_output: 4",
        "num_output: 4 num_output: 5",
        "net.prototxt:5: num_output is given twice",
    ),
    "a field without a value": (
        "num_output: 4",
        "num_output:",
        "net.prototxt:5: the text cannot be read",
    ),
    "a field of words": (
        "num_output: 4",
        "num_output: four",
        "net.prototxt:5: num_output cannot be 'four'",
    ),
    "a field of text": (
        "num_output: 4",
        'num_output: "4"',
        "net.prototxt:5: num_output cannot be '4'",
    ),
    "a field with a fraction": (
        "num_output: 4",
        "num_output: 4.5",
        "net.prototxt:5: num_output cannot be '4.5'",
    ),
    "a field below 0": (
        "num_output: 4",
        "num_output: -4",
        "net.prototxt:5: num_output cannot be '-4'",
    ),
    "a field of 0": ("num_output: 4", "num_output: 0", "net.prototxt:5: num_output is 0"),
    "a field of 400 digits": (
        "num_output: 4",
        f"num_output: {BIG}",
        "net.prototxt:5: num_output cannot be '999999999999999999",
    ),
    "a field that is missing": ("num_output: 4 ", "", "net.prototxt:5: num_output is missing"),
    "a kernel that is missing": ("kernel_size: 5 ", "", "net.prototxt:5: kernel_size is missing"),
    "a kernel of 0": ("kernel_size: 5", "kernel_size: 0", "net.prototxt:5: kernel_size is 0"),
    "a kernel larger than the image": (
        "kernel_size: 5",
        "kernel_size: 50",
        "net.prototxt:3: op 'conv' (Conv) at host 127.0.0.1, cpu:",
    ),
    "a stride of 0": ("stride: 2", "stride: 0", "net.prototxt:10: stride is 0"),
    "a group that does not divide": (
        "num_output: 4",
        "num_output: 4 group: 3",
        "net.prototxt:5: group is 3",
    ),
    "a pad beyond the kernel": (
        "stride: 2",
        "stride: 2 pad: 7",
        "net.prototxt:8: op 'pool' (Pool) at host 127.0.0.1, cpu:",
    ),
    "an unknown pooling": ("pool: MAX", "pool: MIN", "net.prototxt:10: pool cannot be 'MIN'"),
    "a pooling as text": ("pool: MAX", 'pool: "MAX"', "net.prototxt:10: pool cannot be 'MAX'"),
    "an unknown filler": (
        '"xavier"',
        '"xavierr"',
        "net.prototxt:5: a 'xavierr' filler is not supported",
    ),
    "a filler with an unknown field": (
        'type: "xavier"',
        'type: "xavier" gain: 2',
        "net.prototxt:5: FillerParameter has no field 'gain'",
    ),
    "a bracket that stays open": (
        "input_param {",
        "input_param {{",
        "net.prototxt:2: the text cannot be read",
    ),
    "a bracket too many": (
        'top: "prob" }',
        'top: "prob" } }',
        "net.prototxt:13: the text cannot be read",
    ),
    "a quote that stays open": ('"ReLU"', '"ReLU', "net.prototxt:7: the text cannot be read"),
    "a quote over lines": ('"small"\n', '"small\n"\n', "net.prototxt:1: the text cannot be read"),
    "a character that means nothing": (
        'name: "small"',
        'name: "small" $',
        "net.prototxt:1: the text cannot be read",
    ),
    "a NUL": ('name: "small"', 'name: "small"\x00', "net.prototxt:1: the text cannot be read"),
    "not UTF-8": ('name: "small"', b'name: "\xff"', "net.prototxt:1: the file is not UTF-8 text"),
    "a semicolon for a colon": (
        "num_output: 4",
        "num_output; 4",
        "net.prototxt:5: the text cannot be read",
    ),
    "a message for a number": (
        "num_output: 4",
        "num_output { a: 4 }",
        "net.prototxt:5: num_output cannot be a message",
    ),
    "a number for a message": (
        "pooling_param { pool: MAX kernel_size: 2 stride: 2 }",
        "pooling_param: 3",
        "net.prototxt:10: pooling_param cannot be '3'",
    ),
    "a shape of 0": ("dim: 8 dim", "dim: 0 dim", "net.prototxt:2: a dimension is 0"),
    "a shape below 0": ("dim: 8 dim", "dim: -8 dim", "net.prototxt:2: a dimension is -8"),
    "a shape beyond all": (
        "dim: 8 dim",
        "dim: 9223372036854775807 dim",
        "net.prototxt:2: blob 'data' is larger than a tensor can be",
    ),
    "a shape of nothing": (
        "shape { dim: 8 dim: 1 dim: 28 dim: 28 }",
        "shape { }",
        "net.prototxt:5: layer 'conv' (Convolution): a convolutio",
    ),
    "an input without a shape": (
        " input_param { shape { dim: 8 dim: 1 dim: 28 dim: 28 }}",
        "",
        "net.prototxt:2: layer 'd' has 0 shapes",
    ),
    "an unknown phase": (
        'top: "prob"',
        'top: "prob" include { phase: TRAINING }',
        "net.prototxt:13: phase cannot be 'TRAINING'",
    ),
    "a loss weight of words": (
        'top: "prob"',
        'top: "prob" loss_weight: high',
        "net.prototxt:13: loss_weight cannot be 'high'",
    ),
    "an escape that means nothing": (
        '"small"',
        '"sm\\qall"',
        "net.prototxt:1: the text cannot be read",
    ),
    "lr_mult of words": (
        'top: "fc"',
        'top: "fc" param { lr_mult: twice }',
        "net.prototxt:12: lr_mult cannot be 'twice'",
    ),
    "lr_mult that is not a number": (
        'top: "fc"',
        'top: "fc" param { lr_mult: nan }',
        "net.prototxt:12: state 'fc/weight' has lr_mult nan",
    ),
    "lr_mult below 0": (
        'top: "fc"',
        'top: "fc" param { lr_mult: -1 }',
        "net.prototxt:12: state 'fc/weight' has lr_mult -1.0",
    ),
    "decay_mult infinite": (
        'top: "fc"',
        'top: "fc" param { decay_mult: inf }',
        "net.prototxt:12: state 'fc/weight' has decay_mult inf",
    ),
    "an axis that is not there": (
        'top: "prob"',
        'top: "prob" softmax_param { axis: 9 }',
        "net.prototxt:13: axis is 9, but 'fc' has 2 dimensions",
    ),
    "brackets without end": (
        'name: "small"',
        'name: "small" ' + "layer {" * 3000,
        "net.prototxt:1: the text cannot be read",
    ),
}
"""A text of the net, what stands there instead, and the beginning of the message."""

SOLVER = """\
net: "net.prototxt"
base_lr: 0.01
momentum: 0.9
lr_policy: "step"
gamma: 0.1
stepsize: 10
max_iter: 5
type: "SGD"
"""

SOLVERS: dict[str, tuple[str, str, str]] = {
    "a rate of words": (
        "base_lr: 0.01",
        "base_lr: fast",
        "solver.prototxt:2: base_lr cannot be 'fast'",
    ),
    "a rate below 0": ("base_lr: 0.01", "base_lr: -1", "solver.prototxt:2: base_lr is -1.0"),
    "a rate that is not a number": (
        "base_lr: 0.01",
        "base_lr: nan",
        "solver.prototxt:2: base_lr is nan",
    ),
    "no rate": ("base_lr: 0.01\n", "", "solver.prototxt:3: base_lr is missing"),
    "an unknown policy": ('"step"', '"stepp"', "solver.prototxt:4: lr_policy is 'stepp'"),
    "a policy without its step": ("stepsize: 10\n", "", "solver.prototxt:1: stepsize is missing"),
    "a step of 0": ("stepsize: 10", "stepsize: 0", "solver.prototxt:6: stepsize is 0"),
    "a step below 0": ("stepsize: 10", "stepsize: -1", "solver.prototxt:6: stepsize is -1"),
    "an unknown type": ('"SGD"', '"SGDD"', "solver.prototxt:8: type is 'SGDD'"),
    "iterations below 0": ("max_iter: 5", "max_iter: -5", "solver.prototxt:7: max_iter is -5"),
    "iterations of 400 digits": (
        "max_iter: 5",
        f"max_iter: {BIG}",
        "solver.prototxt:7: max_iter cannot be '99999999999999999",
    ),
    "momentum of 1": ("momentum: 0.9", "momentum: 1", "solver.prototxt:3: momentum is 1.0"),
    "momentum below 0": ("momentum: 0.9", "momentum: -1", "solver.prototxt:3: momentum is -1.0"),
    "an unknown field": (
        "momentum:",
        "momentun:",
        "solver.prototxt:3: SolverParameter has no field 'momentu",
    ),
    "a field twice": (
        "max_iter: 5",
        "max_iter: 5 max_iter: 6",
        "solver.prototxt:7: max_iter is given twice",
    ),
    "a net that is not there": (
        "net.prototxt",
        "none.prototxt",
        "solver.prototxt:1: the net 'none.prototxt' is not there",
    ),
    "an empty net": ('"net.prototxt"', '""', "solver.prototxt:1: the solver names no net"),
    "a net that is this file": (
        "net.prototxt",
        "solver.prototxt",
        "solver.prototxt:1: NetParameter has no field 'net'",
    ),
    "a net of nobody": (
        '"net.prototxt"',
        '"~nosuchuser/net.prototxt"',
        "~nosuchuser/net.prototxt: there is no user for '~nosuchuser'",
    ),
    "a net of 300 characters": (
        "net.prototxt",
        f"{LONG}",
        "solver.prototxt:1: the net 'nnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    ),
    "a bracket": ("max_iter: 5", "max_iter: 5 }", "solver.prototxt:7: the text cannot be read"),
    "a gamma of text": ("gamma: 0.1", 'gamma: "x"', "solver.prototxt:5: gamma cannot be 'x'"),
    "an iter_size of 0": ("type:", "iter_size: 0 type:", "solver.prototxt:8: iter_size is 0"),
    "a regularization that is unknown": (
        "type:",
        'regularization_type: "L3" type:',
        "solver.prototxt:8: regularization_type is 'L3'",
    ),
    "a test interval below 0": (
        "type:",
        "test_interval: -1 type:",
        "solver.prototxt:8: test_interval is -1",
    ),
}


def _layers(**changed: list[Tensor]) -> dict[str, list[Tensor]]:
    """The weights of the net but for the layers given."""
    fc = [torch.zeros(9, 576), torch.zeros(9)]
    return {"conv": [torch.zeros(4, 1, 5, 5), torch.zeros(4)], "fc": fc} | changed


def _cut(path: Path) -> None:
    path.write_bytes(write(path, _layers()).read_bytes()[:500])


def _changed(path: Path) -> None:
    path.write_bytes(b"\xff" * 20 + write(path, _layers()).read_bytes()[20:])


WEIGHTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights that are not there": (lambda p: None, "w.caffemodel: cannot read the file"),
    "weights that are empty": (
        lambda p: p.write_bytes(b""),
        "w.caffemodel: the file is damaged, or of another kind",
    ),
    "weights that are text": (
        lambda p: p.write_text("no weights"),
        "w.caffemodel: the file is damaged, or of another kind",
    ),
    "weights cut short": (_cut, "w.caffemodel: the file is damaged, or of another kind"),
    "weights with bytes changed": (
        _changed,
        "w.caffemodel: the file is damaged, or of another kind",
    ),
    "weights of another net": (
        lambda p: write(p, {"other": [torch.zeros(3)]}),
        "w.caffemodel: nothing in these weights fits the net",
    ),
    "weights of another shape": (
        lambda p: write(p, _layers(fc=[torch.zeros(9, 575), torch.zeros(9)])),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights transposed": (
        lambda p: write(p, _layers(fc=[torch.zeros(576, 9), torch.zeros(9)])),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights without a bias": (
        lambda p: write(p, _layers(fc=[torch.zeros(9, 576)])),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights with a blob too many": (
        lambda p: write(p, _layers(fc=[torch.zeros(9, 576), torch.zeros(9), torch.zeros(1)])),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights whose shape lies": (
        lambda p: write(p, _layers(), shapes={"fc": (9, 577)}),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights whose shape is negative": (
        lambda p: write(p, _layers(), shapes={"fc": (-9, -576)}),
        "w.caffemodel: the weights of layer 'fc' (InnerProduct) d",
    ),
    "weights that are a folder": (lambda p: p.mkdir(), "w.caffemodel: cannot read the file"),
    "weights that are a net": (
        lambda p: p.write_text(NET),
        "w.caffemodel: the file is damaged, or of another kind",
    ),
    "weights of zeros": (
        lambda p: p.write_bytes(bytes(100)),
        "w.caffemodel: the file is damaged, or of another kind",
    ),
}


def test_the_net_and_the_weights_are_good(tmp_path: Path) -> None:
    file, weights = tmp_path / "net.prototxt", write(tmp_path / "w.caffemodel", _layers())
    file.write_text(NET)
    assert call("check", file).code == 0
    assert call("import", "caffe", file, "--weights", weights, "-o", tmp_path / "o.yaml").code == 0


@pytest.mark.parametrize("name", NETS)
def test_wrong_nets(tmp_path: Path, name: str) -> None:
    old, new, text = NETS[name]
    file = tmp_path / "net.prototxt"
    assert old in NET
    content = new if isinstance(new, bytes) else new.encode()
    file.write_bytes(NET.encode().replace(old.encode(), content, 1))
    refused(tmp_path, ["check", file], [text])
    refused(tmp_path, ["import", "caffe", file, "-o", tmp_path / "out.yaml"], [text])


@pytest.mark.parametrize("name", SOLVERS)
def test_wrong_solvers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, text = SOLVERS[name]
    monkeypatch.chdir(tmp_path)
    loss = 'type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss"'
    net = NET.replace('type: "Softmax" bottom: "fc" top: "prob"', loss)
    source = (
        'layer { name: "d" type: "Data" top: "data" top: "label" data_param { batch_size: 8 } }'
    )
    Path("net.prototxt").write_text(net.replace(NET.splitlines()[1], source))
    assert old in SOLVER
    Path("solver.prototxt").write_text(SOLVER.replace(old, new))
    words = ["train", "solver.prototxt", "--data", "fashion-mini", "--out", "out"]
    refused(tmp_path, words, [text])


@pytest.mark.parametrize("name", WEIGHTS)
def test_wrong_weights(tmp_path: Path, name: str) -> None:
    make, text = WEIGHTS[name]
    file, weights = tmp_path / "net.prototxt", tmp_path / "w.caffemodel"
    file.write_text(NET)
    make(weights)
    words = ["import", "caffe", file, "--weights", weights, "-o", tmp_path / "out.yaml"]
    refused(tmp_path, words, [text])
