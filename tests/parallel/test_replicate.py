"""Replicas train as one device does with the whole batch."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, from_yaml, to_yaml
from purine.parallel import replicate
from purine.placement.copies import bytes_moved, insert_copies
from purine.placement.place import place
from tests.parallel.nets import Trained, agree, lenet, same_bits, trained


@cache
def whole() -> Trained:
    """What one device gives with the whole batch."""
    return trained(lenet(24))


@pytest.mark.parametrize("topology", ["sharded", "server", "tree", "ring", "native"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_replicas_train_as_one_large_batch(topology: str, count: int) -> None:
    expected = whole()
    found = trained(replicate(lenet(24 // count), f"cpu:0-{count - 1}", topology=topology))
    agree(found, expected)


def test_uneven_shares_count_by_their_samples() -> None:
    agree(trained(replicate([lenet(6), lenet(18)], "cpu:0-1")), whole())


def test_uneven_shares_of_steps_on_several_devices() -> None:
    steps = [place(lenet(batch), {"fc*": "cpu:1"}) for batch in (6, 18)]
    agree(trained(replicate(steps, "cpu:0-3")), whole())


@pytest.mark.parametrize("bucket", [0, 1 << 12, 1 << 30])
def test_buckets_change_no_number(bucket: int) -> None:
    agree(trained(replicate(lenet(12), "cpu:0-1", bucket=bucket)), whole())


def test_the_same_seed_gives_the_same_bits() -> None:
    step = replicate(lenet(6), "cpu:0-3")
    first, second = trained(step), trained(step)
    assert first.losses == second.losses
    assert all(torch.equal(first.states[name], second.states[name]) for name in first.states)


@pytest.mark.parametrize("bucket", [0, 1 << 12, 1 << 30])
@pytest.mark.parametrize("batches", [(6, 6, 12), (8, 8, 8)])
def test_a_native_reduction_gives_the_bits_of_owners(batches: tuple[int, ...], bucket: int) -> None:
    steps = [lenet(batch) for batch in batches]
    found, expected = (
        trained(replicate(steps, "cpu:0-2", topology=topology, bucket=bucket))
        for topology in ("native", "sharded")
    )
    same_bits(found, expected)
    agree(found, whole())


def test_a_native_reduction_reads_gradients_where_they_are() -> None:
    step = replicate(lenet(8), "cuda:0-2", topology="native")
    found = [op for op in step.ops.values() if op.kind == "Reduce"]
    assert found
    for op in found:
        places = [step.blobs[name].location.device for name in op.inputs]
        count = len(op.outputs)
        assert places == [f"cuda:{k}" for k in range(3) for _ in range(count)]
        assert all(step.blobs[name].location == op.location for name in op.outputs)
    sharded = replicate(lenet(8), "cuda:0-2")
    assert bytes_moved(step) == bytes_moved(sharded)
    assert {name: step.blobs[name] for name in step.states} == {
        name: sharded.blobs[name] for name in sharded.states
    }
    assert insert_copies(step) == step
    assert from_yaml(to_yaml(step)) == step


def test_native_reductions_inside_of_other_schemes() -> None:
    inner = replicate(lenet(6), "cpu:0-1", topology="native")
    expected = whole()
    agree(trained(pu.parallel.accumulate(inner, 2)), expected)
    agree(trained(replicate(inner, "cpu:0-3", topology="native")), expected)


def test_replicas_of_accumulated_steps() -> None:
    step = pu.parallel.accumulate(lenet(6), 2)
    agree(trained(replicate(step, "cpu:0-1")), whole())


def test_owners_share_the_parameters() -> None:
    step = replicate(lenet(8), "cpu:0-2")
    owners = {step.blobs[name].location.device for name, s in step.states.items() if s.trainable}
    assert owners == {"cpu:0", "cpu:1", "cpu:2"}
    for name, state in step.states.items():
        if state.trainable:
            assert step.blobs[f"momentum/{name}"].location == step.blobs[name].location


def test_every_crossing_is_a_copy_that_says_it_is_an_alias() -> None:
    step = replicate(lenet(8), "cpu:0-1")
    copies = [op for op in step.ops.values() if op.kind == "Copy"]
    assert copies
    assert all(op.attributes["alias"] for op in copies)
    assert all(op.lane == "inbound" for op in copies)


def no_solver() -> Graph:
    return pu.zoo.lenet(batch=4)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: replicate(lenet(4), []), ConfigError, "cannot be laid over 0"),
        (lambda: replicate(lenet(4), ["cpu:0", "cpu:0"]), ConfigError, "named twice"),
        (lambda: replicate([lenet(4)] * 3, "cpu:0-1"), ConfigError, "cannot be laid over 2"),
        (
            lambda: replicate(lenet(4), "cpu:0-1", topology="star"),
            ConfigError,
            "topology is 'star'\n  expected: one of sharded, ",
        ),
        (
            lambda: replicate(lenet(4), ["cpu:0", "cuda:0"], topology="native"),
            ConfigError,
            "no collective in common",
        ),
        (lambda: replicate(no_solver(), "cpu:0-1"), GraphError, "has no gradients"),
        (lambda: replicate(lenet(4), "cpu:3-1"), ConfigError, "devices are 'cpu:3-1'"),
        (lambda: replicate(lenet(4), "gpu:0"), ConfigError, "devices are 'gpu:0'"),
    ],
)
def test_wrong_requests(make, error, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        make()


def test_a_device_that_is_not_there() -> None:
    step = replicate(lenet(4), ["cpu:0", "cpu:4096"])
    with pytest.raises(ConfigError, match="device cpu:4096 is not there"):
        pu.Run(step, data=pu.data.fashion_mini())
