"""Each type of layer gives the numbers that Caffe documents."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from purine.importers.caffe.net import LAYERS
from tests.importers.caffe_nets import INPUT, bring, layer, one_layer, values_of
from tests.reference import following, run, start

generator = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 7, 6, generator=generator, dtype=torch.float64)
LABEL = torch.randint(4, (3,), generator=generator)
MAP = torch.randint(4, (3, 7, 6), generator=generator)


def window_lrn(x):
    """Caffe's definition: squares, an average over the window, (1 + alpha * average) ** -beta."""
    mean = F.avg_pool2d(x * x, 3, 1, 1, count_include_pad=True)
    return x * (1 + 0.5 * mean) ** -0.75


SIMPLE = {
    "AbsVal": ("", torch.abs),
    "BNLL": ("", lambda x: torch.log1p(torch.exp(x))),
    "ELU": ("elu_param { alpha: 0.5 }", lambda x: F.elu(x, 0.5)),
    "Sigmoid": ("", torch.sigmoid),
    "TanH": ("", torch.tanh),
    "Softmax": ("", lambda x: F.softmax(x, 1)),
    "ReLU": ("relu_param { negative_slope: 0.1 }", lambda x: F.leaky_relu(x, 0.1)),
    "Power": ("power_param { power: 2 scale: 3 shift: 1 }", lambda x: (1 + 3 * x) ** 2),
    "Exp": ("exp_param { base: 2 shift: 1 }", lambda x: 2 ** (1 + x)),
    "Clip": ("clip_param { min: -0.5 max: 0.5 }", lambda x: x.clamp(-0.5, 0.5)),
    "Flatten": ("flatten_param { axis: 2 }", lambda x: x.flatten(2)),
    "Reshape": (
        "reshape_param { shape { dim: 2 dim: -1 } axis: 1 num_axes: 1 }",
        lambda x: x.reshape(3, 2, 2, 7, 6),
    ),
    "Reduction": (
        "reduction_param { operation: ASUM axis: 1 coeff: 2 }",
        lambda x: 2 * x.abs().sum((1, 2, 3)),
    ),
    "Tile": ("tile_param { axis: 2 tiles: 2 }", lambda x: x.repeat(1, 1, 2, 1)),
    "ArgMax": ("argmax_param { axis: 1 }", lambda x: x.argmax(1, keepdim=True).double()),
    "LRN": (
        "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }",
        window_lrn,
    ),
}


@pytest.mark.parametrize("type", SIMPLE)
def test_layers_without_parameters(tmp_path, type):
    rest, expected = SIMPLE[type]
    torch.testing.assert_close(one_layer(tmp_path, X, type, rest)["y"], expected(X))


def test_log_to_a_base(tmp_path):
    found = one_layer(tmp_path, X.abs() + 1, "Log", "log_param { base: 10 scale: 2 }")["y"]
    torch.testing.assert_close(found, torch.log10(2 * (X.abs() + 1)))


def test_lrn_across_channels(tmp_path):
    found = one_layer(tmp_path, X, "LRN", "lrn_param { local_size: 3 alpha: 0.5 k: 2 }")["y"]
    squares = F.pad(X * X, (0, 0, 0, 0, 1, 1))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    torch.testing.assert_close(found, X / (2 + 0.5 / 3 * total) ** 0.75)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 0), (3, 2, 1), (2, 2, 1), (2, 1, 0)])
def test_pooling_has_caffes_sizes_and_windows(tmp_path, method, kernel, stride, pad):
    rest = f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} }}"
    found = one_layer(tmp_path, X, "Pooling", rest)["y"]
    sizes = []
    for extent in (7, 6):
        size = math.ceil((extent + 2 * pad - kernel) / stride) + 1
        sizes.append(size - 1 if pad and (size - 1) * stride >= extent + pad else size)
    assert list(found.shape[2:]) == sizes
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            top, left = row * stride - pad, column * stride - pad
            down, right = min(top + kernel, 7 + pad), min(left + kernel, 6 + pad)
            area = (down - top) * (right - left)
            window = X[:, :, max(top, 0) : min(down, 7), max(left, 0) : min(right, 6)]
            flat = window.flatten(2)
            expected = flat.amax(2) if method == "MAX" else flat.sum(2) / area
            torch.testing.assert_close(found[:, :, row, column], expected)


def test_global_pooling(tmp_path):
    found = one_layer(tmp_path, X, "Pooling", "pooling_param { pool: AVE global_pooling: true }")
    torch.testing.assert_close(found["y"], X.mean((2, 3), keepdim=True))


def test_convolution_and_its_transpose(tmp_path):
    rest = (
        "convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad: 1 stride: 2 group: 2"
        ' dilation: 2 weight_filler { type: "xavier" variance_norm: AVERAGE } }'
    )
    values = one_layer(tmp_path, X, "Convolution", rest)
    weight, bias = values["op/weight"], values["op/bias"]
    torch.testing.assert_close(values["y"], F.conv2d(X, weight, bias, 2, 1, 2, 2))
    values = one_layer(tmp_path, X, "Deconvolution", rest)
    weight, bias = values["op/weight"], values["op/bias"]
    assert weight.shape == (4, 3, 3, 2)
    torch.testing.assert_close(values["y"], F.conv_transpose2d(X, weight, bias, 2, 1, 0, 2, 2))


def test_inner_product_from_an_axis_and_transposed(tmp_path):
    rest = "inner_product_param { num_output: 5 axis: 2 transpose: true }"
    values = one_layer(tmp_path, X, "InnerProduct", rest)
    assert values["op/weight"].shape == (42, 5)
    expected = X.flatten(2) @ values["op/weight"] + values["op/bias"]
    torch.testing.assert_close(values["y"], expected)


def test_learnt_slopes_scale_and_bias(tmp_path):
    values = one_layer(tmp_path, X, "PReLU")
    torch.testing.assert_close(values["y"], F.prelu(X, values["op/weight"]))
    values = one_layer(tmp_path, X, "Scale", "scale_param { num_axes: 2 bias_term: true }")
    expected = X * values["op/weight"][..., None] + values["op/bias"][..., None]
    torch.testing.assert_close(values["y"], expected)
    values = one_layer(tmp_path, X, "Bias", "bias_param { axis: 2 num_axes: -1 }")
    torch.testing.assert_close(values["y"], X + values["op/bias"])


def test_embedding_has_a_bias_unless_told_otherwise(tmp_path):
    text = 'input: "i" input_shape { dim: 3 }\n' + layer(
        "Embed", "embed_param { num_output: 5 input_dim: 4 }", bottom="i"
    )
    values = values_of(bring(tmp_path, text).net, i=LABEL)
    expected = values["op/weight"][LABEL] + values["op/bias"]
    torch.testing.assert_close(values["y"], expected)


def test_joining_cutting_and_sums(tmp_path):
    text = INPUT + layer("Slice", "slice_param { slice_point: 1 }", top="a b")
    text += layer("Concat", "concat_param { axis: 1 }", bottom="b a", top="c", name="join")
    coefficients = "eltwise_param { operation: SUM coeff: 2 coeff: -1 }"
    text += layer("Eltwise", coefficients, bottom="x c", top="d", name="sum")
    text += layer("Split", bottom="d", top="d1 d2", name="split")
    text += layer("Eltwise", "eltwise_param { operation: PROD }", bottom="d1 d2", name="square")
    values = values_of(bring(tmp_path, text).net, x=X)
    expected = 2 * X - torch.cat([X[:, 1:], X[:, :1]], 1)
    torch.testing.assert_close(values["y"], expected * expected)


def test_crop_to_the_size_of_another(tmp_path):
    text = INPUT + 'input: "s" input_shape { dim: 3 dim: 1 dim: 4 dim: 4 }\n'
    text += layer("Crop", "crop_param { offset: 2 offset: 1 }", bottom="x s")
    net = bring(tmp_path, text).net
    values = values_of(net, x=X, s=X)
    assert torch.equal(values["y"], X[:, :, 2:6, 1:5])


def test_batch_norm_keeps_sums_that_a_factor_divides(tmp_path):
    rest = "batch_norm_param { moving_average_fraction: 0.9 eps: 0.01 }"
    brought = bring(tmp_path, INPUT + layer("BatchNorm", rest))
    states = start(brought.net)
    mean, variance, factor = torch.zeros(4).double(), torch.zeros(4).double(), 0.0
    for scale in (1.0, 2.0):
        batch = X * scale + scale
        values = run(brought.net, {"x": batch}, states)
        torch.testing.assert_close(
            values["y"], F.batch_norm(batch, None, None, training=True, eps=0.01)
        )
        states = following(brought.net, values)
        mean = 0.9 * mean + batch.mean((0, 2, 3))
        variance = 0.9 * variance + batch.var((0, 2, 3), correction=1)
        factor = 0.9 * factor + 1
    torch.testing.assert_close(states["op/mean"], mean)
    torch.testing.assert_close(states["op/variance"], variance)
    assert states["op/factor"].item() == pytest.approx(factor)
    assert brought.test is not None
    found = run(brought.test, {"x": X}, states)["y"]
    expected = F.batch_norm(X, mean / factor, variance / factor, training=False, eps=0.01)
    torch.testing.assert_close(found, expected)


def test_batch_norm_with_global_statistics_in_training(tmp_path):
    brought = bring(tmp_path, INPUT + layer("BatchNorm", "batch_norm_param{use_global_stats:true}"))
    values = run(brought.net, {"x": X})
    torch.testing.assert_close(values["y"], X / math.sqrt(1e-5))


def test_batch_norm_with_statistics_of_the_batch_in_tests(tmp_path):
    rest = "batch_norm_param { use_global_stats: false }" + " param { lr_mult: 0 }" * 3
    brought = bring(tmp_path, INPUT + layer("BatchNorm", rest))
    assert brought.test is not None
    values = run(brought.test, {"x": X})
    torch.testing.assert_close(values["y"], F.batch_norm(X, None, None, training=True))


LABELLED = INPUT + 'input: "label" input_shape { dim: 3 dim: 1 dim: 7 dim: 6 }\n'


@pytest.mark.parametrize(
    ("rest", "divisor"),
    [
        ("", lambda kept: 3 * 42),
        ("loss_param { ignore_label: 1 }", lambda kept: kept),
        ("loss_param { ignore_label: 1 normalization: FULL }", lambda kept: 3 * 42),
        ("loss_param { normalization: BATCH_SIZE }", lambda kept: 3),
        ("loss_param { normalize: false }", lambda kept: 3),
        ("loss_param { ignore_label: 1 normalization: NONE }", lambda kept: 1),
    ],
)
def test_softmax_loss_is_divided_as_asked(tmp_path, rest, divisor):
    text = LABELLED + layer("SoftmaxWithLoss", rest, bottom="x label", top="loss p")
    values = values_of(bring(tmp_path, text).net, x=X, label=MAP.unsqueeze(1))
    losses = F.cross_entropy(X, MAP, reduction="none")
    kept = MAP != 1 if "ignore" in rest else torch.ones_like(MAP, dtype=torch.bool)
    expected = losses[kept].sum() / divisor(kept.sum().item())
    torch.testing.assert_close(values["loss"], expected)
    torch.testing.assert_close(values["p"], F.softmax(X, 1))


SCORES = 'input: "x" input_shape { dim: 3 dim: 4 } input: "t" input_shape { dim: 3 %s }\n'


def test_losses_of_classes(tmp_path):
    x = X[:, :, 0, 0]
    text = SCORES % "" + layer("HingeLoss", "hinge_loss_param { norm: L2 }", bottom="x t")
    signs = torch.ones(3, 4).double().scatter(1, LABEL[:, None], -1.0)
    expected = ((1 + signs * x).clamp(min=0) ** 2).sum() / 3
    torch.testing.assert_close(values_of(bring(tmp_path, text).net, x=x, t=LABEL)["y"], expected)

    text = SCORES % "" + layer("MultinomialLogisticLoss", bottom="x t")
    p = F.softmax(x, 1)
    found = values_of(bring(tmp_path, text).net, x=p, t=LABEL)["y"]
    torch.testing.assert_close(found, F.nll_loss(p.log(), LABEL))

    text = SCORES % "" + 'input: "h" input_shape { dim: 4 dim: 4 }\n'
    text += layer("InfogainLoss", bottom="x t h")
    found = values_of(bring(tmp_path, text).net, x=x, t=LABEL, h=torch.eye(4).double())["y"]
    torch.testing.assert_close(found, F.cross_entropy(x, LABEL))

    text = SCORES % "" + layer("Accuracy", "accuracy_param { top_k: 2 }", bottom="x t")
    found = values_of(bring(tmp_path, text).net, x=x, t=LABEL)["y"]
    correct = (x.topk(2).indices == LABEL[:, None]).any(1)
    torch.testing.assert_close(found, correct.double().mean())


def test_losses_of_values(tmp_path):
    x, y = X[:, :, 0, 0], X[:, :, 1, 1]
    text = SCORES % "dim: 2 dim: 2" + layer("EuclideanLoss", bottom="x t")
    found = values_of(bring(tmp_path, text).net, x=x, t=y.reshape(3, 2, 2))["y"]
    torch.testing.assert_close(found, ((x - y) ** 2).sum() / 6)

    text = SCORES % "dim: 4" + layer("SigmoidCrossEntropyLoss", bottom="x t")
    found = values_of(bring(tmp_path, text).net, x=x, t=y.sigmoid())["y"]
    expected = F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="sum") / 3
    torch.testing.assert_close(found, expected)

    text = SCORES % "dim: 4" + 'input: "s" input_shape { dim: 3 }\n'
    text += layer("ContrastiveLoss", "contrastive_loss_param { margin: 3 }", bottom="x t s")
    similar = torch.tensor([1.0, 0.0, 0.0]).double()
    distance = (x - y).norm(dim=1)
    expected = (similar * distance**2 + (1 - similar) * (3 - distance).clamp(min=0) ** 2).sum() / 6
    found = values_of(bring(tmp_path, text).net, x=x, t=y, s=similar)["y"]
    torch.testing.assert_close(found, expected)


def test_every_type_is_sorted_and_has_limits():
    assert list(LAYERS) == sorted(LAYERS)
    assert all(low <= high for _, *limits in LAYERS.values() for low, high in limits)
