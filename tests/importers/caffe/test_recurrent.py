"""Recurrent layers, norms of samples and pyramids against torch: values and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purine.autodiff import backward
from purine.errors import GraphError
from purine.graph import Graph
from tests.importers.caffe_nets import bring, layer, values_of
from tests.reference import following, run

T, N, WIDTH, D, S = 6, 3, 4, 5, 2
generator = torch.Generator().manual_seed(5)
X = torch.randn(T, N, WIDTH, generator=generator, dtype=torch.float64)
MARKS = torch.tensor([[0, 0, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]]).double()
STATIC = torch.randn(N, S, generator=generator, dtype=torch.float64)
BEGIN = torch.randn(2, 1, N, D, generator=generator, dtype=torch.float64)
INPUTS = (
    f'input: "x" input_shape {{ dim: {T} dim: {N} dim: {WIDTH} }}\n'
    f'input: "cont" input_shape {{ dim: {T} dim: {N} }}\n'
)
SETTINGS = f'num_output: {D} weight_filler {{ type: "gaussian" std: 0.5 }}'


def with_loss(text: str, top: str = "y") -> str:
    return text + layer(
        "Reduction",
        "reduction_param { operation: SUMSQ } loss_weight: 1",
        bottom=top,
        top="l",
        name="l",
    )


def gradients(
    graph: Graph, values: dict[str, Tensor], feeds: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of x and of all parameters, at the states of an earlier run."""
    trained = [name for name, state in graph.states.items() if state.trainable]
    step = backward(graph, wrt=["x"])
    found = run(step, feeds, {name: values[name] for name in graph.states})
    return {name: found[f"grad/{name}"] for name in (*trained, "x")}


def cells_lstm(
    p: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's own cell, step by step; its gates are i, f, g, o."""

    def turned(value: Tensor) -> Tensor:
        i, f, o, g = value.chunk(4)
        return torch.cat([i, f, g, o])

    cell = nn.LSTMCell(WIDTH, D).double()
    outputs = []
    for step in range(T):
        keep = MARKS[step, :, None]
        extra = F.linear(STATIC, p["op/static_weight"]) if "op/static_weight" in p else None
        bias = turned(p["op/bias"])
        parameters = {
            "weight_ih": turned(p["op/weight"]),
            "weight_hh": turned(p["op/hidden_weight"]),
            "bias_ih": bias,
            "bias_hh": torch.zeros_like(bias),
        }
        if extra is None:
            h, c = torch.func.functional_call(cell, parameters, (x[step], (keep * h, keep * c)))
        else:
            rows = []
            for stream in range(N):
                own = parameters | {"bias_ih": bias + turned(extra[stream])}
                state = (keep[stream] * h[stream], keep[stream] * c[stream])
                rows.append(torch.func.functional_call(cell, own, (x[step, stream], state)))
            h, c = (torch.stack(column) for column in zip(*rows, strict=True))
        outputs.append(h)
    return torch.stack(outputs), h, c


def cells_rnn(p: dict[str, Tensor], x: Tensor, h: Tensor) -> Tensor:
    outputs = []
    for step in range(T):
        inner = F.linear(x[step], p["op/weight"], p["op/bias"])
        h = torch.tanh(inner + F.linear(MARKS[step, :, None] * h, p["op/hidden_weight"]))
        outputs.append(torch.tanh(F.linear(h, p["op/output_weight"], p["op/output_bias"])))
    return torch.stack(outputs)


@pytest.mark.parametrize("static", [False, True])
def test_an_lstm_is_torchs_with_forgetting_marks(tmp_path: Path, static: bool) -> None:
    text = INPUTS + (f'input: "s" input_shape {{ dim: {N} dim: {S} }}\n' if static else "")
    bottom = "x cont s" if static else "x cont"
    text += layer("LSTM", f"recurrent_param {{ {SETTINGS} }}", bottom=bottom)
    net = bring(tmp_path, with_loss(text)).net
    feeds = {"x": X, "cont": MARKS} | ({"s": STATIC} if static else {})
    values = values_of(net, **feeds)
    names = [name for name, state in net.states.items() if state.trainable]
    order = ["op/weight", "op/bias", *(["op/static_weight"] if static else []), "op/hidden_weight"]
    assert names == order
    leaves = {name: values[name].clone().requires_grad_() for name in names}
    x = X.clone().requires_grad_()
    zero = torch.zeros(N, D).double()
    expected, h, c = cells_lstm(leaves, x, zero, zero)
    torch.testing.assert_close(values["y"], expected)
    torch.testing.assert_close(following(net, values)["op/hidden"][0], h)
    torch.testing.assert_close(following(net, values)["op/cell"][0], c)
    wanted = torch.autograd.grad(expected.square().sum(), [*leaves.values(), x])
    found = gradients(net, values, feeds)
    for name, gradient in zip((*names, "x"), wanted, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_an_rnn_has_an_output_layer_of_its_own(tmp_path: Path) -> None:
    text = INPUTS + layer("RNN", f"recurrent_param {{ {SETTINGS} }}", bottom="x cont")
    net = bring(tmp_path, with_loss(text)).net
    feeds = {"x": X, "cont": MARKS}
    values = values_of(net, **feeds)
    names = [name for name, state in net.states.items() if state.trainable]
    labels = ("weight", "bias", "hidden_weight", "output_weight", "output_bias")
    assert names == [f"op/{label}" for label in labels]
    leaves = {name: values[name].clone().requires_grad_() for name in names}
    x = X.clone().requires_grad_()
    expected = cells_rnn(leaves, x, torch.zeros(N, D).double())
    torch.testing.assert_close(values["y"], expected)
    wanted = torch.autograd.grad(expected.square().sum(), [*leaves.values(), x])
    found = gradients(net, values, feeds)
    for name, gradient in zip((*names, "x"), wanted, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_a_batch_goes_on_from_the_one_before(tmp_path: Path) -> None:
    text = INPUTS + layer("LSTM", f"recurrent_param {{ {SETTINGS} }}", bottom="x cont")
    brought = bring(tmp_path, text)
    values = values_of(brought.net, x=X, cont=MARKS)
    states = following(brought.net, values)
    second = run(brought.net, {"x": X, "cont": MARKS}, states)
    expected, _, _ = cells_lstm(states, X, states["op/hidden"][0], states["op/cell"][0])
    torch.testing.assert_close(second["y"], expected)
    assert brought.test is not None
    assert "op/hidden_test" in brought.test.states  # tests have streams of their own


def test_states_may_be_bottoms_and_tops(tmp_path: Path) -> None:
    text = INPUTS
    for name in ("h", "c"):
        text += f'input: "{name}" input_shape {{ dim: 1 dim: {N} dim: {D} }}\n'
    settings = f"recurrent_param {{ {SETTINGS} expose_hidden: true }}"
    text += layer("LSTM", settings, bottom="x cont h c", top="y h_T c_T")
    net = bring(tmp_path, text).net
    values = values_of(net, x=X, cont=MARKS, h=BEGIN[0], c=BEGIN[1])
    expected, h, c = cells_lstm(values, X, BEGIN[0, 0], BEGIN[1, 0])
    torch.testing.assert_close(values["y"], expected)
    torch.testing.assert_close(values["op/hidden_next"][0], h)
    torch.testing.assert_close(values["op/cell_next"][0], c)
    assert set(net.outputs) == {"y", "op/hidden_next", "op/cell_next"}


IMAGE = torch.randn(3, 4, 7, 6, generator=generator, dtype=torch.float64)


def pyramid(x: Tensor, method: str) -> Tensor:
    parts = []
    for bins in (1, 2):
        for row in range(bins):
            for column in range(bins):
                tall, wide = -(-7 // bins), -(-6 // bins)
                top = row * tall - (tall * bins - 7 + 1) // 2
                left = column * wide - (wide * bins - 6 + 1) // 2
                window = x[:, :, max(top, 0) : top + tall, max(left, 0) : left + wide].flatten(2)
                # Windows reach into the padding, which counts in averages up to its edge.
                down = min(top + tall, 7 + (tall * bins - 7 + 1) // 2)
                right = min(left + wide, 6 + (wide * bins - 6 + 1) // 2)
                area = (down - top) * (right - left)
                parts.append((bins, window.amax(2) if method == "MAX" else window.sum(2) / area))
    one = torch.stack([part for bins, part in parts if bins == 1], 2).flatten(1)
    four = torch.stack([part for bins, part in parts if bins == 2], 2).flatten(1)
    return torch.cat([one, four], 1)


CASES = {
    "MVN": (
        "",
        lambda x: (x - x.mean((2, 3), True)) / (x.std((2, 3), correction=0, keepdim=True) + 1e-9),
    ),
    "MVN across": (
        "mvn_param { across_channels: true eps: 0.1 }",
        lambda x: (
            (x - x.mean((1, 2, 3), True)) / (x.std((1, 2, 3), correction=0, keepdim=True) + 0.1)
        ),
    ),
    "MVN mean": ("mvn_param { normalize_variance: false }", lambda x: x - x.mean((2, 3), True)),
    "SPP": ("spp_param { pyramid_height: 2 }", lambda x: pyramid(x, "MAX")),
    "SPP average": ("spp_param { pyramid_height: 2 pool: AVE }", lambda x: pyramid(x, "AVE")),
    "SPP one": ("spp_param { pyramid_height: 1 }", lambda x: x.amax((2, 3))),
    "Swish": ("swish_param { beta: 2 }", lambda x: x * torch.sigmoid(2 * x)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_of_layers_without_parameters(tmp_path: Path, case: str) -> None:
    rest, function = CASES[case]
    text = 'input: "x" input_shape { dim: 3 dim: 4 dim: 7 dim: 6 }\n' + layer(case.split()[0], rest)
    # The sum of squares of a normed sample is constant: its gradient would be 0.
    text += layer("Exp", bottom="y", top="e", name="e")
    net = bring(tmp_path, with_loss(text, "e")).net
    values = values_of(net, x=IMAGE)
    x = IMAGE.clone().requires_grad_()
    expected = function(x)
    torch.testing.assert_close(values["y"], expected)
    (wanted,) = torch.autograd.grad(expected.exp().square().sum(), [x])
    torch.testing.assert_close(gradients(net, values, {"x": IMAGE})["x"], wanted)


def test_mvn_of_a_constant_image_is_0_and_has_a_gradient(tmp_path: Path) -> None:
    text = 'input: "x" input_shape { dim: 3 dim: 4 dim: 7 dim: 6 }\n' + layer("MVN")
    net = bring(tmp_path, with_loss(text)).net
    flat = torch.ones_like(IMAGE)
    values = values_of(net, x=flat)
    assert torch.equal(values["y"], torch.zeros_like(flat))
    assert torch.isfinite(gradients(net, values, {"x": flat})["x"]).all()


def test_parameters_reindexing_and_thresholds(tmp_path: Path) -> None:
    text = 'input: "x" input_shape { dim: 3 dim: 4 }\ninput: "i" input_shape { dim: 5 }\n'
    text += layer("BatchReindex", bottom="x i", top="r", name="r")
    text += layer("Parameter", "parameter_param { shape { dim: 4 } }", bottom="", top="p", name="p")
    text += layer("Bias", bottom="r p", name="b")
    text += layer("Threshold", "threshold_param { threshold: 0.5 }", bottom="y", top="t", name="t")
    net = bring(tmp_path, text).net
    x, places = IMAGE[:, :, 0, 0], torch.tensor([2, 0, 0, 1, 2])
    values = values_of(net, x=x, i=places)
    assert net.states["p/weight"].trainable
    torch.testing.assert_close(values["y"], x[places] + values["p/weight"])
    assert torch.equal(values["t"], (values["y"] > 0.5).double())


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_endless_sequences_are_an_error_and_no_hang(tmp_path: Path, kind: str) -> None:
    text = INPUTS.replace(f"dim: {T} dim: {N}", f"dim: 900000000 dim: {N}")
    text += layer(kind, f"recurrent_param {{ {SETTINGS} }}", bottom="x cont")
    with pytest.raises(GraphError, match="900000000 steps in time"):
        bring(tmp_path, text)
