"""Synchronised batch norm: replicas normalise as one device does with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purine as pu
from purine.analysis.infer import check
from purine.data import ArraySource, DataSet
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Location
from purine.kinds import Net, batch_norm, conv, inner_product, relu, softmax_loss
from purine.parallel import replicate
from purine.parallel.accumulate import accumulate
from purine.placement.copies import insert_copies
from purine.solvers import sgd
from tests.parallel.nets import Trained, agree, float64, googlenet, images, trained

SHAPE = (3, 32, 32)

ZOO: dict[str, Callable[[int], Graph]] = {
    "resnet50": lambda batch: pu.zoo.resnet50(
        batch, image=SHAPE, classes=10, width=4, layers=(1, 1)
    ),
    "densenet121": lambda batch: pu.zoo.densenet121(
        batch, image=SHAPE, classes=10, growth=4, layers=(1, 1)
    ),
    "mobilenet_v2": lambda batch: pu.zoo.mobilenet_v2(
        batch, image=SHAPE, classes=10, multiplier=0.1
    ),
    "googlenet": lambda batch: googlenet(batch, image=SHAPE, width=4, hidden=16, batch_norm=True),
}


def step_of(net: Graph, *, lr: float = 1e-4) -> Graph:
    """A step whose rate is small: deep nets with batch norm blow rounding up by training."""
    return sgd(pu.backward(float64(net)), lr=lr, momentum=0.9)


def small(batch: int, *, frozen: bool = False) -> Graph:
    """Batch norm over the data, over images, and over vectors."""
    net = Net(dtype="float64")
    data, label = net.data((batch, 2, 5, 5))
    x = batch_norm(data, name="bn1")
    x = conv(x, 4, kernel=3, name="conv")
    x = relu(batch_norm(x, momentum=0.3, eps=1e-3, name="bn2"), name="relu")
    x = batch_norm(inner_product(x, 6, name="fc1"), name="bn3")
    net.output(softmax_loss(inner_product(x, 10, name="fc2"), label, name="loss"))
    graph = net.graph()
    if frozen:
        builder = Builder(graph)
        for name in ("bn1/weight", "bn1/bias"):
            builder.states[name] = replace(builder.states[name], trainable=False)
        graph = builder.graph()
    return graph


@pytest.mark.parametrize("name", ZOO)
def test_nets_of_the_zoo_train_as_with_the_whole_batch(name: str) -> None:
    data = images(SHAPE, 48)
    expected = trained(step_of(ZOO[name](12)), data=data)
    steps = [step_of(ZOO[name](batch)) for batch in (4, 8)]
    uneven = replicate(steps, "cpu:0-1", batch_norm="synchronised")
    agree(trained(uneven, data=data), expected)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_place_of_batch_norm(count: int, frozen: bool) -> None:
    data = images((2, 5, 5))
    expected = trained(step_of(small(24, frozen=frozen), lr=0.1), data=data)
    part = step_of(small(24 // count, frozen=frozen), lr=0.1)
    step = replicate(part, f"cpu:0-{count - 1}", batch_norm="synchronised")
    agree(trained(step, data=data), expected)
    apart = trained(replicate(part, f"cpu:0-{count - 1}"), data=data)
    assert abs(apart.losses[-1] - expected.losses[-1]) > 1e-6


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.BatchNorm1d(8, affine=False, momentum=0.4),
        nn.Tanh(),
        nn.Linear(8, 10),
    ).double()


def imported(batch: int) -> tuple[Graph, dict[str, torch.Tensor]]:
    example = torch.zeros(batch, 2, 5, 5).double(), torch.zeros(batch, dtype=torch.int64)
    made = pu.from_torch(module(), F.cross_entropy, example)
    return sgd(pu.backward(made.net), lr=0.1, momentum=0.9), dict(made.values)


def run_imported(step: Graph, values: dict[str, torch.Tensor]) -> Trained:
    with pu.Run(step, data=images((2, 5, 5)), seed=3, threads=1, share_cores=True) as run:
        run.set_states(values)
        return Trained([result.loss for result in run.steps(5)], run.states())


def test_modules_of_pytorch() -> None:
    step, values = imported(12)
    found = replicate(imported(4)[0], "cpu:0-2", batch_norm="synchronised")
    agree(run_imported(found, values), run_imported(step, values))


def in_order(step: Graph) -> Graph:
    builder = Builder(step)
    for name, op in step.ops.items():
        if op.kind == "Data":
            builder.ops[name] = replace(op, attributes={**op.attributes, "shuffle": False})
    return builder.graph()


def test_micro_batches_are_synchronised_one_by_one() -> None:
    """Micro-batch k is that of all replicas: their samples lie apart in the large batch."""
    generator = np.random.default_rng(0)
    values, labels = generator.normal(size=(60, 2, 5, 5)), generator.integers(10, size=60)
    order = np.arange(60).reshape(-1, 2, 2, 3).transpose(0, 2, 1, 3).reshape(-1)
    step = replicate(accumulate(step_of(small(3), lr=0.1), 2), "cpu:0-1", batch_norm="synchronised")
    found = trained(in_order(step), data=DataSet("plain", ArraySource(values, labels)), steps=5)
    whole = in_order(accumulate(step_of(small(6), lr=0.1), 2))
    turned = DataSet("turned", ArraySource(values[order], labels[order]))
    agree(found, trained(whole, data=turned, steps=5))


def test_steps_on_several_devices() -> None:
    """The first layers on one device, batch norm of the others on the next."""
    step = step_of(small(6), lr=0.1)
    builder = Builder(step)
    second = Location(device="cpu:1")
    for name, op in step.ops.items():
        if name.startswith(("bn2", "grad/bn2")):
            builder.ops[name] = replace(op, location=second)
            for blob in op.outputs:
                if blob:
                    builder.blobs[blob] = replace(builder.blobs[blob], location=second)
    placed = check(insert_copies(builder.graph()))
    data = images((2, 5, 5))
    found = trained(replicate(placed, "cpu:0-3", batch_norm="synchronised"), data=data)
    agree(found, trained(step_of(small(12), lr=0.1), data=data))


def test_the_same_seed_gives_the_same_bits() -> None:
    step = replicate(step_of(small(3), lr=0.1), "cpu:0-3", batch_norm="synchronised")
    data = images((2, 5, 5))
    first, second = trained(step, data=data), trained(step, data=data)
    assert first.losses == second.losses
    assert all(torch.equal(first.states[name], second.states[name]) for name in first.states)


def test_images_with_channels_last() -> None:
    data = images((2, 5, 5))
    step = replicate(step_of(small(6), lr=0.1), "cpu:0-1", batch_norm="synchronised")
    step = pu.layout(step, "channels-last")
    with pu.Run(step, data=data, seed=3, threads=1, share_cores=True) as run:
        found = Trained([result.loss for result in run.steps(5)], run.states())
    agree(found, trained(step_of(small(12), lr=0.1), data=data))


@pytest.mark.parametrize("count", [2, 3])
def test_running_statistics_are_made_once_by_devices_in_turn(count: int) -> None:
    step = replicate(step_of(small(3)), f"cpu:0-{count - 1}", batch_norm="synchronised")
    makers = [step.producers[step.states[f"bn{number}/mean"].next] for number in (1, 2, 3)]
    assert {op.kind for op in makers} == {"CombineStatistics"}
    assert {op.lane for op in makers} == {"inbound"}
    assert len({op.location for op in makers}) == count


def caffe() -> Graph:
    net = Net(dtype="float64")
    data, label = net.data((4, 3))
    states = [
        net.parameter(f"s{k}", size, pu.graph.Filler(), trainable=False)
        for k, size in enumerate(((3,), (3,), (1,)))
    ]
    x = inner_product(data, 3, name="fc1")
    y, *_ = net.apply_many(
        "CaffeBatchNorm", [x, *states], {}, name="norm", labels=("", "a", "b", "c")
    )
    net.output(softmax_loss(inner_product(y, 10, name="fc"), label, name="loss"))
    return sgd(pu.backward(net.graph()), lr=0.1)


def test_wrong_requests() -> None:
    with pytest.raises(ConfigError, match="batch_norm is 'none'\n  expected: one of replica, sync"):
        replicate(step_of(small(3)), "cpu:0-1", batch_norm="none")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="cannot be synchronised"):
        replicate(caffe(), "cpu:0-1", batch_norm="synchronised")
    one, other = step_of(small(3)), step_of(small(4))
    with pytest.raises(GraphError, match="is not in all replicas"):
        replicate([pu.recompute(one, "bn*"), other], "cpu:0-1", batch_norm="synchronised")
