"""Large updates in shares give the bits of updates by an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

import purine as pu
from purine.graph import Builder, Graph, Location, Op
from purine.lowering import shares
from purine.lowering.aliases import without_aliases
from purine.lowering.shares import PRODUCT, SHARE, SHARED, in_shares
from purine.parallel import replicate
from purine.registry.lookup import lookup
from tests.parallel.nets import Trained, float64, images, same_bits, trained

SOLVERS: dict[str, Callable[[Graph], Graph]] = {
    "adadelta": partial(pu.solvers.adadelta, lr=0.1),
    "adagrad": partial(pu.solvers.adagrad, lr=0.01),
    "adam": partial(pu.solvers.adam, lr=0.001, weight_decay=1e-3),
    "momentum": partial(pu.solvers.sgd, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": partial(pu.solvers.sgd, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": partial(pu.solvers.rmsprop, lr=0.001),
    "sgd": partial(pu.solvers.sgd, lr=0.05),
}


def steps_of(solver: str = "momentum", batch: int = 6) -> Graph:
    return SOLVERS[solver](pu.backward(float64(pu.zoo.lenet(batch=batch))))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parameters are divided too, and into several pieces."""
    monkeypatch.setattr(shares, "_GRAIN", 1 << 8)
    monkeypatch.setattr(shares, "_PIECE", 1 << 10)
    monkeypatch.setattr(shares, "_LARGE", 0)


def kinds_of(graph: Graph, kind: str) -> list[Op]:
    return [op for op in graph.ops.values() if op.kind == kind]


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_shares_give_the_bits_of_an_owner(solver: str, request: pytest.FixtureRequest) -> None:
    step = replicate(steps_of(solver), "cpu:0-2", bucket=0)
    expected = trained(step)
    request.getfixturevalue("small")
    same_bits(trained(step), expected)


def test_replicas_of_different_sizes(request: pytest.FixtureRequest) -> None:
    step = replicate([steps_of(batch=4), steps_of(batch=8)], "cpu:0-1", bucket=0)
    expected = trained(step)
    request.getfixturevalue("small")
    same_bits(trained(step), expected)


def test_filters_in_another_order_than_their_gradients(request: pytest.FixtureRequest) -> None:
    step = pu.layout(replicate(steps_of(), "cpu:0-1", bucket=0), "channels-last")

    def run() -> Trained:
        with pu.Run(step, data=images(), seed=3, threads=1, share_cores=True) as run:
            return Trained([result.loss for result in run.steps(5)], run.states())

    expected = run()
    request.getfixturevalue("small")
    same_bits(run(), expected)


def test_every_replica_has_a_share_and_the_state_stays_whole() -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-2", bucket=0)).graph
    graph = in_shares(step, large=1 << 20).graph
    found = kinds_of(graph, SHARE)
    assert [op.location.device for op in found] == ["cpu:0", "cpu:1", "cpu:2"]
    (end,) = kinds_of(graph, SHARED)
    assert end.outputs == step.ops[end.name].outputs
    assert graph.states == step.states
    assert len(kinds_of(graph, PRODUCT)) == 3


def test_shares_come_after_all_other_readers_of_the_weight() -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-1", bucket=0)).graph
    graph = in_shares(step, large=0).graph
    place = {name: number for number, name in enumerate(graph.order)}
    assert kinds_of(graph, SHARE)
    for share in kinds_of(graph, SHARE):
        others = [op for op in graph.consumers[share.inputs[0]] if op.kind not in (SHARE, SHARED)]
        assert others
        for reader in others:
            assert share.name in graph.successors[reader.name]
            assert place[reader.name] < place[share.name]


def test_small_parameters_have_an_owner() -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-1")).graph
    assert in_shares(step).graph is step


def test_one_device_has_no_shares() -> None:
    step = pu.check(pu.parallel.accumulate(steps_of(), 2))
    assert in_shares(step, large=0).graph is step


@pytest.mark.parametrize("asked", ["weight/next", "grad/weight", "weight"])
def test_what_the_host_asks_for_is_not_written_in_shares(asked: str) -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-1", bucket=0)).graph
    weight = max(
        (name for name, state in step.states.items() if state.trainable),
        key=lambda name: torch.Size(step.blobs[name].shape or ()).numel(),
    )
    builder = Builder(step)
    builder.outputs.append(asked.replace("weight", weight))
    names = {op.name for op in kinds_of(in_shares(builder.graph(), large=0).graph, SHARED)}
    assert f"update/{weight}" in {
        op.name for op in kinds_of(in_shares(step, large=0).graph, SHARED)
    }
    assert f"update/{weight}" not in names


def test_gpus_have_owners() -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-1", bucket=0)).graph
    builder = Builder(step)
    for name, op in step.ops.items():
        device = op.location.device.replace("cpu", "cuda")
        builder.ops[name] = replace(op, location=Location(device=device))
    assert not in_shares(builder.graph(), large=0).kernels


def test_the_memory_of_a_product_is_used_again() -> None:
    product = shares._Product()
    one, other = torch.randn(3, 4), torch.randn(4, 5)
    first = product.compute(one, other)
    second = product.compute(other.t(), one.t())
    assert torch.equal(first, one @ other)
    product.take_back()
    third = product.compute(one, other)
    assert third.data_ptr() == first.data_ptr()
    assert second.data_ptr() != first.data_ptr()


def test_tensors_in_different_orders_are_updated_once() -> None:
    step = without_aliases(replicate(steps_of(), "cpu:0-1", bucket=0)).graph
    name = next(op.name for op in step.ops.values() if op.kind == "MomentumUpdate")
    update = step.ops[name]
    mean = step.producers[update.inputs[1]]
    weight, gradient, other, velocity = torch.randn(4, 6, 8).unbind()
    turned = other.t().contiguous().t()
    lr = torch.tensor(0.05, dtype=torch.float64)
    average, apply = lookup(mean).bind(mean), lookup(update).bind_overwrite(update)
    expected = [weight.clone(), velocity.clone()]
    apply(expected[0], average(gradient, turned), expected[1], lr)
    for start, stop in [(0, 24), (24, 48)]:
        shares._share(update, mean, start, stop)(weight, velocity, lr, gradient, turned)
    assert torch.equal(weight, expected[0])
    assert torch.equal(velocity, expected[1])
