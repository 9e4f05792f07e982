"""Nets as wholes: phases, sharing, layers in place, the older form, mistakes, and the samples."""

from __future__ import annotations

import pytest
import torch

from purine import Run, backward
from purine.analysis.infer import check
from purine.data import fashion_mini, prepare, synthetic_images
from purine.errors import ConfigError, FormatError, KindError
from purine.graph import from_yaml, to_yaml
from purine.importers.caffe import apply_solver, from_caffe
from tests.importers.caffe_nets import INPUT, bring, layer, values_of
from tests.importers.mutations import SAMPLES

FC = "inner_product_param { num_output: 4 }"


def test_lenet_trains_on_fashion_mini():
    brought = from_caffe(
        SAMPLES / "lenet_train_test.prototxt",
        solver=SAMPLES / "lenet_solver.prototxt",
        image=(1, 28, 28),
        batch=32,
    )
    assert (brought.name, brought.transform.scale) == ("LeNet", 1 / 256)
    assert brought.solver is not None
    assert brought.test is not None
    data = fashion_mini()
    settings = brought.transform.settings()
    net = prepare(brought.net, data.train, **settings)
    step = check(apply_solver(backward(net), brought.solver))
    with Run(step, data=data, seed=0, threads=1) as run:
        losses = [result.loss for result in run.steps(30)]
        measured = run.evaluate(prepare(brought.test, data.test, **settings))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert measured["accuracy"] > 0.4


def test_cifar10_full_steps_on_synthetic_images():
    brought = from_caffe(
        SAMPLES / "cifar10_full_train_test.prototxt",
        solver=SAMPLES / "cifar10_full_solver.prototxt",
        image=(3, 32, 32),
        batch=4,
    )
    assert brought.solver is not None
    assert "mean.binaryproto" in brought.notes[0]
    states = brought.net.states
    assert (states["ip1/weight"].decay_mult, states["ip1/bias"].decay_mult) == (250, 0)
    step = check(apply_solver(backward(brought.net), brought.solver))
    assert step.ops["update/ip1/weight"].attributes["weight_decay"] == pytest.approx(1.0)
    with Run(step, data=synthetic_images((3, 32, 32), classes=10, count=40), threads=1) as run:
        losses = [result.loss for result in run.steps(2)]
    assert losses[0] == pytest.approx(2.3026, abs=0.01)


@pytest.mark.parametrize("name", ["lenet", "cifar10_full"])
def test_an_imported_net_is_a_graph_in_yaml(name):
    brought = from_caffe(SAMPLES / f"{name}_train_test.prototxt", image=(3, 32, 32), batch=2)
    for graph in (brought.net, brought.test):
        assert graph is not None
        assert check(from_yaml(to_yaml(graph))) == graph


def test_phases_choose_layers(tmp_path):
    text = INPUT
    text += layer("ReLU", "include { phase: TRAIN }", name="train")
    text += layer("TanH", "exclude { phase: TRAIN }", name="test")
    text += layer("Dropout", bottom="y", top="y", name="drop")
    brought = bring(tmp_path, text)
    assert brought.test is not None
    assert [op.kind for op in brought.net.ops.values() if "aten" not in op.kind] == [
        "Relu",
        "Dropout",
    ]
    assert {op.kind for op in brought.test.ops.values()} == {"Tanh", "StopGradient"}


def test_stages_are_not_met(tmp_path):
    text = INPUT + layer("TanH") + layer("ReLU", 'include { stage: "deploy" }', name="other")
    assert list(bring(tmp_path, text).net.ops) == ["op"]


def test_parameters_of_one_name_are_one_state(tmp_path):
    shared = ' param { name: "w" lr_mult: 3 } param { name: "b" }'
    text = 'input: "x" input_shape { dim: 3 dim: 4 }\n'
    text += layer("InnerProduct", FC + shared, name="fc1")
    text += layer("InnerProduct", FC + ' param { name: "w" }', bottom="y", top="z", name="fc2")
    net = bring(tmp_path, text).net
    assert set(net.states) == {"w", "b", "fc2/bias"}
    assert net.states["w"].lr_mult == 3
    x = torch.randn(3, 4, dtype=torch.float64)
    values = values_of(net, x=x)
    expected = (x @ values["w"].T + values["b"]) @ values["w"].T + values["fc2/bias"]
    torch.testing.assert_close(values["z"], expected)


def test_layers_in_place_rename_later_readers(tmp_path):
    text = INPUT + layer("TanH", top="x", name="a") + layer("TanH", top="x", name="b")
    text += layer("ReLU", top="b", name="c")
    net = bring(tmp_path, text).net
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(values_of(net, x=x)["b"], x.tanh().tanh().relu())
    assert net.outputs == ("b",)


def test_several_losses_and_weights_of_any_top(tmp_path):
    text = INPUT + 'input: "t" input_shape { dim: 3 dim: 4 dim: 7 dim: 6 }\n'
    text += layer("EuclideanLoss", "loss_weight: 0.5", bottom="x t", top="a", name="a")
    text += layer("Reduction", "loss_weight: 2", top="b", name="b")
    net = bring(tmp_path, text).net
    graph = backward(net, wrt=["x"])
    x, t = (torch.randn(3, 4, 7, 6, dtype=torch.float64) for _ in range(2))
    found = values_of(graph, x=x, t=t)["grad/x"]
    torch.testing.assert_close(found, 0.5 * (x - t) / 3 + 2)
    assert set(net.outputs) == {"a", "b", "b/loss"}


def test_no_gradient_goes_down_where_none_is_wanted(tmp_path):
    text = (
        INPUT
        + layer("Power", name="p")
        + layer(
            "Eltwise", "propagate_down: false propagate_down: true", bottom="y x", top="z", name="e"
        )
    )
    text += layer("Reduction", "loss_weight: 1", bottom="z", top="loss", name="r")
    graph = backward(bring(tmp_path, text).net, wrt=["x"])
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    assert torch.equal(values_of(graph, x=x)["grad/x"], torch.ones_like(x))


def test_the_older_form(tmp_path):
    old = """
    layers { name: "d" type: DATA top: "x" top: "label" data_param { batch_size: 3 crop_size: 5
             scale: 0.5 mirror: true } transform_param { mean_value: 7 } }
    layers { name: "fc" type: INNER_PRODUCT bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2
             weight_decay: 1 weight_decay: 0 param: "w" inner_product_param { num_output: 4 } }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "y" bottom: "label" top: "loss" }
    """
    new = """
    layer { name: "d" type: "Data" top: "x" top: "label" data_param { batch_size: 3 }
            transform_param { crop_size: 5 scale: 0.5 mirror: true mean_value: 7 } }
    layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
            param { name: "w" lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
            inner_product_param { num_output: 4 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
    """
    brought = [bring(tmp_path, text, image=(2, 9, 9)) for text in (old, new)]
    assert brought[0] == brought[1]
    assert brought[0].net.blobs["x"].shape == (3, 2, 5, 5)
    assert brought[0].transform.settings() == {"scale": 0.5, "mean": 7, "crop": 5, "mirror": True}


def test_sources(tmp_path):
    text = """
    layer { name: "h" type: "HDF5Data" top: "x" top: "y" hdf5_data_param { batch_size: 3 } }
    layer { name: "m" type: "MemoryData" top: "m" top: "l"
            memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } }
    layer { name: "i" type: "ImageData" top: "i" top: "il" image_data_param { batch_size: 2
            new_height: 6 new_width: 7 is_color: false } }
    layer { name: "d" type: "DummyData" top: "c" dummy_data_param { shape { dim: 2 dim: 3 }
            data_filler { value: 4 } } }
    layer { name: "n" type: "Input" top: "n" input_param { shape { dim: 2 dim: 8 } } }
    layer { name: "s" type: "Silence" bottom: "x" bottom: "y" bottom: "m" bottom: "l" }
    layer { name: "e" type: "Exp" bottom: "c" top: "e" }
    """
    net = bring(tmp_path, text, shapes={"x": (8,), "y": (2,)}).net
    shapes = {name: net.blobs[name].shape for name in ("x", "y", "m", "l", "i", "il", "c", "n")}
    assert shapes == {
        "x": (3, 8),
        "y": (3, 2),
        "m": (2, 3, 4, 5),
        "l": (2,),
        "i": (2, 1, 6, 7),
        "il": (2,),
        "c": (2, 3),
        "n": (2, 8),
    }
    assert net.blobs["l"].dtype == "int64"
    assert net.outputs == ("e",)
    assert net.inputs == ("n",)


def test_inputs_by_four_dimensions(tmp_path):
    text = 'input: "x" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4\n' + layer("TanH")
    assert bring(tmp_path, text, batch=5).net.blobs["y"].shape == (5, 2, 3, 4)


def test_an_unknown_size_of_images_is_told(tmp_path):
    text = layer("Data", "data_param { batch_size: 2 }", bottom="", top="data label")
    with pytest.raises(ConfigError, match="size of 'data'") as caught:
        bring(tmp_path, text)
    assert "image=(3, 32, 32)" in str(caught.value.remedy)


MISTAKES = {
    "type": (layer("Convolutoin"), "did you mean 'Convolution'?"),
    "python": (
        layer("Python", 'python_param { module: "m" layer: "L" }'),
        "replace what it does",
    ),
    "filter": (layer("Filter", bottom="x x"), "replace what it does"),
    "pyramid": (layer("SPP", "spp_param { pyramid_height: 5 }"), "change pyramid_height"),
    "marks": (layer("LSTM", "recurrent_param { num_output: 2 }", bottom="x x"), "put the steps"),
    "bottom": (layer("TanH", bottom="z"), "correct the name"),
    "twice": (layer("TanH") + layer("TanH", name="b"), "give one of the tops another name"),
    "counts": (layer("TanH", bottom="x x"), "change the bottoms"),
    "missing": (layer("InnerProduct", "inner_product_param { }"), "change num_output"),
    "zero": (layer("InnerProduct", "inner_product_param { num_output: 0 }"), "change num_output"),
    "group": (
        layer("Convolution", "convolution_param { num_output: 4 kernel_size: 1 group: 3 }"),
        "change group",
    ),
    "kernel": (layer("Convolution", "convolution_param { num_output: 4 }"), "change kernel_size"),
    "axis": (layer("Softmax", "softmax_param { axis: 4 }"), "change axis"),
    "filler": (
        layer("PReLU", 'prelu_param { filler { type: "unitball" } }'),
        "change type",
    ),
    "params": (layer("TanH", "param { lr_mult: 1 }"), "remove the last of them"),
    "rules": (layer("TanH", "include { } exclude { }"), "remove one of them"),
    "slices": (layer("Slice", top="a b c"), "change slice_point"),
    "window": (
        layer("Pooling", "pooling_param { kernel_size: 1 stride: 4 }"),
        "take a smaller stride",
    ),
    "stochastic": (
        layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }"),
        "change pool",
    ),
    "coefficients": (
        layer("Eltwise", "eltwise_param { coeff: 1 }", bottom="x x"),
        "change coeff",
    ),
    "weights": (layer("TanH", "loss_weight: 1 loss_weight: 1"), "change loss_weight"),
    "forms": (layer("TanH") + "layers { type: TANH }", "write all of them as layer { }"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_have_a_line_and_a_remedy(tmp_path, case):
    text, remedy = MISTAKES[case]
    with pytest.raises(FormatError) as caught:
        bring(tmp_path, INPUT + text)
    file, _, line = str(caught.value.where).rpartition(":")
    assert file.endswith("net.prototxt")
    assert line in ("2", "3")
    assert remedy in str(caught.value.remedy)


def test_what_does_not_fit_together_has_a_line_too(tmp_path):
    text = INPUT + 'input: "t" input_shape { dim: 3 }\n' + layer("Eltwise", bottom="x t")
    with pytest.raises(KindError) as caught:
        bring(tmp_path, text)
    assert str(caught.value.where).endswith("net.prototxt:3")


def test_shared_parameters_of_different_sizes(tmp_path):
    text = INPUT + layer("InnerProduct", FC + ' param { name: "w" }')
    text += layer("InnerProduct", FC + ' param { name: "w" }', bottom="y", top="z", name="fc2")
    with pytest.raises(FormatError, match="another size") as caught:
        bring(tmp_path, text)
    assert str(caught.value.where).endswith(":3")


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(FormatError, match="cannot read the file"):
        from_caffe(tmp_path / "none.prototxt")
    path = tmp_path / "net.caffemodel"
    path.write_bytes(b"\x0a\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        from_caffe(path)
