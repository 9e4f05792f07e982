"""All schemes in one call: the step trains as the net does on one device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest

import purine as pu
from purine.errors import ConfigError
from purine.graph import Graph
from purine.importers.caffe import CaffeSolver
from purine.parallel import Scheme
from purine.placement.devices import as_locations, devices_of
from purine.placement.values import gather_values
from purine.recipe import Settings, compose, describe, make_step
from purine.solvers import Fixed
from tests.parallel.nets import Trained, agree, float64, trained

SOLVER = partial(pu.solvers.sgd, lr=0.05, momentum=0.9, weight_decay=1e-3)
STEPS = 4


def net() -> Graph:
    return float64(pu.zoo.lenet(batch=24))


@cache
def serial() -> Trained:
    return trained(SOLVER(pu.solvers.clip_by_norm(pu.backward(net()), 0.5)), steps=STEPS)


@pytest.mark.parametrize(
    "text",
    [
        "data=1",
        "micro=4,recompute=3",
        "data=2,recompute=conv1|conv2",
        "data=3,topology=ring,bucket=0",
        "data=3,micro=4,topology=tree",
        "data=2,pipeline=2,micro=2,topology=native",
        "model=2,pipeline=2,micro=2",
        "data=2,model=2,pipeline=2,micro=2,schedule=gpipe",
        "data=2,pipeline=2,micro=3,recompute=4,schedule=zero-bubble",
        "pipeline=2,chunks=2,schedule=interleaved,recompute=3",
        "data=2,model=2,hybrid=true,micro=2",
        "data=3,shares=1:2:3,topology=tree,micro=2",
        "shares=2:1,topology=native",
        "data=2,shares=1:2,pipeline=2,model=2,micro=2",
        "shares=1:2,pipeline=2,chunks=2,schedule=interleaved,micro=4",
        "shares=1:2,model=2,hybrid=true",
        "pipeline=3,cut=conv2|fc1",
    ],
)
def test_a_composed_step_trains_as_the_net_does(text: str) -> None:
    scheme = Scheme.parse(text)
    devices = f"cpu:0-{scheme.devices - 1}"
    step = compose(net(), solver=SOLVER, devices=devices, clip=0.5, scheme=scheme)
    assert len(devices_of(step)) == scheme.devices
    found = trained(step, steps=STEPS)
    agree(Trained(found.losses, gather_values(step, found.states)), serial())


def test_accumulated_batches_are_the_larger_batch() -> None:
    small = float64(pu.zoo.lenet(batch=12))
    step = compose(
        small, solver=SOLVER, devices="cpu:0-3", clip=0.5, accumulate=2, data=2, pipeline=2, micro=2
    )
    agree(trained(step, steps=STEPS), serial())


def test_without_settings_every_device_has_a_replica() -> None:
    step = compose(net(), solver=SOLVER, devices="cpu:0-2")
    assert sum(op.kind == "Data" for op in step.ops.values()) == 3
    assert step == compose(net(), solver=SOLVER, devices="cpu:0-2", data=3)


def test_devices_are_used_in_the_order_given() -> None:
    step = compose(net(), solver=SOLVER, devices=["cpu:3", "cpu:1"], pipeline=2, micro=2)
    assert step.ops["micro0/conv1"].location.device == "cpu:3"
    assert step.ops["micro0/fc2"].location.device == "cpu:1"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"data": 5}, "data 5 does not divide 24"),
        ({"data": 2, "micro": 5}, "micro 5 does not divide 12"),
        ({"model": 5, "hybrid": True}, "model 5 does not divide 24"),
        ({"data": 2, "shares": (3, 2)}, r"use a batch of 25, or shares=14:10"),
        ({"data": 2, "shares": (3, 4), "micro": 2}, r"use a batch of 28, or shares=5:7"),
        ({"data": 2, "shares": (3, 1), "micro": 5}, "micro 5 does not divide 6"),
        ({"data": 2, "shares": (50, 1), "micro": 24}, r"use a batch of 1224, or other shares"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused(settings: dict[str, int], text: str) -> None:
    scheme = Scheme(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=text):
        compose(net(), solver=SOLVER, devices=f"cpu:0-{scheme.devices - 1}", scheme=scheme)


@pytest.mark.parametrize(
    ("text", "idle"),
    [
        ("data=2,pipeline=3,model=2,micro=2,cut=accuracy|loss", "2 of the 6 devices"),
        ("pipeline=2,model=2,micro=2,cut=loss", "1 of the 4 devices"),
    ],
)
def test_stages_without_layers_to_cut_are_refused(text: str, idle: str) -> None:
    """The devices that they leave without work are not taken for further replicas."""
    scheme = Scheme.parse(text)
    with pytest.raises(ConfigError, match=f"{idle} of a replica would have no work") as error:
        compose(net(), solver=SOLVER, devices=f"cpu:0-{scheme.devices - 1}", scheme=scheme)
    assert error.value.found == "nothing to compute at cpu:3" + ", cpu:5" * (scheme.data == 2)


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(),
        Scheme(data=2, pipeline=4, micro=8, schedule="gpipe", topology="ring"),
        Scheme(pipeline=2, cut=("fc1",), recompute=("conv1", "conv2")),
        Scheme(model=2, hybrid=True, batch_norm="synchronised", bucket=0, recompute=4),
        Scheme(pipeline=2, schedule="0: F0 F1 B0 B1\n1: F0 F1 B0 B1"),
        Scheme(data=2, shares=(3, 1), pipeline=2),
    ],
)
def test_a_scheme_reads_back_from_its_text_and_settings(scheme: Scheme) -> None:
    assert Scheme.parse(str(scheme)) == scheme
    assert Scheme.of(scheme.settings) == scheme
    assert scheme.settled().settled() == scheme.settled()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("data=3,shares=3:1", "there are 2 shares for 3 replicas"),
        ("shares=3:x", "shares is '3:x'"),
        ("shares=3:0", r"shares is \(3, 0\)"),
        ("shares=3:-1", "shares is '3:-1'"),
        (f"shares=3:{'9' * 5000}", "shares is '3:999"),
    ],
)
def test_wrong_shares_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Scheme.parse(text)


def test_shares_tell_the_number_of_replicas() -> None:
    assert str(Scheme.parse("shares=3:1")) == "data=2,shares=3:1"
    step = compose(net(), solver=SOLVER, devices="cpu:0-1", shares=(3, 1))
    assert [step.blobs[f"replica{k}/data"].shape for k in range(2)] == [
        (18, 1, 28, 28),
        (6, 1, 28, 28),
    ]
    assert [step.ops[f"replica{k}/data"].attributes["offset"] for k in range(2)] == [0, 18]


def test_all_replicas_of_a_pipeline_are_cut_alike() -> None:
    """Stages that are even for one batch need not be so for another."""
    scheme = Scheme(data=2, shares=(1, 11), pipeline=3, micro=2)
    step = compose(net(), solver=SOLVER, devices="cpu:0-5", scheme=scheme)
    stages = [
        {
            op.name.removeprefix(f"replica{k}/"): op.origin.stage
            for op in step.ops.values()
            if op.name.startswith(f"replica{k}/micro") and op.origin and op.kind != "Copy"
        }
        for k in range(2)
    ]
    assert stages[0] == stages[1]
    assert set(stages[0].values()) >= {0, 1, 2}


LENET = float64(pu.zoo.lenet(batch=8))


def names(settings: Settings) -> list[str]:
    return [line.partition(":")[0] for line in describe(settings)]


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        (Settings(solver=SOLVER), "backward solver"),
        (Settings(solver=SOLVER, clip=1.0, accumulate=2), "backward clip solver accumulate"),
        (Settings(solver=SOLVER, iter_size=2), "backward iter_size solver"),
        (
            Settings(solver=SOLVER, devices=as_locations("cuda:0"), form="auto", compiled=True),
            "join backward solver place layout fuse",
        ),
        (
            Settings(
                solver=SOLVER,
                devices=as_locations("cpu:0-7"),
                scheme=Scheme.parse("data=2,pipeline=2,model=2,recompute=2"),
                precision="bf16",
            ),
            "part shard mixed backward solver pipeline recompute place",
        ),
        (
            Settings(solver=SOLVER, devices=as_locations("cpu:0-1"), scheme=Scheme(data=2)),
            "part gather backward solver place",
        ),
    ],
)
def test_the_stages_that_apply_follow_from_the_settings(settings: Settings, stages: str) -> None:
    assert names(settings) == stages.split()


def test_clipping_before_accumulation_in_the_list_clips_the_mean() -> None:
    """Accumulation repeats forward and backward alone, so the order changes no bit."""
    step = make_step(LENET, Settings(solver=SOLVER, clip=0.01, accumulate=3))
    other = SOLVER(pu.solvers.clip_by_norm(pu.parallel.accumulate(pu.backward(LENET), 3), 0.01))
    found, wanted = (trained(graph, steps=2) for graph in (step, other))
    assert found.losses == wanted.losses
    assert all(found.states[name].equal(value) for name, value in wanted.states.items())


def test_convolutions_are_joined_on_gpus_where_layers_are_whole() -> None:
    net = pu.zoo.googlenet(4, image=(3, 32, 32), classes=10)
    settings = Settings(solver=SOLVER, devices=as_locations("cuda:0-1"), scheme=Scheme(data=2))
    step = make_step(net, settings)
    assert any(name.startswith("replica1/") and name.endswith("/joined") for name in step.ops)
    cut = replace(settings, scheme=Scheme(model=2))
    assert "join" not in names(cut)
    assert "join" not in names(replace(settings, devices=as_locations("cpu:0-1")))


def test_decay_by_signs_is_added_once_to_the_reduced_gradient() -> None:
    """Caffe reduces gradients before it adds the decay; the numbers are those of one device."""
    solver = CaffeSolver(type="SGD", rate=Fixed(0.05), weight_decay=0.01, regularization="L1")
    step = compose(LENET, solver=solver, devices="cpu:0-1", data=2, micro=2)
    signs = [op.name for op in step.ops.values() if op.kind == "aten.sign"]
    assert signs.count("grad/conv1/weight/sign") == 1
    assert len(signs) == len(LENET.states) - 2  # all but seed and iteration
    agree(trained(step, steps=2), trained(solver(pu.backward(LENET)), steps=2))
