"""Data parallel convolutions with model parallel inner products train as one net does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph
from purine.parallel import hybrid, replicate
from purine.placement.copies import bytes_moved
from purine.placement.place import place
from purine.placement.values import gather_values
from tests.parallel.nets import Trained, agree, trained
from tests.parallel.sharded import CASES, STEPS, step_of, trains_as


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["lenet", "alexnet"])
def test_a_hybrid_net_trains_as_the_whole_batch(name: str, count: int) -> None:
    net = hybrid(CASES[name].net(8 // count), f"cpu:0-{count - 1}")
    trains_as(step_of(net), name)


@pytest.mark.parametrize("split", ["conv2", "relu1", "pool1"])
def test_the_border_can_be_an_op_or_a_blob(split: str) -> None:
    trains_as(step_of(hybrid(CASES["lenet"].net(4), "cpu:0-1", split=split)), "lenet")


def test_dropout_before_the_border() -> None:
    net = hybrid(CASES["nin"].net(4), "cpu:0-1", split="conv3")
    assert net.ops["replica1/drop1"].attributes["offset"] == 4
    trains_as(step_of(net), "nin")


def test_groups_of_hybrids() -> None:
    step = step_of(hybrid(CASES["alexnet"].net(2), "cpu:0-1"))
    trains_as(replicate(step, "cpu:0-3"), "alexnet")


def test_micro_batches_of_a_hybrid() -> None:
    step = step_of(hybrid(CASES["alexnet"].net(2), "cpu:0-1"))
    trains_as(pu.parallel.accumulate(step, 2), "alexnet")


def test_the_same_bits_twice() -> None:
    step = step_of(hybrid(CASES["alexnet"].net(2), "cpu:0-3"))
    data = CASES["alexnet"].data()
    first, second = (trained(step, data=data, steps=STEPS) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.states[name], second.states[name]) for name in first.states)


def test_shared_parameters_are_shared_out_and_their_gradients_added_by_one_op() -> None:
    step = pu.backward(hybrid(CASES["alexnet"].net(2), "cpu:0-3"))
    shared = [name for name in step.states if name.startswith("conv")]
    assert len({step.blobs[name].location for name in shared}) == 4
    for name in shared:
        op = step.producers[f"grad/{name}"]
        assert (op.kind, op.lane, len(op.inputs)) == ("Average", "inbound", 4)
        assert op.location == step.blobs[name].location


def test_every_device_joins_the_shares_itself() -> None:
    net = hybrid(CASES["lenet"].net(4), "cpu:0-3")
    joins = [op for op in net.ops.values() if op.kind == "Concat" and "pool2" in op.outputs[0]]
    assert {op.location.device for op in joins} == {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}


def test_batch_norm_statistics_are_the_mean_of_the_shares() -> None:
    net = hybrid(CASES["branches"].net(4), "cpu:0-1")
    assert net.producers[net.states["left/bn/mean"].next].kind == "Average"
    data = CASES["branches"].data()
    step = step_of(net)
    found = trained(step, data=data, steps=STEPS)
    expected = trained(
        replicate(step_of(CASES["branches"].net(4)), "cpu:0-1"), data=data, steps=STEPS
    )
    agree(Trained(found.losses, gather_values(step, found.states)), expected)


def test_hybrid_alexnet_moves_less_than_replicas() -> None:
    def step(net: Graph) -> Graph:
        return pu.solvers.sgd(pu.backward(net), lr=0.1, momentum=0.9)

    net = pu.zoo.alexnet(batch=16)
    mixed, plain = hybrid(net, "cpu:0-7"), replicate(step(net), "cpu:0-7")
    assert bytes_moved(step(mixed)) * 10 < bytes_moved(plain)


def test_bytes_moved_counts_every_crossing() -> None:
    net = pu.zoo.mlp(batch=8)
    assert bytes_moved(net) == 0
    placed = place(net, {"fc2": "cpu:1"})
    crossing = sum(4 * 8 * (placed.blobs[name].shape or (0, 0))[1] for name in ("relu1", "fc2"))
    assert bytes_moved(placed) == crossing


def lenet() -> Graph:
    return pu.zoo.lenet(batch=4)


class Pair(nn.Module):
    """A module for batches of two."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(144, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.fc(self.conv(x).reshape(2, 144))
        return scores


def imported() -> Graph:
    example = torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
    return pu.from_torch(Pair(), F.cross_entropy, example).net


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: hybrid(lenet(), "cpu:0"), ConfigError, "hybrid over 1 devices"),
        (lambda: hybrid(lenet(), ["cpu:0", "cpu:0"]), ConfigError, "hybrid over 2 devices"),
        (lambda: hybrid(lenet(), "cpu:0-1", split="fc"), ConfigError, "did you mean fc"),
        (lambda: hybrid(lenet(), "cpu:0-1", split="accuracy"), GraphError, "no two parts"),
        (lambda: hybrid(pu.backward(lenet()), "cpu:0-1"), GraphError, "has gradients already"),
        (lambda: hybrid(pu.zoo.nin(batch=4), "cpu:0-1"), GraphError, "no inner products"),
        (lambda: hybrid(place(lenet(), {"fc1": "cpu:1"}), "cpu:0-1"), GraphError, "on 2 devices"),
        (lambda: hybrid(imported(), "cpu:0-1"), GraphError, "cannot be rebuilt for a batch of 4"),
    ],
)
def test_wrong_requests(make: Callable[[], Graph], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
