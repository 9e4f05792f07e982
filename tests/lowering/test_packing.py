"""Filters that several convolutions read are packed once, and the numbers stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.analysis.infer import check, size_in_bytes
from purine.data import ArraySource, DataSet
from purine.graph import NOTHING, Attribute, Builder, Graph, Op
from purine.job.placing import placement
from purine.kinds import Net, conv, inner_product, relu, softmax_loss
from purine.kinds.packed_filters import PACKED, TURNED, can_pack, pack, with_packed
from purine.lowering import Options, lower
from purine.lowering.packing import PACK, with_packed_filters
from purine.parallel import pipeline, times_of_step
from purine.parallel.accumulate import accumulate
from purine.registry.lookup import lookup
from purine.runtime.program import _in_place_of

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch has no library for convolutions here"
)

SIDE = 48
IMAGES = torch.randn(24, 16, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
DATA = DataSet("noise", ArraySource(IMAGES.numpy(), (torch.arange(24) % 5).numpy()))


def step_of(*, layout: str = "channels-last", dtype: str = "float32") -> Graph:
    """A step of two images, with convolutions of several forms."""
    net = Net(dtype=dtype)
    x, label = net.data((2, 16, SIDE, SIDE))
    x = relu(conv(x, 32, kernel=3, pad=1, name="conv1"), name="relu1")
    x = relu(conv(x, 48, kernel=1, bias=False, name="conv2"), name="relu2")
    x = relu(conv(x, 16, kernel=5, pad=2, name="conv3"), name="relu3")
    x = conv(x, 16, kernel=3, stride=2, pad=1, name="conv4")
    net.output(softmax_loss(inner_product(x, 5, name="fc"), label, name="loss"))
    step = pu.solvers.sgd(pu.backward(net.graph()), lr=0.01, momentum=0.9)
    return pu.layout(step, layout)


def packs_of(graph: Graph) -> dict[str, str]:
    """The ops that pack, and their devices."""
    found = with_packed_filters(graph)
    packs = {op.name: op.location.device for op in found.graph.ops.values() if op.kind == PACK}
    assert packs.keys() == found.kernels.keys()
    return packs


def test_micro_batches_share_what_is_packed() -> None:
    graph = accumulate(step_of(), 3)
    assert packs_of(graph).keys() == {
        *(f"conv{number}/weight/packed" for number in (1, 2, 3, 4)),
        *(f"conv{number}/weight/turned" for number in (2, 3)),
    }  # nothing asks for the gradient of images, and the stride of conv4 leaves pixels out
    found = with_packed_filters(graph).graph
    for micro in range(3):
        assert "conv2/weight/packed" in found.ops[f"micro{micro}/conv2"].inputs
        backward = found.producers[f"micro{micro}/grad/relu1"]
        assert "conv2/weight/turned" in backward.inputs


def test_each_stage_packs_its_own_and_jobs_predict_the_memory() -> None:
    graph = pipeline(step_of(), devices="cpu:0-1", micro=4, cut=["conv3"])
    places = packs_of(graph)
    assert {places[f"conv{k}/weight/packed"] for k in (1, 2)} == {"cpu:0"}
    assert {places[f"conv{k}/weight/packed"] for k in (3, 4)} == {"cpu:1"}
    packed = lower(graph, after="packing")
    before, after = lower(graph, after="shares").peak_memory(), packed.peak_memory()
    for location, peak in after.items():
        mine = [packed.graph.blobs[n] for n, device in places.items() if device == location.device]
        assert peak == before[location] + sum(map(size_in_bytes, mine))
    assert placement(graph).peaks == lower(graph, Options(segments=True)).peak_memory()


@pytest.mark.parametrize(
    "graph",
    [
        lambda: step_of(),
        lambda: accumulate(step_of(), 2),
        lambda: accumulate(step_of(layout="contiguous"), 4),
        lambda: accumulate(step_of(dtype="float64"), 4),
        lambda: pu.to_device(accumulate(step_of(), 4), "cuda:0"),
    ],
    ids=["one reader", "two readers", "channels first", "float64", "a GPU"],
)
def test_others_are_left_alone(graph: Callable[[], Graph]) -> None:
    assert packs_of(graph()) == {}


def test_without_the_library_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packs_of(accumulate(step_of(), 4)) == {}


def trained(graph: Graph, **settings: bool) -> tuple[list[float], dict[str, Tensor]]:
    with pu.Run(graph, data=DATA, seed=3, threads=1, share_cores=True, **settings) as run:
        return [result.loss for result in run.steps(4)], run.states()


def test_a_net_learns_what_it_learns_without(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = pipeline(step_of(), devices="cpu:0-1", micro=4)
    losses, states = trained(graph)
    monkeypatch.setattr("purine.lowering.packing._LEAST", 1000)
    expected, values = trained(graph)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in values.items():
        torch.testing.assert_close(states[name], value, rtol=1e-4, atol=1e-5)


def test_segments_and_single_ops_have_the_same_bits() -> None:
    graph = pipeline(step_of(), devices="cpu:0-1", micro=4)
    losses, states = trained(graph)
    for again in (trained(graph), trained(graph, record=True)):
        assert again[0] == losses
        for name, value in states.items():
            assert torch.equal(again[1][name], value), name


def test_times_of_a_trace_are_of_the_graph_s_own_ops() -> None:
    step = step_of()
    graph = pipeline(step, devices="cpu:0-1", micro=4)
    with pu.Run(graph, data=DATA, threads=1, share_cores=True, record=True) as run:
        list(run.steps(2))
        trace = run.trace
    assert any(event.kind == PACK for event in trace.events)
    assert trace.times().keys() <= graph.ops.keys()
    assert times_of_step(graph, trace.times()).keys() <= step.ops.keys()


def settings_of(stride: tuple[int, int], padding: tuple[int, int]) -> dict[str, Attribute]:
    """The attributes that all convolutions have."""
    plain = {"dilation": (1, 1), "transposed": False, "output_padding": (0, 0), "groups": 1}
    return {"stride": stride, "padding": padding, **plain}


def three_times(shape: tuple[int, ...], filters: tuple[int, ...], *, view: bool = False) -> Graph:
    """Three convolutions with the same filters and bias; the bias may be a view of one number."""
    builder = Builder()
    builder.state(builder.blob("weight", filters, layout="channels-last"))
    builder.state(builder.blob("bias", (1,) if view else filters[:1]))
    bias = "bias"
    if view:
        bias = builder.blob("spread", filters[:1])
        builder.add(Op("spread", "aten.expand", ("bias",), (bias,), {"size": filters[:1]}))
    settings = settings_of((1, 1), (0, 0))
    for number in range(3):
        x, y = builder.blob(f"x{number}", shape), builder.blob(f"y{number}", None)
        inputs = (x, "weight", bias)
        builder.add(Op(y, "aten.convolution", inputs, (y,), settings))
    return builder.graph()


def test_what_the_library_would_get_wrong_is_not_packed() -> None:
    """One filter as large as its images; one channel, without a layout; a bias that is a view."""
    assert packs_of(check(three_times((8, 64, 7, 7), (2, 64, 7, 7)))) != {}
    for graph in (
        three_times((8, 64, 7, 7), (1, 64, 7, 7)),
        three_times((8, 1, 60, 60), (5, 1, 1, 1)),
        three_times((8, 64, 7, 7), (2, 64, 7, 7), view=True),
    ):
        assert packs_of(check(graph)) == {}


def test_filters_that_are_images_too_are_not_packed() -> None:
    graph = single((3, 3), (1, 1), (1, 1), bias=True)
    blobs = {**graph.blobs, "weight": replace(graph.blobs["weight"], shape=(64, 64, 9, 9))}
    forward = graph.ops["forward"]
    assert can_pack(forward, blobs) is not None
    assert can_pack(replace(forward, inputs=("weight", "weight", "bias")), blobs) is None


def single(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], *, bias: bool
) -> Graph:
    builder = Builder()
    shape = torch.conv2d(
        torch.empty(2, 16, 36, 40), torch.empty(24, 16, *kernel), None, stride, padding
    ).shape
    x, y = builder.blob("x", (2, 16, 36, 40)), builder.blob("y", tuple(shape))
    weight = builder.blob("weight", (24, 16, *kernel), layout="channels-last")
    more = [builder.blob("bias", (24,))] if bias else []
    settings = settings_of(stride, padding)
    builder.blob("grad/x", (2, 16, 36, 40))
    builder.blob("grad/y", tuple(shape))
    absent = {} if bias else {"bias": None}
    builder.add(Op("forward", "aten.convolution", (x, weight, *more), (y,), settings | absent))
    masked = settings | {"bias_sizes": None, "output_mask": (True, False, False)}
    kind, outputs = "aten.convolution_backward", ("grad/x", NOTHING, NOTHING)
    builder.add(Op("backward", kind, ("grad/y", x, weight), outputs, masked))
    return builder.graph()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize(
    ("kernel", "padding"),
    [((1, 1), (0, 0)), ((3, 3), (1, 1)), ((5, 3), (2, 0)), ((2, 2), (0, 1)), ((1, 1), (1, 1))],
)
def test_numbers_are_those_of_the_kernel(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], bias: bool
) -> None:
    graph = single(kernel, stride, padding, bias=bias)
    generator = torch.Generator().manual_seed(0)
    form = torch.channels_last

    def packed(op: Op) -> Tensor:
        found = can_pack(op, graph.blobs)
        assert found is not None
        assert found[0] == "weight"
        blobs = {**graph.blobs, "weight": replace(graph.blobs["weight"], layout=found[1])}
        values = dict(given)
        values["weight"] = pack(op, graph.blobs, given["weight"])
        kernel = _in_place_of(op, with_packed(op, blobs))
        made = kernel(*(values[name] for name in op.inputs))
        return made if isinstance(made, Tensor) else made[0]

    given = {
        name: torch.randn(blob.shape or (), generator=generator).to(
            memory_format=form if len(blob.shape or ()) == 4 else torch.contiguous_format
        )
        for name, blob in graph.blobs.items()
    }
    forward, backward = graph.ops["forward"], graph.ops["backward"]
    expected = lookup(forward).bind(forward)(*(given[name] for name in forward.inputs))
    torch.testing.assert_close(packed(forward), expected, rtol=1e-4, atol=1e-4)
    assert packed(forward).is_contiguous(memory_format=form)
    found = can_pack(backward, graph.blobs)
    if stride == (1, 1) and all(p < k for p, k in zip(padding, kernel, strict=True)):
        assert found == ("weight", TURNED)
        images = lookup(backward).bind(backward)(*(given[name] for name in backward.inputs))[0]
        torch.testing.assert_close(packed(backward), images, rtol=1e-4, atol=1e-4)
    else:
        assert found is None


@pytest.mark.parametrize(
    "changed", [{"groups": 2}, {"dilation": (2, 2)}, {"transposed": True}], ids=str
)
def test_forms_that_are_not_packed(changed: dict[str, object]) -> None:
    graph = single((3, 3), (1, 1), (1, 1), bias=True)
    for op in graph.ops.values():
        assert can_pack(op, graph.blobs) is not None
        other = replace(op, attributes={**op.attributes, **changed})
        assert can_pack(other, graph.blobs) is None
    small = {**graph.blobs, "x": replace(graph.blobs["x"], shape=(1, 16, 36, 32))}
    assert can_pack(graph.ops["forward"], small) is None
    assert can_pack(graph.ops["forward"], graph.blobs) == ("weight", PACKED)
    both = replace(graph.ops["backward"], outputs=("grad/x", "grad/weight", NOTHING))
    assert can_pack(both, graph.blobs) is None
