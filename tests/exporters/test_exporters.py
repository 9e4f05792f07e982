"""Exported nets, loaded by the tools they are for, give what Purine computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.exporters import onnx as onnx_exporter
from purine.exporters.caffe import LAYERS, caffe_files
from purine.exporters.net import outputs_of, trained_net, whole_net
from purine.exporters.onnx import onnx_bytes
from purine.exporters.torch import program_bytes, state_dict, state_dict_bytes
from purine.importers.caffe import from_caffe
from purine.registry.lookup import kinds
from tests.exporters.nets import NETS, Residual, computed, samples, trained

PLAIN_TORCH = """
import sys
sys.modules["purine"] = None
import torch
program = torch.export.load(sys.argv[1])
(result,) = program.module()(torch.load(sys.argv[2]))
torch.save({"result": result, "names": sorted(program.state_dict)}, sys.argv[3])
"""


@pytest.mark.multiprocess
def test_plain_torch_runs_the_program(tmp_path: Path) -> None:
    """Without Purine; batches of another size; names as torch writes them; bit for bit."""
    made = trained("lenet")
    data, notes = program_bytes(made)
    assert notes == []
    files = [tmp_path / name for name in ("net.pt2", "x.pt", "y.pt")]
    files[0].write_bytes(data)
    x = samples(made, 7)
    torch.save(x, files[1])
    subprocess.run([sys.executable, "-c", PLAIN_TORCH, *map(str, files)], check=True, timeout=180)
    found = torch.load(files[2])
    assert torch.equal(found["result"], computed(made, x))
    assert found["names"] == sorted(name.replace("/", ".") for name in made.graph.states)


def test_programs_of_nets_from_torch(tmp_path: Path) -> None:
    made = trained("torch")
    (tmp_path / "net.pt2").write_bytes(program_bytes(made)[0])
    x = samples(made, 3)
    (result,) = torch.export.load(tmp_path / "net.pt2").module()(x)
    torch.testing.assert_close(result, computed(made, x), rtol=0, atol=1e-5)


def test_a_module_takes_its_values_back(tmp_path: Path) -> None:
    made = trained("torch")
    (tmp_path / "net.pt").write_bytes(state_dict_bytes(whole_net("torch", made.net, made.values)))
    module = Residual().eval()
    module.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    x = samples(made, 4)
    torch.testing.assert_close(module(x).detach(), computed(made, x), rtol=0, atol=1e-6)


def test_names_that_torch_cannot_have_stay_apart() -> None:
    net = pu.zoo.mlp(2)
    values = {name: torch.tensor(float(k)) for k, name in enumerate(net.states)}
    assert len(state_dict(whole_net("n", net, values))) == len(values) - 2  # without the clock


@pytest.mark.parametrize("name", ["lenet", "torch"])
def test_onnx_runtime_runs_the_model(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made = trained(name)
    data, notes = onnx_bytes(made)
    assert notes == []
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_inputs()] == list(made.graph.inputs)
    assert [item.name for item in session.get_outputs()] == list(made.graph.outputs)
    for batch in (1, 5):
        x = samples(made, batch)
        (result,) = session.run(None, {made.graph.inputs[0]: x.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(result), computed(made, x), rtol=1e-5, atol=1e-5
        )


def test_onnx_asks_for_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_exporter, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        onnx_bytes(trained("lenet"))
    assert caught.value.remedy == "pip install 'purine[onnx]'"


@pytest.mark.parametrize("name", NETS)
def test_caffe_files_are_read_back(name: str, tmp_path: Path) -> None:
    made = trained(name)
    text, weights = caffe_files(made)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "net.caffemodel").write_bytes(weights)
    imported = from_caffe(tmp_path / "net.prototxt", weights=tmp_path / "net.caffemodel")
    assert imported.notes == ()
    size = (made.graph.blobs[made.graph.inputs[0]].shape or (1,))[0]
    x = samples(made, size)
    output = made.graph.outputs[0]
    graph = pu.inference(imported.test or imported.net, [output])
    values = {name: imported.values[name] for name in graph.states}
    result = pu.compute(graph, {graph.inputs[0]: x}, states=values)[output]
    torch.testing.assert_close(result, computed(made, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lenet", "unet"])
def test_another_reader_of_caffe_files_computes_the_same(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV, which reads Caffe's files, is not installed")
    made = trained(name)
    text, weights = caffe_files(made)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "net.caffemodel").write_bytes(weights)
    net = cv2.dnn.readNetFromCaffe(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"))
    x = samples(made, (made.graph.blobs[made.graph.inputs[0]].shape or (1,))[0])
    net.setInput(x.numpy())
    result = torch.from_numpy(net.forward(made.graph.outputs[0]))
    torch.testing.assert_close(result, computed(made, x), rtol=1e-4, atol=1e-4)


def test_caffe_refuses_by_name_what_it_lacks() -> None:
    net = pu.zoo.gpt2(2, context=4, vocabulary=7, width=8, heads=2, layers=1)
    values = {name: torch.zeros(net.blobs[name].shape or ()) for name in net.states}
    with pytest.raises(GraphError, match="Caffe has no layer for op '") as caught:
        caffe_files(trained_net("gpt", net, values))
    assert caught.value.op in net.ops
    assert caught.value.remedy == "export it with --format onnx or --format torch"


def test_every_kind_of_the_table_exists() -> None:
    assert {name for name in LAYERS if not name.startswith("aten.")} <= set(kinds())


def test_answers_are_what_targets_are_compared_with() -> None:
    assert outputs_of(pu.zoo.lenet(2)) == ["fc2"]
    example = torch.zeros(2, 3), torch.zeros(2, 4)
    regression = pu.from_torch(nn.Linear(3, 4), nn.functional.mse_loss, example).net
    assert [regression.blobs[name].shape for name in outputs_of(regression)] == [(2, 4)]
    with pytest.raises(GraphError, match="no output 'fc'"):
        trained_net("n", pu.zoo.lenet(2), {}, ["fc"])
