"""Layouts: what is laid out, that every transform carries them along, and that numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import purine as pu
from purine.analysis.infer import complete, with_batch
from purine.errors import ConfigError, GraphError
from purine.graph import CHANNELS_LAST, Builder, Graph, Location, from_yaml, to_yaml
from purine.kinds import Net, conv
from purine.kinds.fused import FUSED, body_of
from purine.lowering.host_rules import host_problems
from purine.parallel import hybrid, pipeline, replicate, shard
from purine.parallel.accumulate import accumulate
from purine.placement.copies import insert_copies
from purine.placement.place import place
from purine.recipe import compose
from purine.solvers import SOLVERS, clip_by_norm

DATA = pu.data.fashion_mini()
FORM = torch.channels_last
Transform = Callable[[Graph], Graph]

sgd = partial(pu.solvers.sgd, lr=0.05, momentum=0.9)
laid = partial(pu.layout, form=CHANNELS_LAST)


def lenet(batch: int = 8) -> Graph:
    return pu.data.prepare(pu.zoo.lenet(batch=batch), DATA.train)


def step_of(net: Graph) -> Graph:
    return sgd(pu.backward(net))


def marked(graph: Graph) -> set[str]:
    return {name for name, blob in graph.blobs.items() if blob.layout}


def test_images_and_filters_are_laid_out_and_what_solvers_keep_for_them() -> None:
    conv = [f"{slot}conv{k}/weight" for k in (1, 2) for slot in ("", "momentum/")]
    found = marked(laid(step_of(lenet())))
    assert found == {"data/raw", *conv, *(f"{name}/next" for name in conv)}
    assert {blob.layout for blob in laid(step_of(lenet())).blobs.values()} == {"", CHANNELS_LAST}


@pytest.mark.parametrize("solver", SOLVERS)
def test_slots_of_all_solvers_lie_as_their_filters_do(solver: str) -> None:
    step = laid(SOLVERS[solver](pu.backward(lenet()), lr=0.1))
    slots = {name for name in step.states if name.endswith("conv1/weight")}
    assert slots <= marked(step)
    assert slots == {name for name in step.states if step.blobs[name].shape == (20, 1, 5, 5)}


def test_contiguous_takes_layouts_out() -> None:
    step = step_of(lenet())
    assert pu.layout(laid(step), "contiguous") == step
    assert pu.layout(laid(step), "contiguous").digest == step.digest != laid(step).digest


@pytest.mark.parametrize("net", ["lenet", "nin", "mobilenet_v2", "unet"])
def test_auto_lays_out_nets_of_convolutions(net: str) -> None:
    graph = pu.zoo.NETS[net](batch=2)
    assert marked(pu.layout(graph)) == marked(laid(graph)) != set()


def test_auto_leaves_nets_of_other_products_alone() -> None:
    tokens = pu.zoo.gpt2(batch=2, context=8, vocabulary=11, width=16, layers=1, heads=2)
    patches = pu.zoo.vit(batch=2)
    for graph in (pu.zoo.mlp(batch=2), tokens, patches):
        assert marked(pu.layout(graph)) == set()
    assert marked(laid(patches)) != set()


def test_filters_are_found_behind_casts_and_copies() -> None:
    net = pu.mixed(place(pu.zoo.lenet(batch=4), {"conv2": "cpu:1"}))
    moved = Builder(net)
    moved.blobs["conv2/weight"] = replace(net.blobs["conv2/weight"], location=Location())
    found = marked(laid(insert_copies(moved.graph())))
    assert {"conv1/weight", "conv1/weight/bf16", "conv2/weight", "conv2/weight@cpu:1"} <= found


def test_what_is_imported_is_laid_out() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.ConvTranspose2d(4, 2, 3)
    )
    example = torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, 8, 8)
    graph = pu.from_torch(module, torch.nn.functional.mse_loss, example).net
    filters = {name for name in graph.states if len(graph.blobs[name].shape or ()) == 4}
    assert len(filters) == 2
    assert filters <= marked(laid(graph))


NETS: dict[str, Transform] = {
    "complete": complete,
    "with_batch": partial(with_batch, batch=3),
    "mixed": pu.mixed,
    "mixed fp16": partial(pu.mixed, dtype="fp16"),
    "backward": pu.backward,
    "step": step_of,
    "evaluation": pu.evaluation,
    "inference": lambda net: pu.inference(net, ["fc2"]),
    "prune": lambda net: pu.prune(net, ["conv2"]),
    "place": lambda net: place(net, {"conv2": "cpu:1"}),
    "to_device": lambda net: pu.to_device(net, "cuda:0"),
    "shard": lambda net: shard(net, "cpu:0-1"),
    "hybrid": lambda net: hybrid(net, "cpu:0-1"),
    "compose": lambda net: compose(net, solver=sgd, devices="cpu:0-3", data=2, pipeline=2),
    "sharded": lambda net: compose(net, solver=sgd, devices="cpu:0-1", model=2, precision="fp16"),
}
STEPS: dict[str, Transform] = {
    "accumulate": lambda step: accumulate(step, 2),
    "clip": lambda step: clip_by_norm(step, 1.0),
    "prune": lambda step: pu.prune(step, ["loss"]),
    "recompute": lambda step: pu.recompute(step, 3),
    "to_device": lambda step: pu.to_device(step, "cuda:0"),
    "pipeline": lambda step: pipeline(step, devices="cpu:0-1", micro=2),
    **{
        f"replicate {name}": partial(replicate, devices="cpu:0-2", topology=name)
        for name in ("sharded", "server", "tree", "ring", "native")
    },
}


@pytest.mark.parametrize("name", NETS)
def test_transforms_of_nets_carry_layouts_along(name: str) -> None:
    net = pu.zoo.lenet(batch=8)
    assert carried(NETS[name](laid(net)), laid(NETS[name](net)))


@pytest.mark.parametrize("name", STEPS)
def test_transforms_of_steps_carry_layouts_along(name: str) -> None:
    step = pu.backward(lenet()) if name == "clip" else step_of(lenet())
    assert carried(STEPS[name](laid(step)), laid(STEPS[name](step)))


def carried(early: Graph, late: Graph) -> bool:
    """Whether a graph that was laid out before a transform is the one laid out behind it."""
    assert marked(late)
    assert marked(early) == marked(late)
    return early == late


def test_prepare_lays_out_the_samples_as_stored() -> None:
    assert "data/raw" in marked(pu.data.prepare(laid(pu.zoo.lenet(batch=8)), DATA.train))


def test_bodies_of_fused_ops_say_it_too() -> None:
    step = laid(step_of(lenet()))
    fused = pu.fuse(step)
    assert marked(fused) == marked(step)
    (op,) = (op for op in fused.ops.values() if op.kind == FUSED)
    assert marked(body_of(op)) == marked(step) - {"data/raw"}  # which is scaled on lane io
    assert pu.fuse(from_yaml(to_yaml(step))) == fused
    with pytest.raises(GraphError, match="the graph has a fused op"):
        pu.layout(fused)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no layout 'channels_last'") as caught:
        pu.layout(lenet(), "channels_last")
    assert caught.value.remedy == "did you mean 'channels-last'?"


def is_channels_last(value: torch.Tensor) -> bool:
    """By strides: with one channel both layouts are the same bytes."""
    return value.stride() == torch.empty_like(value, memory_format=FORM).stride()


def test_a_run_lays_out_what_the_graph_says() -> None:
    step = step_of(lenet())
    for graph, wanted in ((step, False), (laid(step), True), (pu.fuse(laid(step)), True)):
        shown = replace(graph, outputs=(*graph.outputs, "data/raw"))
        with pu.Run(shown, data=DATA, threads=1) as run:
            (result,) = run.steps(1)
            states = run.states()
        assert is_channels_last(result.outputs["data/raw"]) == wanted
        for name in ("conv1/weight", "conv2/weight", "momentum/conv2/weight"):
            assert is_channels_last(states[name]) == wanted, name


def test_samples_for_a_gpu_are_read_as_they_are_stored() -> None:
    from purine.runtime.feeding import read_stream

    for graph, wanted in ((laid(step_of(lenet())), True), (step_of(lenet()), False)):
        for device, here in (("cpu:0", wanted), ("cuda:0", False)):
            moved = graph if device == "cpu:0" else pu.to_device(graph, device)
            images, _ = read_stream(moved, DATA)["data"](torch.tensor(0), torch.tensor(0))
            assert is_channels_last(images) == here


def test_compute_lays_out_what_it_is_fed() -> None:
    net = pu.kinds.Net()
    pu.kinds.relu(net.input("x", (2, 3, 4, 5)), name="y")
    graph = replace(net.graph(), outputs=("y",))
    given = torch.randn(2, 3, 4, 5)
    found = [pu.compute(pu.layout(graph, form), {"x": given})["y"] for form in FORMS]
    assert [is_channels_last(value) for value in found] == [False, True]
    assert torch.equal(*found)


FORMS = ("contiguous", CHANNELS_LAST)


@pytest.mark.parametrize("fused", [False, True])
def test_both_layouts_train_alike(fused: bool) -> None:
    found = []
    for form in FORMS:
        step = pu.layout(step_of(lenet()), form)
        test = pu.layout(pu.evaluation(lenet(50)), form)
        with pu.Run(pu.fuse(step) if fused else step, data=DATA, seed=1, threads=1) as run:
            found.append([*(result.loss for result in run.steps(5)), run.evaluate(test)["loss"]])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_checkpoint_of_one_layout_loads_in_the_other(tmp_path: Path) -> None:
    step = step_of(lenet())
    for form, other in (FORMS, FORMS[::-1]):
        with pu.Run(pu.layout(step, form), data=DATA, threads=1) as run:
            list(run.steps(3))
            run.save(tmp_path / form)
            expected = [result.loss for result in run.steps(2)]
        with pu.Run(pu.layout(step, other), data=DATA, threads=1) as run:
            assert run.load(tmp_path / form) == 3
            assert [result.loss for result in run.steps(2)] == pytest.approx(expected, rel=1e-4)
            wanted = other == CHANNELS_LAST
            assert is_channels_last(run.states()["conv2/weight"]) == wanted


def test_filters_of_joined_convolutions_are_laid_out_too() -> None:
    net = Net()
    x = net.input("x", (2, 4, 5, 5))
    net.output(*(conv(x, 3, kernel=3, name=name) for name in ("a", "b")))
    found = pu.layout(pu.join(net.graph()), "channels-last")
    for name in ("a/weight", "b/weight"):
        assert found.blobs[name].layout == "channels-last"


@pytest.mark.parametrize("only", [None, "host0", "host1"])
def test_gradients_between_hosts_lie_as_their_filters_do(only: str | None) -> None:
    step = replicate(step_of(lenet()), "host0-1:cpu:0", unit=1 << 14, only=only)
    laid_out = laid(step)
    copies = [op for op in laid_out.ops.values() if op.kind == "Copy"]
    ends = [(laid_out.blobs[op.inputs[0]], laid_out.blobs[op.outputs[0]]) for op in copies]
    between = [pair for pair in ends if pair[0].location.host != pair[1].location.host]
    assert all(one.layout == other.layout for one, other in between)
    filters = [one for one, _ in between if len(one.shape or ()) == 4]
    assert {blob.layout for blob in filters} == {CHANNELS_LAST}
    assert sum("grad" in blob.name for blob in filters) >= 3
    assert only or not host_problems(laid_out)
