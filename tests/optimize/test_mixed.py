"""Mixed precision: what runs in which precision, near the numbers of float32, and loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.data.synthetic import synthetic_tokens
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Op, from_yaml, to_yaml
from purine.kinds.loss_scale import FINITE, LOSS_SCALE, UPDATES
from purine.optimize import evaluation, mixed, recompute
from purine.optimize.mixed import precision_of
from purine.parallel import hybrid, pipeline, replicate, shard
from purine.parallel.accumulate import accumulate
from purine.recipe import compose
from purine.registry.facts import Precision
from purine.registry.lookup import lookup
from purine.solvers import adam, clip_by_norm, sgd
from tests.parallel.nets import Trained, trained

LOW = {"bf16": "bfloat16", "fp16": "float16"}
SMALL = {"image": (3, 32, 32), "classes": 10}


@dataclass(frozen=True)
class Sample:
    """A small net, and data for it. `activations` counts the casts that are not of parameters."""

    make: Callable[[int], Graph]
    data: pu.data.DataSet
    activations: int


def images(*shape: int) -> pu.data.DataSet:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, *shape, generator=generator)
    labels = torch.randint(10, (64,), generator=generator)
    return pu.data.DataSet(
        "random", pu.data.ArraySource(values.numpy(), labels.numpy(), classes=10)
    )


SAMPLES = {
    "lenet": Sample(pu.zoo.lenet, images(1, 28, 28), 2),
    "nin": Sample(pu.zoo.nin, images(3, 32, 32), 2),
    # Two norms across channels and three losses are wide.
    "googlenet": Sample(
        lambda batch: pu.zoo.googlenet(batch, image=(3, 64, 64), classes=10), images(3, 64, 64), 9
    ),
    "resnet50": Sample(
        lambda batch: pu.zoo.resnet50(batch, width=8, layers=(2, 1), **SMALL), images(3, 32, 32), 2
    ),
    # What comes from the embedding is wide up to the first layer.
    "gpt2": Sample(
        lambda batch: pu.zoo.gpt2(
            batch, context=16, vocabulary=50, layers=2, heads=2, width=16, dropout=0.1
        ),
        synthetic_tokens(length=16, vocabulary=50, count=64),
        3,
    ),
}


def step_of(net: Graph) -> Graph:
    return pu.check(sgd(clip_by_norm(pu.backward(net), 1.0), lr=0.02, momentum=0.9))


def train(step: Graph, name: str, *, steps: int = 4) -> Trained:
    return trained(step, data=SAMPLES[name].data, steps=steps)


def casts(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops.values() if op.kind == "aten._to_copy"]


def test_every_kind_of_the_zoo_declares_its_precision() -> None:
    for make in pu.zoo.NETS.values():
        for op in make(2).ops.values():
            assert lookup(op).facts.precision is not None, op.kind


def test_kinds_that_nobody_named_are_wide() -> None:
    for kind in ("aten.lgamma", "GlobalNorm"):
        assert precision_of(Op("op", kind, ("x",), ("y",))) is Precision.WIDE


def test_all_overloads_of_an_operator_have_its_precision() -> None:
    for kind in ("aten.add", "aten.add.Tensor", "sized.aten.add.Scalar"):
        assert lookup(Op("op", kind, ("x",), ("y",))).facts.precision is Precision.FOLLOW


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", SAMPLES)
def test_kinds_run_in_the_precision_of_the_table(name: str, dtype: str) -> None:
    net = SAMPLES[name].make(4)
    graph = pu.check(mixed(net, dtype))
    for op in graph.ops.values():
        real = {graph.blobs[blob].dtype for blob in op.inputs} - {"int64"}
        known = precision_of(op)
        if op.kind == "aten._to_copy" or op.kind == "aten.add.Scalar":
            continue
        if known is Precision.LOW:
            assert real == {LOW[dtype]}, op
            assert graph.blobs[op.outputs[0]].dtype == LOW[dtype], op
        elif known is Precision.WIDE:
            assert LOW[dtype] not in real, op
        elif known is Precision.FOLLOW:
            assert len(real) == 1, op
        else:
            assert graph.blobs[op.inputs[1]].dtype == "float32", op
            assert graph.blobs[op.outputs[0]].dtype == graph.blobs[op.inputs[0]].dtype, op
    for blob in (*net.outputs, *net.states):
        assert graph.blobs[blob].dtype == net.blobs[blob].dtype


@pytest.mark.parametrize("name", SAMPLES)
def test_a_blob_is_cast_once_and_not_back(name: str) -> None:
    graph = mixed(SAMPLES[name].make(4))
    found = [graph.ops[op] for op in casts(graph)]
    sources = [op.inputs[0] for op in found]
    assert len(set(sources)) == len(sources)
    assert set(sources).isdisjoint(op.outputs[0] for op in found)
    activations = [blob for blob in sources if blob not in graph.states]
    assert len(activations) == SAMPLES[name].activations


@pytest.mark.parametrize("name", SAMPLES)
def test_training_in_bf16_stays_near_float32(name: str) -> None:
    net = SAMPLES[name].make(8)
    plain, low = train(step_of(net), name, steps=3), train(step_of(mixed(net)), name, steps=3)
    assert low.losses != plain.losses
    assert low.losses == pytest.approx(plain.losses, rel=5e-3)
    first = pu.runtime.values.initial_states(net, 3)
    for state, value in plain.states.items():
        assert low.states[state].dtype == value.dtype
        if net.states.get(state) and net.states[state].trainable and value.ndim > 1:
            moved, found = value - first[state], low.states[state] - first[state]
            assert F.cosine_similarity(moved.flatten(), found.flatten(), dim=0) > 0.9, state


def test_training_in_fp16_stays_near_float32() -> None:
    for name in ("lenet", "resnet50", "gpt2"):
        net = SAMPLES[name].make(8)
        low = train(step_of(mixed(net, "fp16", loss_scale=1024.0)), name)
        assert low.losses == pytest.approx(train(step_of(net), name).losses, rel=2e-3)
        assert low.states[LOSS_SCALE] == 1024.0


def test_gradients_are_those_of_the_loss_whatever_its_scale() -> None:
    net, name = SAMPLES["resnet50"].make(4), "grad/fc/weight"
    found = []
    for scale in (1.0, 4096.0):
        builder = Builder(pu.backward(mixed(net, loss_scale=scale)))
        builder.outputs.append(name)
        assert builder.blobs[name].dtype == "float32"
        with pu.Run(builder.graph(), data=SAMPLES["resnet50"].data, seed=3, threads=1) as run:
            (result,) = run.steps(1)
            found.append(result.outputs[name])
    assert torch.equal(found[0], found[1])


def test_an_overflow_skips_the_updates_and_halves_the_scale() -> None:
    net = mixed(pu.zoo.lenet(8), "fp16", loss_scale=2.0**24)
    for solver in (lambda g: sgd(g, lr=0.1, momentum=0.9), adam, lambda g: sgd(g, lr=0.1)):
        step = pu.check(solver(clip_by_norm(pu.backward(net), 1.0)))
        with pu.Run(step, data=SAMPLES["lenet"].data, seed=3, threads=1) as run:
            before = run.states()
            list(run.steps(1))
            after = run.states()
            assert after.pop(LOSS_SCALE) == 2.0**23
            for name, value in after.items():
                assert torch.equal(value, before[name]) == (name != "iteration"), name
            scales = [result[LOSS_SCALE] for result in run.steps(16)]
            trained = run.states()
        assert scales[:5] == [2.0**23 / 2**k for k in range(5)]
        assert scales[-1] == scales[-2] == trained[LOSS_SCALE]
        for name, state in net.states.items():
            if state.trainable:
                assert trained[name].isfinite().all()
                assert not torch.equal(trained[name], before[name])


def test_what_is_skipped_is_no_step_to_a_solver() -> None:
    """The first update of Adam goes as far as its rate, however many were skipped before it."""
    step = adam(pu.backward(mixed(pu.zoo.lenet(8), "fp16", loss_scale=2.0**24)), lr=0.01)
    with pu.Run(step, data=SAMPLES["lenet"].data, seed=3, threads=1) as run:
        before = run.states()
        while run.states()[UPDATES] == 0:
            list(run.steps(1))
        after, skipped = run.states(), run.iteration - 1
    assert skipped > 3
    far = (after["fc1/weight"] - before["fc1/weight"]).abs().max().item()
    assert far == pytest.approx(0.01, rel=1e-3)


def test_the_scale_grows_after_good_iterations() -> None:
    net = mixed(pu.zoo.lenet(8), "fp16", loss_scale=2.0, growth_interval=3)
    with pu.Run(step_of(net), data=SAMPLES["lenet"].data, seed=3, threads=1) as run:
        scales = [result[LOSS_SCALE] for result in run.steps(8)]
    assert scales == [2.0] * 3 + [4.0] * 3 + [8.0] * 2


def test_bf16_has_a_loss_scale_only_where_it_is_asked_for() -> None:
    net = pu.zoo.mlp(batch=4)
    assert LOSS_SCALE not in mixed(net).states
    assert LOSS_SCALE in mixed(net, loss_scale=8.0).states
    assert FINITE not in sgd(pu.backward(mixed(net))).blobs


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["lenet", "gpt2"])
def test_parts_of_a_batch_train_as_the_whole(name: str, dtype: str) -> None:
    scale = 1024.0 if dtype == "fp16" else None
    whole = mixed(SAMPLES[name].make(8), dtype, loss_scale=scale)
    part = step_of(with_batch(whole, 4))
    expected = train(step_of(whole), name)
    places = ["cpu:0", "cpu:1"]
    for step in (
        replicate(part, places),
        replicate(part, places, topology="ring"),
        accumulate(part, 2),
        pipeline(part, devices=places, micro=2),
        recompute(step_of(whole), 3),
    ):
        found = train(pu.check(step), name)
        assert found.losses == pytest.approx(expected.losses, rel=1e-3)
        for state in whole.states:
            assert found.states[state].dtype == expected.states[state].dtype
            assert torch.allclose(found.states[state], expected.states[state], atol=5e-3), state


def test_an_overflow_in_one_replica_skips_the_update_of_all() -> None:
    net = mixed(pu.zoo.lenet(4), "fp16", loss_scale=2.0**24)
    for step in (
        replicate(step_of(net), ["cpu:0", "cpu:1"]),
        pipeline(step_of(net), devices="cpu:0-1", micro=2),
    ):
        with pu.Run(step, data=SAMPLES["lenet"].data, seed=3, threads=1, share_cores=True) as run:
            before = run.states()
            list(run.steps(1))
            after = run.states()
        assert after[LOSS_SCALE] == 2.0**23
        assert all(
            torch.equal(after[p], before[p])
            for p in net.states
            if p != LOSS_SCALE and net.states[p].trainable
        )


def test_synchronised_batch_norm_of_low_precision_is_that_of_the_whole_batch() -> None:
    whole = mixed(SAMPLES["resnet50"].make(8))
    step = replicate(step_of(with_batch(whole, 4)), ["cpu:0", "cpu:1"], batch_norm="synchronised")
    expected = train(step_of(whole), "resnet50")
    assert train(step, "resnet50").losses == pytest.approx(expected.losses, rel=3e-3)


@pytest.mark.parametrize("settings", [{"model": 2}, {"model": 2, "hybrid": True}, {"pipeline": 2}])
def test_compose_casts_behind_the_cut(settings: dict[str, int]) -> None:
    net = SAMPLES["lenet"].make(8)
    step = compose(
        net,
        solver=lambda graph: sgd(graph, lr=0.02, momentum=0.9),
        clip=1.0,
        devices="cpu:0-1",
        precision="bf16",
        **settings,
    )
    assert any(blob.dtype == "bfloat16" for blob in step.blobs.values())
    found, expected = train(step, "lenet"), train(step_of(net), "lenet")
    assert found.losses == pytest.approx(expected.losses, rel=5e-3)


@pytest.mark.parametrize("dtype", LOW)
def test_evaluation_in_low_precision_is_near_float32(dtype: str) -> None:
    for name in ("lenet", "resnet50"):
        sample = SAMPLES[name]
        data = pu.data.DataSet("random", sample.data.train, sample.data.train)
        net = sample.make(8)
        low = pu.check(evaluation(mixed(net, dtype)))
        assert LOSS_SCALE not in low.states
        with pu.Run(step_of(net), data=data, seed=3, threads=1) as run:
            expected, found = run.evaluate(evaluation(net)), run.evaluate(low)
        assert found["loss"] == pytest.approx(expected["loss"], rel=5e-3)


def test_a_mixed_net_reads_back_from_yaml() -> None:
    for name, sample in SAMPLES.items():
        net = mixed(sample.make(4), "fp16")
        assert from_yaml(to_yaml(net)) == net, name
    step = step_of(net)
    assert from_yaml(to_yaml(step)) == step


def test_what_a_net_reports_stays_float32() -> None:
    builder = Builder(pu.zoo.lenet(2))
    builder.outputs.append("fc1")
    graph = pu.check(mixed(builder.graph()))
    assert graph.blobs["fc1"].dtype == "float32"
    assert graph.blobs["fc1/bf16"].dtype == "bfloat16"
    assert [op.inputs for op in graph.consumers["fc1/bf16"]] == [("fc1/bf16",)] * 2
    assert graph.consumers["fc1"] == ()


class Drops(nn.Module):
    """A module whose dropped weights and batch norm are imported as ATen overloads and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x))).mean((2, 3))
        q = x.unsqueeze(1)
        x = x + F.scaled_dot_product_attention(q, q, q, dropout_p=0.25).squeeze(1)
        result: torch.Tensor = self.linear(F.dropout(x, 0.5, self.training))
        return result


def test_modules_of_torch_run_in_the_same_precisions() -> None:
    example = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
    net = pu.from_torch(Drops(), F.cross_entropy, example).net
    graph = mixed(net)
    low = [op for op in graph.ops.values() if precision_of(op) is Precision.LOW]
    assert {"aten.conv2d", "aten.linear"} <= {op.kind for op in low}
    assert all(graph.blobs[op.outputs[0]].dtype == "bfloat16" for op in low)
    assert not any("mask" in name.lower() for name in casts(graph))
    pu.check(with_batch(graph, 6))
    pu.check(sgd(pu.backward(graph)))


def test_whole_numbers_and_float64_are_left_alone() -> None:
    net = pu.kinds.Net()
    x = net.input("x", (2, 4), "float64")
    weight = net.parameter("weight", (3, 4), pu.graph.Filler())
    builder = Builder(net.graph())
    builder.blobs["weight"] = pu.Blob("weight", (3, 4), "float64")
    builder.blob("y", None)
    builder.op("y", "InnerProduct", [x.name, weight.name], ["y"])
    builder.outputs.append("y")
    graph = mixed(builder.graph())
    assert casts(graph) == []
    assert graph.blobs["y"].dtype == "float64"


def test_what_is_refused() -> None:
    net = pu.zoo.mlp(batch=4)
    with pytest.raises(ConfigError, match="no precision 'fp8'") as wrong:
        mixed(net, "fp8")
    assert "bf16 or fp16" in str(wrong.value)
    with pytest.raises(GraphError, match="casts belong before") as order:
        mixed(pu.backward(net))
    assert "backward(mixed(net))" in str(order.value)
    with pytest.raises(GraphError, match="low precision already"):
        mixed(mixed(net), "fp16")
    with pytest.raises(ConfigError, match="loss_scale is 0"):
        mixed(net, "fp16", loss_scale=0.0)
    with pytest.raises(ConfigError, match="growth_interval is 0"):
        mixed(net, "fp16", growth_interval=0)
    for cut in (shard, hybrid):
        with pytest.raises(GraphError, match="is cast before it is used") as early:
            cut(mixed(pu.zoo.lenet(4)), "cpu:0-1")
        assert f"mixed({cut.__name__}(net" in str(early.value)
