"""Ops on devices by name: the numbers stay, and what belongs together moves together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, Location
from purine.placement.copies import insert_copies
from purine.placement.place import place, place_at_cut
from tests.parallel.sharded import CASES, step_of, trains_as

ONE, TWO = Location(device="cpu:1"), Location(device="cpu:2")


def lenet() -> Graph:
    return CASES["lenet"].net()


def test_a_placed_net_trains_as_before() -> None:
    trains_as(step_of(place(lenet(), {"fc*": "cpu:1", "conv2": "cpu:2"})), "lenet")


def test_a_placed_step_trains_as_before() -> None:
    trains_as(place(step_of(lenet()), {"fc*": "cpu:1", "conv2": "cpu:2"}), "lenet")


def test_tied_parameters_and_dropout() -> None:
    places = {"layer2/*": "cpu:1", "scores": "cpu:2"}
    trains_as(step_of(place(CASES["gpt2"].net(), places)), "gpt2")


@pytest.mark.parametrize("of_net", [True, False])
def test_backward_update_and_states_follow_their_op(of_net: bool) -> None:
    places = {"fc1": "cpu:1"}
    step = step_of(place(lenet(), places)) if of_net else place(step_of(lenet()), places)
    names = ("fc1/weight", "momentum/fc1/weight", "grad/fc1/weight", "fc1/weight/next")
    assert {step.blobs[name].location for name in names} == {ONE}
    assert step.ops["update/fc1/weight"].location == ONE
    backward = [op for op in step.ops.values() if op.name.startswith("grad/fc1/")]
    assert {op.location for op in backward if op.kind != "Copy"} == {ONE}
    assert step.blobs["fc2/weight"].location == Location()


def test_a_pattern_can_name_an_update() -> None:
    step = place(step_of(lenet()), {"fc1": "cpu:1", "update/fc1/bias": "cpu:2"})
    assert step.ops["update/fc1/bias"].location == TWO
    trains_as(step, "lenet")


def test_the_last_pattern_counts() -> None:
    net = place(lenet(), {"*": "cpu:1", "fc2": "cpu:2"})
    assert (net.ops["fc1"].location, net.ops["fc2"].location) == (ONE, TWO)
    assert net.ops["loss"].location == ONE


def test_placing_again_leaves_no_copies_behind() -> None:
    net = place(place(lenet(), {"fc*": "cpu:1"}), {"fc*": "cpu:0"})
    assert net == pu.check(lenet())


def test_inserting_copies_twice_changes_nothing() -> None:
    step = step_of(place(lenet(), {"fc*": "cpu:1"}))
    assert insert_copies(step) == step


def test_every_gradient_is_where_its_blob_is() -> None:
    step = pu.backward(place_at_cut(lenet(), ["conv2", "fc1"], "cpu:0-2"))
    for name, blob in step.blobs.items():
        if f"grad/{name}" in step.blobs:
            assert step.blobs[f"grad/{name}"].location == blob.location
    pu.check(step)


def test_a_cut_net_trains_as_before() -> None:
    net = place_at_cut(lenet(), ["conv2", "fc1"], "cpu:0-2")
    found = [net.ops[name].location.device for name in ("conv1", "pool1", "conv2", "pool2", "loss")]
    assert found == ["cpu:0", "cpu:0", "cpu:1", "cpu:1", "cpu:2"]
    trains_as(step_of(net), "lenet")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: place(lenet(), {"fc3": "cpu:1"}), ConfigError, "did you mean fc"),
        (lambda: place(lenet(), {"layer*": "cpu:1"}), ConfigError, "no op is called"),
        (lambda: place(lenet(), {"fc1": "tpu:1"}), GraphError, "not a device"),
        (lambda: place_at_cut(lenet(), ["fc1"], "cpu:0-2"), ConfigError, "2 stages, for 3"),
        (lambda: place_at_cut(lenet(), ["fc"], "cpu:0-1"), ConfigError, "did you mean fc"),
        (
            lambda: place_at_cut(lenet(), ["fc1", "conv1"], "cpu:0-2"),
            ConfigError,
            "in stage 2|in stage 1",
        ),
        (lambda: place_at_cut(step_of(lenet()), ["fc1"], "cpu:0-1"), GraphError, "gradients"),
    ],
)
def test_wrong_requests(make: Callable[[], Graph], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
