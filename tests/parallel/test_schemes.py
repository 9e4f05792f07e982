"""Every scheme, alone and combined with the others, trains as one device does.

What "one device" is depends on the net and the scheme, always for the same samples:

- replicas and shards: the plain step for the whole batch. Batch norm of replicas is synchronised.
- micro-batches of a pipeline: without batch norm the plain step for the whole batch as well; with
  it `accumulate`, whose micro-batches are normalised one by one, as those of the pipeline are.
- replicas of pipelines: `accumulate` for a batch of twice the size. With batch norm micro-batch k
  is that of all replicas, whose samples lie apart in the batch, so the one device reads its samples
  in that order.
- hybrids: the plain step; with batch norm, which sees the samples of one device, plain replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.analysis.infer import with_batch
from purine.graph import Graph
from purine.parallel import hybrid, pipeline, replicate, shard
from purine.parallel.accumulate import accumulate
from purine.placement.devices import devices_of
from purine.placement.values import gather_values, shard_values
from tests.importers.models import CASES as MODULES
from tests.importers.torch.test_imported import imported_from
from tests.parallel.nets import Trained, agree, float64, googlenet, in_order, same_bits

STEPS, BATCH, MICRO, COUNT = 5, 8, 2, 32


@dataclass(frozen=True)
class Case:
    """A net of the whole batch, with values for its parameters, and its samples.

    `rate` is small where training itself would blow rounding up.
    """

    net: Callable[[], tuple[Graph, Mapping[str, Tensor]]]
    samples: Callable[[], dict[str, Tensor]]
    norm: bool = False
    rate: float = 0.02
    adam: bool = False

    def step(self, net: Graph) -> Graph:
        """A step with all that a solver may remember and clip."""
        clipped = pu.solvers.clip_by_norm(pu.backward(net), 0.5)
        if self.adam:
            return pu.solvers.adam(clipped, lr=self.rate)
        return pu.solvers.sgd(clipped, lr=self.rate, momentum=0.9, weight_decay=1e-3)


def images(*shape: int, classes: int = 10) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(COUNT, *shape, generator=generator, dtype=torch.float64)
    return {"data": values, "label": torch.randint(classes, (COUNT,), generator=generator)}


def tokens(length: int, vocabulary: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    both = torch.randint(vocabulary, (2, COUNT, length), generator=generator)
    return {"tokens": both[0], "targets": both[1]}


def of_zoo(make: Callable[[int], Graph]) -> Callable[[], tuple[Graph, Mapping[str, Tensor]]]:
    return lambda: (float64(make(BATCH)), {})


def module(name: str, *, norm: bool = False, rate: float = 0.02) -> Case:
    """A net of PyTorch."""
    case = next(case for case in MODULES if case.name == name)

    def net() -> tuple[Graph, Mapping[str, Tensor]]:
        torch.manual_seed(0)
        example = case.data(torch.Generator().manual_seed(1), BATCH)
        found = imported_from(case, case.make().double(), example)
        return found.net, found.values

    def samples() -> dict[str, Tensor]:
        values = case.data(torch.Generator().manual_seed(2), COUNT)
        return dict(zip((*case.inputs, "answer"), values, strict=True))

    return Case(net, samples, norm, rate)


CASES = {
    "lenet": Case(of_zoo(lambda b: pu.zoo.lenet(b, image=(1, 16, 16))), lambda: images(1, 16, 16)),
    "nin": Case(of_zoo(lambda b: pu.zoo.nin(b, image=(3, 4, 4))), lambda: images(3, 4, 4)),
    "googlenet": Case(
        of_zoo(
            lambda b: googlenet(
                b,
                image=(3, 32, 32),
                width=4,
                hidden=8,
                batch_norm=True,
                dropout=0.0,
                auxiliary_dropout=0.0,
            )
        ),
        lambda: images(3, 32, 32),
        norm=True,
        rate=1e-5,
    ),
    "resnet50": Case(
        of_zoo(lambda b: pu.zoo.resnet50(b, image=(3, 32, 32), classes=10, width=4, layers=(1, 1))),
        lambda: images(3, 32, 32),
        norm=True,
        rate=1e-4,
    ),
    "gpt2": Case(
        of_zoo(lambda b: pu.zoo.gpt2(b, context=6, vocabulary=11, layers=2, heads=2, width=8)),
        lambda: tokens(6, 11),
        rate=1e-3,
        adam=True,
    ),
    "torch-resnet": module("resnet", norm=True, rate=1e-3),
    "torch-gpt": module("gpt"),
    "torch-transformer": module("transformer"),
}


@cache
def made(name: str) -> tuple[Graph, Mapping[str, Tensor]]:
    return CASES[name].net()


@cache
def net_of(name: str, batch: int) -> Graph:
    return with_batch(made(name)[0], batch)


@cache
def plain(name: str, batch: int) -> Graph:
    return CASES[name].step(net_of(name, batch))


def data_of(name: str, *, turned: bool = False) -> pu.data.DataSet:
    """The samples; where they are turned, micro-batches of replicas lie side by side."""
    order = torch.arange(COUNT)
    if turned:
        order = order.view(-1, 2, MICRO, BATCH // 2).transpose(1, 2).flatten()
    samples = CASES[name].samples()
    arrays = [value[order].numpy() for value in samples.values()]
    return pu.data.DataSet(name, pu.data.ArraySource(*arrays, names=tuple(samples)))


def train(name: str, step: Graph, *, turned: bool = False) -> Trained:
    """The losses and, gathered from shards, the states of a few steps."""
    data = data_of(name, turned=turned)
    with pu.Run(in_order(step), data=data, seed=3, threads=1, share_cores=True) as run:
        run.set_states(shard_values(step, made(name)[1]))
        losses = [result.loss for result in run.steps(STEPS)]
        return Trained(losses, gather_values(step, run.states()))


@cache
def serial(name: str, kind: str) -> Trained:
    """What one device gives; see the top of this file."""
    norm = CASES[name].norm
    if kind == "twice":
        return train(name, accumulate(plain(name, BATCH), MICRO), turned=norm)
    if norm and kind == "micro":
        return train(name, accumulate(plain(name, BATCH // MICRO), MICRO))
    if norm and kind == "apart":
        return train(name, replicate(plain(name, BATCH // 2), "cpu:0-1"))
    return serial(name, "whole") if kind != "whole" else train(name, plain(name, BATCH))


def over(step: Graph, count: int) -> Graph:
    return replicate(step, f"cpu:0-{count - 1}", batch_norm="synchronised")


def staged(step: Graph, count: int) -> Graph:
    return pipeline(step, devices=f"cpu:0-{count - 1}", micro=MICRO)


@cache
def cut(name: str, batch: int) -> Graph:
    return CASES[name].step(shard(net_of(name, batch), "cpu:0-1"))


SCHEMES: dict[str, tuple[int, str, Callable[[str], Graph]]] = {
    "data": (2, "whole", lambda name: over(plain(name, 4), 2)),
    "model": (2, "whole", lambda name: cut(name, 8)),
    "pipeline": (2, "micro", lambda name: staged(plain(name, 4), 2)),
    "data x pipeline": (4, "twice", lambda name: over(staged(plain(name, 4), 2), 4)),
    "data x model": (4, "whole", lambda name: over(cut(name, 4), 4)),
    "pipeline x model": (4, "micro", lambda name: staged(cut(name, 4), 4)),
    "data x pipeline x model": (8, "twice", lambda name: over(staged(cut(name, 4), 4), 8)),
}
"""Schemes with their number of devices, what they are compared with, and how they are made."""


@cache
def found(name: str, scheme: str) -> tuple[Graph, Trained]:
    """The step of a scheme, and what it gives."""
    step = SCHEMES[scheme][2](name)
    return step, train(name, step)


@cache
def mixed(name: str) -> tuple[Graph, Trained]:
    """The step of a hybrid, and what it gives."""
    step = CASES[name].step(hybrid(net_of(name, BATCH // 2), "cpu:0-1"))
    return step, train(name, step)


PAIRS = [(name, scheme) for name in CASES for scheme in SCHEMES]
HYBRIDS = ["lenet", "googlenet", "resnet50", "torch-resnet"]


@pytest.mark.parametrize(("name", "scheme"), PAIRS)
def test_a_scheme_trains_as_one_device(name: str, scheme: str) -> None:
    count, kind, _ = SCHEMES[scheme]
    step, trained = found(name, scheme)
    assert len(devices_of(step)) == count
    agree(trained, serial(name, kind))


@pytest.mark.parametrize(("name", "scheme"), PAIRS)
def test_the_same_bits_from_run_to_run(name: str, scheme: str) -> None:
    step, trained = found(name, scheme)
    same_bits(train(name, step), trained)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_trains_as_one_device(name: str) -> None:
    agree(mixed(name)[1], serial(name, "apart"))


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_same_bits_from_run_to_run_of_a_hybrid(name: str) -> None:
    step, trained = mixed(name)
    same_bits(train(name, step), trained)
