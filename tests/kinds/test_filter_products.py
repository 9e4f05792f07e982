"""Gradients of filters as products: the numbers of ATen's kernel, where the rule says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.data import ArraySource, DataSet
from purine.graph import CHANNELS_LAST, NOTHING, Attribute, Blob, Graph, Location, Op
from purine.kinds import Net, conv, inner_product, relu, softmax_loss
from purine.kinds import filter_products as _filter_products
from purine.kinds.filter_products import in_parts
from purine.lowering.segments import pays
from purine.registry.lookup import lookup
from purine.runtime.program import _of_parts

LAYOUTS = ("", CHANNELS_LAST)
FORMS = {"": torch.contiguous_format, CHANNELS_LAST: torch.channels_last}
SETTINGS: Mapping[str, Attribute] = {
    "bias_sizes": None,
    "stride": (1, 1),
    "padding": (1, 1),
    "dilation": (1, 1),
    "transposed": False,
    "output_padding": (0, 0),
    "groups": 1,
    "output_mask": (False, True, False),
}


def gradient_of(
    images: tuple[int, ...],
    filters: tuple[int, ...],
    *,
    layout: str = CHANNELS_LAST,
    dtype: str = "float32",
    device: str = "cpu:0",
    bias: bool = False,
    **settings: Attribute,
) -> tuple[Op, dict[str, Blob]]:
    """The gradient of filters over images, and the blobs that it reads."""
    given = {**SETTINGS, **settings, "output_mask": (False, True, bias)}
    given["bias_sizes"] = (filters[0],) if bias else None
    place = Location(device=device)
    outputs = (NOTHING, "grad/weight", "grad/bias" if bias else NOTHING)
    op = Op("op", "aten.convolution_backward", ("y", "x", "weight"), outputs, given, place)
    keys = ("stride", "padding", "dilation", "groups")
    stride, padding, dilation, groups = (given[key] for key in keys)
    shape = torch.conv2d(
        torch.empty(images, device="meta"),
        torch.empty(filters, device="meta"),
        None,
        list(stride),  # type: ignore[arg-type]
        list(padding),  # type: ignore[arg-type]
        list(dilation),  # type: ignore[arg-type]
        groups,  # type: ignore[arg-type]
    ).shape
    blobs = {
        "y": Blob("y", tuple(shape), dtype, place),
        "x": Blob("x", images, dtype, place),
        "weight": Blob("weight", filters, dtype, place, layout=layout),
    }
    return op, blobs


def values_of(blobs: Mapping[str, Blob]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    form = FORMS[blobs["weight"].layout]
    return [
        torch.randn(blob.shape or (), dtype=torch.float64, generator=generator).to(
            memory_format=form
        )
        for blob in blobs.values()
    ]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of small matrices too, and of numbers with which rounding does not matter."""
    always = (_filter_products.Quicker(1 << 30, 1, 1, (1, 3, 5)),)
    monkeypatch.setattr(_filter_products, "_QUICKER", dict.fromkeys(LAYOUTS, always))
    monkeypatch.setattr(_filter_products, "_BLOCK", 1)
    monkeypatch.setattr(_filter_products, "_DTYPES", ("float64",))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_numbers_and_layout_are_those_of_the_kernel(layout: str, side: int, bias: bool) -> None:
    for stride, padding in product([(1, 1), (2, 2), (2, 3)], [(0, 0), (1, 1), (2, 1)]):
        if side == 1 and stride == (1, 1):
            continue
        op, blobs = gradient_of(
            (2, 5, 9, 8),
            (4, 5, side, side),
            layout=layout,
            dtype="float64",
            bias=bias,
            stride=stride,
            padding=padding,
        )
        parts = in_parts(op, blobs)
        assert len(parts) > 1
        values = values_of(blobs)
        expected = lookup(op).bind(op)(*values)
        found = _of_parts(op, parts)(*values)
        for place in (1, 2) if bias else (1,):
            torch.testing.assert_close(found[place], expected[place], rtol=0, atol=1e-12)
        assert found[1].is_contiguous(memory_format=FORMS[layout])


def test_few_pixels_under_many_filters_are_for_products() -> None:
    last, first = CHANNELS_LAST, ""
    assert takes_product((2, 192, 7, 7), (384, 192, 3, 3), layout=last)
    assert takes_product((2, 512, 7, 7), (512, 512, 3, 3), layout=last)
    assert takes_product((2, 512, 7, 7), (512, 512, 3, 3), layout=first)
    assert takes_product((2, 1024, 14, 14), (2048, 1024, 1, 1), stride=(2, 2), padding=(0, 0))


OTHERS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]] = {
    "a large batch": ((32, 192, 7, 7), (384, 192, 3, 3), {}),
    "large images": ((2, 512, 28, 28), (512, 512, 3, 3), {}),
    "one image": ((1, 512, 7, 7), (512, 512, 3, 3), {}),
    "few filters": ((2, 512, 7, 7), (64, 512, 3, 3), {}),
    "few channels": ((2, 32, 7, 7), (512, 32, 3, 3), {}),
    "pixels one by one": ((2, 832, 7, 7), (384, 832, 1, 1), {"padding": (0, 0)}),
    "groups": ((2, 512, 7, 7), (512, 256, 3, 3), {"groups": 2}),
    "dilation": ((2, 512, 7, 7), (512, 512, 3, 3), {"dilation": (2, 1)}),
    "transposed": ((2, 512, 7, 7), (512, 512, 3, 3), {"transposed": True}),
    "channels that fill no block": ((2, 300, 7, 7), (512, 300, 3, 3), {}),
    "not square": ((2, 512, 7, 7), (512, 512, 3, 1), {}),
    "low precision": ((2, 512, 7, 7), (512, 512, 3, 3), {"dtype": "bfloat16"}),
    "high precision": ((2, 512, 7, 7), (512, 512, 3, 3), {"dtype": "float64"}),
    "a GPU": ((2, 512, 7, 7), (512, 512, 3, 3), {"device": "cuda:0"}),
}


@pytest.mark.parametrize(("images", "filters", "settings"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_others_are_left_to_the_kernel(
    images: tuple[int, ...], filters: tuple[int, ...], settings: dict[str, object], layout: str
) -> None:
    assert not takes_product(images, filters, layout=layout, **settings)


def takes_product(images: tuple[int, ...], filters: tuple[int, ...], **settings: object) -> bool:
    op, blobs = gradient_of(images, filters, **settings)  # type: ignore[arg-type]
    return in_parts(op, blobs) != (op,)


def test_the_gradient_of_images_is_left_to_the_kernel() -> None:
    op, blobs = gradient_of((2, 512, 7, 7), (512, 512, 3, 3))
    op = replace(op, outputs=("grad/x", NOTHING, NOTHING))
    assert in_parts(op, blobs) == (op,)


IMAGES = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()
DATA = DataSet("noise", ArraySource(IMAGES.numpy(), (torch.arange(16) % 5).numpy()))


def step_of(layout: str, *, batch: int = 2) -> Graph:
    """A step in float64 with convolutions of several forms."""
    net = Net(dtype="float64")
    x, label = net.data((batch, 3, 16, 16))
    x = conv(x, 8, kernel=3, stride=2, pad=1, name="conv1")
    x = relu(conv(x, 8, kernel=3, pad=1, bias=False, name="conv2"), name="relu2")
    x = conv(x, 6, kernel=1, stride=2, name="conv3")
    net.output(softmax_loss(inner_product(x, 5, name="fc"), label, name="loss"))
    step = pu.solvers.sgd(pu.backward(net.graph()), lr=0.1, momentum=0.9)
    return pu.layout(step, layout or "contiguous")


def trained(graph: Graph, **settings: bool) -> tuple[list[float], dict[str, Tensor]]:
    with pu.Run(graph, data=DATA, seed=3, share_cores=True, **settings) as run:
        return [result.loss for result in run.steps(4)], run.states()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_net_learns_what_it_learned_before(
    layout: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(layout)
    losses, states = trained(step)
    request.getfixturevalue("everywhere")
    made = count_products(monkeypatch)
    found, values = trained(step)
    assert made == {f"grad/conv{k}/convolution_backward" for k in (1, 2, 3)}
    assert found == pytest.approx(losses, rel=0, abs=1e-10)
    for name, value in states.items():
        torch.testing.assert_close(values[name], value, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_and_fused_ops_have_the_same_bits(layout: str) -> None:
    """A recorded run dispatches op by op, the other one in segments."""
    step = step_of(layout)
    assert pays(step)
    losses, states = trained(step, record=True)
    for found, values in (trained(step), trained(pu.fuse(step), compiled=False)):
        assert found == losses
        for name, value in states.items():
            assert torch.equal(values[name], value), name


@pytest.mark.usefixtures("everywhere")
def test_a_pipeline_agrees_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_products(monkeypatch)
    losses, states = trained(step_of("", batch=4))
    stages = pu.parallel.pipeline(
        step_of(""), devices=["cpu:0", "cpu:1"], micro=2, schedule="zero-bubble"
    )
    found, values = trained(stages)
    assert any(name.startswith("micro1/") for name in made)
    assert found == pytest.approx(losses, rel=0, abs=1e-10)
    for name, value in states.items():
        torch.testing.assert_close(values[name], value, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("everywhere")
def test_a_trace_has_the_op_of_the_graph() -> None:
    step = step_of("")
    with pu.Run(step, data=DATA, record=True) as run:
        list(run.steps(1))
        kinds = {event.op: event.kind for event in run.trace.events}
    assert kinds["grad/conv2/convolution_backward"] == "aten.convolution_backward"
    assert kinds.keys() == step.ops.keys()


def count_products(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the ops that became products, filled while graphs are run."""
    made: set[str] = set()
    ops = _filter_products._Product.ops

    def noting(self: _filter_products._Product) -> tuple[Op, ...]:
        made.add(self.op.name)
        return ops(self)

    monkeypatch.setattr(_filter_products._Product, "ops", noting)
    return made
