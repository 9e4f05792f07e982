"""The zoo: sizes as published, and the numbers of plain PyTorch modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

import purine as pu
from purine.data.synthetic import synthetic_images, synthetic_tokens
from purine.graph import Builder, Graph
from purine.job import Job, make_plan
from tests.zoo import modules

PARAMETERS = {
    "alexnet": 60_965_224,
    "densenet121": 7_978_856,
    "googlenet": 13_378_280,
    "gpt2": 124_439_808,
    "lenet": 431_080,
    "mlp": 235_146,
    "mobilenet_v2": 3_504_872,
    "nin": 966_986,
    "resnet50": 25_557_032,
    "unet": 31_037_698,
    "vgg16": 138_357_544,
    "vit": 86_567_656,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels this small only lose time with more threads, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def parameters(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The parameters in the order of the net, with their shapes."""
    shapes = {name: graph.blobs[name].shape for name in graph.states}
    return {n: shape or () for n, shape in shapes.items() if graph.states[n].trainable}


def count(graph: Graph) -> int:
    return sum(math.prod(shape) for shape in parameters(graph).values())


def test_nets_are_sorted_and_all_counted() -> None:
    assert list(pu.zoo.NETS) == sorted(pu.zoo.NETS) == list(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_full_size_is_the_published_one(name: str) -> None:
    net = pu.check(pu.zoo.NETS[name](batch=2))
    assert count(net) == PARAMETERS[name]
    assert {"loss", "accuracy"} <= set(net.outputs)


def test_googlenet_without_auxiliary_losses() -> None:
    net = pu.zoo.googlenet(2, auxiliary=False)
    assert count(net) == 6_998_552
    assert net.outputs == ("loss", "accuracy")


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "gpt2", "mobilenet_v2", "nin", "vgg16"])
def test_dropout_can_be_left_out(name: str) -> None:
    off = {"dropout": 0.0} | ({"auxiliary_dropout": 0.0} if name == "googlenet" else {})
    kinds = [
        {op.kind for op in pu.zoo.NETS[name](2, **options).ops.values()} for options in ({}, off)
    ]
    assert kinds[0] - kinds[1] == {"Dropout"}


def test_gpt2_has_one_table_for_tokens_and_scores() -> None:
    net = pu.zoo.gpt2(2, context=8, vocabulary=11, layers=1, heads=2, width=8)
    assert [op.kind for op in net.consumers["embedding/weight"]] == ["Embedding", "InnerProduct"]


@pytest.mark.parametrize(
    ("name", "data", "shape"),
    [
        ("gpt2", "synthetic-tokens:length=8,vocabulary=20,count=10", (4, 8, 20)),
        ("resnet50", "synthetic:image=3x64x32,classes=6,count=10", (4, 6)),
        ("unet", "synthetic-masks:image=1x32x16,classes=3,count=10", (4, 3, 32, 16)),
    ],
)
def test_jobs_build_nets_for_their_data(name: str, data: str, shape: tuple[int, ...]) -> None:
    plan = make_plan(Job(net=name, data=data, batch=4))
    loss = plan.net.producers["loss"]
    assert plan.net.blobs[loss.inputs[0]].shape == shape
    assert plan.test is not None


@dataclass(frozen=True)
class Pair:
    """A net at a small size and the module that should do the same."""

    net: Callable[..., Graph]
    module: Callable[[], nn.Module]
    image: tuple[int, int, int] = (3, 64, 64)


def _googlenet(*, auxiliary: bool, norm: bool) -> Pair:
    net = partial(
        pu.zoo.googlenet,
        width=8,
        hidden=12,
        auxiliary=auxiliary,
        batch_norm=norm,
        dropout=0.0,
        auxiliary_dropout=0.0,
    )
    module = partial(modules.GoogLeNet, 8, 12, 5, auxiliary=auxiliary, norm=norm, side=1)
    return Pair(net, module)


PAIRS = {
    "alexnet": Pair(
        partial(pu.zoo.alexnet, width=6, hidden=12, dropout=0.0),
        partial(modules.AlexNet, 6, 12, 5, 16),
        (3, 67, 67),
    ),
    "densenet": Pair(
        partial(pu.zoo.densenet121, growth=4, layers=(2, 3, 2)),
        partial(modules.DenseNet, 4, (2, 3, 2), 5),
        (3, 32, 32),
    ),
    "googlenet": _googlenet(auxiliary=True, norm=False),
    "googlenet with batch norm": _googlenet(auxiliary=True, norm=True),
    "googlenet without auxiliary losses": _googlenet(auxiliary=False, norm=False),
    "mobilenet_v2": Pair(
        partial(pu.zoo.mobilenet_v2, multiplier=0.25, dropout=0.0),
        partial(modules.MobileNetV2, 5),
    ),
    "resnet": Pair(
        partial(pu.zoo.resnet50, width=4, layers=(2, 2, 1)),
        partial(modules.ResNet, 4, (2, 2, 1), 5),
        (3, 32, 32),
    ),
    "vgg": Pair(
        partial(pu.zoo.vgg16, width=4, hidden=12, dropout=0.0),
        partial(modules.VGG, 4, 12, 5, 32),
        (3, 32, 32),
    ),
    "vit": Pair(
        partial(pu.zoo.vit, patch=8, layers=2, heads=2, width=8, hidden=16),
        partial(modules.ViT, 16, 5, patch=8, layers=2, heads=2, width=8),
        (3, 32, 32),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_images_agree_with_plain_pytorch(name: str) -> None:
    pair = PAIRS[name]
    data = synthetic_images(pair.image, classes=5, count=40)
    compare(pair.net(4, image=pair.image, classes=5), pair.module(), data)


def test_unet_agrees_with_plain_pytorch() -> None:
    net = pu.zoo.unet(2, image=(3, 16, 24), classes=3, width=4, layers=2)
    data = pu.data.synthetic_masks((3, 16, 24), classes=3, count=20)
    compare(net, modules.UNet(4, 2, 3), data)


def test_gpt2_agrees_with_plain_pytorch() -> None:
    net = pu.zoo.gpt2(3, context=7, vocabulary=11, layers=2, heads=2, width=8, dropout=0.0)
    compare(net, modules.GPT2(7, 11, 2, 2, 8), synthetic_tokens(7, vocabulary=11, count=30))


def compare(net: Graph, module: nn.Module, data: pu.data.DataSet) -> None:
    """Five steps of the net and of the module, from the same values and on the same batches."""
    net = pu.data.prepare(in_double(net), data.train)
    batch = next(op for op in net.ops.values() if op.kind == "Data").outputs
    fed = [name.removesuffix("/raw") for name in batch]
    step = pu.solvers.sgd(pu.backward(net), lr=0.02, momentum=0.9, weight_decay=1e-3)
    step = replace(step, outputs=(*step.outputs, *fed))
    module.double().train()
    averages = [name for name in net.states if name.endswith(("/mean", "/variance"))]
    running = [b for n, b in module.named_buffers() if n.endswith(("running_mean", "running_var"))]
    with pu.Run(step, data=data, seed=1, threads=1) as run:
        start = spread(run.states(), list(parameters(net)))
        run.set_states(start)
        with torch.no_grad():
            for name, value in zip(parameters(net), module.parameters(), strict=True):
                value.copy_(start[name])
        optimizer = torch.optim.SGD(module.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
        for result in run.steps(5):
            losses = module(*(result.outputs[name] for name in fed))
            optimizer.zero_grad()
            sum(weight * value for weight, value in losses.values()).backward()
            optimizer.step()
            for name, (_, value) in losses.items():
                assert result[name] == pytest.approx(value.item(), rel=1e-8), result.iteration
        final = run.states()
    assert set(losses) | {"accuracy"} == set(net.outputs)
    for name, value in zip(parameters(net), module.parameters(), strict=True):
        assert not torch.equal(final[name], start[name]), name
        assert distance(final[name], value.detach()) < 1e-8, name
    for name, value in zip(averages, running, strict=True):
        assert distance(final[name], value) < 1e-8, name


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The greatest difference, relative to the greatest value."""
    return float((found - expected).abs().max() / expected.abs().max())


def spread(states: dict[str, torch.Tensor], names: list[str]) -> dict[str, torch.Tensor]:
    """The first values with noise added, so that no two channels are alike and none is 0."""
    noise = torch.Generator().manual_seed(3)
    return {
        name: states[name] + 0.05 * torch.randn(states[name].shape, generator=noise).double()
        for name in names
    }


def in_double(net: Graph) -> Graph:
    """The net with float64 in the place of float32."""
    b = Builder(net)
    for name, blob in net.blobs.items():
        if blob.dtype == "float32":
            b.blobs[name] = replace(blob, dtype="float64")
    return b.graph()
