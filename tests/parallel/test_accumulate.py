"""Four micro-batches of 2 against one batch of 8: the same training."""

from __future__ import annotations

import pytest
import torch

from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import ConfigError
from purine.kinds import Net, batch_norm, inner_product, softmax_loss
from purine.parallel.accumulate import accumulate
from purine.solvers import adam, clip_by_norm, sgd
from tests.reference import following, run
from tests.solvers.small import assert_same, batches, small_net, train


def micro_feeds(number):
    data, label = list(batches(8))[number]
    fed = {}
    for part in range(4):
        fed[f"micro{part}/data"] = data[2 * part : 2 * part + 2]
        fed[f"micro{part}/label"] = label[2 * part : 2 * part + 2]
    return fed


@pytest.mark.parametrize("ratio", [0.0, 0.5])
@pytest.mark.parametrize(
    "finish",
    [
        lambda graph: sgd(graph, lr=0.3, momentum=0.9),
        lambda graph: adam(clip_by_norm(graph, 0.5), lr=0.01),
    ],
    ids=["sgd", "clip_adam"],
)
def test_micro_batches_are_one_large_batch(ratio, finish):
    large = check(finish(backward(small_net(8, ratio=ratio))))
    micro = check(finish(accumulate(backward(small_net(2, ratio=ratio)), 4)))
    expected, reports = train(large)
    found, micro_reports = train(micro, micro_feeds)
    assert_same(found, expected)
    assert micro.outputs == large.outputs
    for one, other in zip(micro_reports, reports, strict=True):
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-9, atol=1e-12)
    assert found["iteration"].item() == 20


def test_accumulating_twice_multiplies():
    twice = check(accumulate(accumulate(backward(small_net(2, ratio=0.5)), 2), 2))
    once = check(accumulate(backward(small_net(2, ratio=0.5)), 4))
    parts = {
        op.attributes["offset"] // 2: name for name, op in twice.ops.items() if op.kind == "Data"
    }
    assert sorted(parts) == [0, 1, 2, 3]
    fed = micro_feeds(0)
    inner = {}
    for part, name in parts.items():
        prefix = name.removesuffix("data")
        inner[f"{prefix}data"] = fed[f"micro{part}/data"]
        inner[f"{prefix}label"] = fed[f"micro{part}/label"]
    assert_gradients_close(run(twice, inner), run(once, fed))


def assert_gradients_close(found, expected):
    for name in ("grad/fc1/weight", "grad/fc2/bias", "loss"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12)


def test_data_ops_share_the_stream_of_the_large_batch():
    graph = accumulate(backward(small_net(2)), 3)
    read = [graph.ops[f"micro{k}/data"].attributes for k in range(3)]
    assert [(item["offset"], item["whole"]) for item in read] == [(0, 6), (2, 6), (4, 6)]


def test_statistics_pass_through_the_micro_batches():
    net = Net(dtype="float64")
    x, label = net.input("x", (4, 5)), net.input("label", (4,), "int64")
    x = batch_norm(inner_product(x, 6, name="fc"), name="bn")
    net.output(softmax_loss(inner_product(x, 3, name="out"), label, name="loss"))
    graph = backward(net.graph())
    micro = check(accumulate(graph, 2))
    parts = [(data, label) for data, label in batches(4, count=2)]
    fed = {}
    states = {}
    for number, (data, label) in enumerate(parts):
        fed |= {f"micro{number}/x": data, f"micro{number}/label": label}
        states = following(graph, run(graph, {"x": data, "label": label}, states))
    found = following(micro, run(micro, fed))
    for name in ("bn/mean", "bn/variance"):
        torch.testing.assert_close(found[name], states[name], rtol=0, atol=0)


def test_outputs_that_are_no_scalars_stay_apart():
    net = Net()
    x, label = net.input("x", (2, 3)), net.input("label", (2,), "int64")
    score = inner_product(x, 4, name="fc")
    net.output(softmax_loss(score, label, name="loss"), score)
    graph = check(accumulate(backward(net.graph()), 2))
    assert graph.outputs == ("loss", "micro0/fc", "micro1/fc")


def test_once_is_the_graph_itself():
    graph = backward(small_net())
    assert accumulate(graph, 1) is graph


def test_less_than_once_is_refused():
    with pytest.raises(ConfigError, match="times is 0"):
        accumulate(backward(small_net()), 0)


@pytest.mark.parametrize(
    "finish",
    [
        lambda graph: sgd(graph, lr=0.3, momentum=0.9),
        lambda graph: adam(clip_by_norm(graph, 0.5), lr=0.01),
    ],
    ids=["sgd", "clip_adam"],
)
def test_after_a_solver_it_is_the_same(finish):
    net = backward(small_net(2, ratio=0.5))
    expected, _ = train(check(finish(accumulate(net, 4))), micro_feeds)
    found, _ = train(check(accumulate(finish(net), 4)), micro_feeds)
    assert_same(found, expected)
