"""Fused ops give the numbers of the ops they stand for, wherever the pieces end."""

from __future__ import annotations

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, from_yaml, to_yaml, verify
from purine.kinds.fused import FUSED, body_of
from purine.parallel import pipeline, replicate
from purine.registry.lookup import kinds


def made(net: str = "lenet", batch: int = 8) -> Graph:
    data = pu.data.fashion_mini()
    prepared = pu.data.prepare(pu.zoo.NETS[net](batch=batch), data.train)
    return pu.solvers.sgd(pu.backward(prepared), lr=0.05, momentum=0.9)


def trained(graph: Graph, *, compiled: bool = False) -> tuple[list[float], dict[str, torch.Tensor]]:
    data = pu.data.fashion_mini()
    with pu.Run(graph, data=data, seed=3, share_cores=True, compiled=compiled) as run:
        return [result.loss for result in run.steps(4)], run.states()


def assert_same(one: Graph, other: Graph) -> None:
    losses, states = trained(one)
    found, values = trained(other)
    assert found == losses
    assert states.keys() == values.keys()
    for name, value in states.items():
        assert torch.equal(values[name], value), name


def fused_ops(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops.values() if op.kind == FUSED]


def test_a_whole_step_is_one_op_with_the_same_bits() -> None:
    step = made()
    fused = pu.fuse(step)
    assert len(fused_ops(fused)) == 1
    assert set(fused.states) == set(step.states)
    assert_same(step, fused)


@pytest.mark.parametrize("pieces", [2, 5])
def test_smaller_pieces_have_the_same_bits(pieces: int) -> None:
    step = made("mlp")
    fused = pu.fuse(step, pieces=pieces)
    assert 2 <= len(fused_ops(fused)) <= pieces
    assert_same(step, fused)


@pytest.mark.parametrize("pieces", [1, 2])
def test_pieces_of_mixed_precision_have_the_same_bits(pieces: int) -> None:
    """Statistics of layer norms have another dtype on CPUs than elsewhere, as torch tells it."""
    net = pu.zoo.gpt2(batch=2, context=8, layers=2, width=16, heads=2, vocabulary=20, dropout=0.0)
    step = pu.solvers.sgd(pu.backward(pu.mixed(net, "bf16")), lr=0.05)
    tokens = torch.arange(128).reshape(16, 8).remainder(20).numpy()
    source = pu.data.ArraySource(tokens, tokens, names=("tokens", "targets"), classes=20)
    found = []
    for graph in (step, pu.fuse(step, pieces=pieces)):
        with pu.Run(graph, data=pu.data.DataSet("memory", source), seed=3) as run:
            found.append([result.loss for result in run.steps(3)])
    assert found[0] == found[1]


def test_pieces_end_where_replicas_and_stages_talk() -> None:
    step = made()
    for graph in (
        replicate(step, "cpu:0-1"),
        pipeline(step, 2, devices="cpu:0-1", micro=2),
    ):
        fused = pu.check(pu.fuse(graph))
        verify(fused)
        assert 2 <= len(fused_ops(fused)) < len(fused.ops)
        assert_same(graph, fused)


def test_only_the_devices_named_are_fused() -> None:
    fused = pu.fuse(replicate(made("mlp"), "cpu:0-1"), devices=["cpu:1"])
    places = {fused.ops[name].location.device for name in fused_ops(fused)}
    assert places == {"cpu:1"}


def test_a_fused_op_reads_back_and_writes_states_over() -> None:
    step = made("mlp")
    fused = pu.fuse(step)
    assert from_yaml(to_yaml(fused)) == fused
    (op,) = (fused.ops[name] for name in fused_ops(fused))
    carried = {
        (op.outputs[result], op.inputs[place])
        for result, place in op.attributes["over"]  # type: ignore[union-attr,misc]
    }
    wanted = {
        (state.next, state.read)
        for state in step.states.values()
        if state.next != state.read and state.read != "iteration"
    }
    assert carried == wanted
    assert set(body_of(op).inputs) == set(op.inputs)


def test_the_body_of_an_op_that_was_moved_is_where_the_op_is() -> None:
    fused = pu.fuse(pu.to_device(made("mlp"), "cuda:0"))
    (op,) = (fused.ops[name] for name in fused_ops(fused))
    assert {member.location for member in body_of(op).ops.values()} == {op.location}
    assert op.location.device == "cuda:0"


@pytest.mark.parametrize("devices", ["cpu:0", "cpu:0-1"])
def test_compiled_steps_agree_with_those_op_by_op(
    devices: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = replicate(made("mlp"), devices) if "-" in devices else made("mlp")
    losses, states = trained(step)
    found, values = trained(pu.fuse(step), compiled=True)
    said = [record for record in caplog.records if record.name == "purine"]
    assert not [record for record in said if record.levelname == "WARNING"]
    assert found == pytest.approx(losses, rel=1e-5)
    for name, value in states.items():
        torch.testing.assert_close(values[name], value, rtol=1e-4, atol=1e-6)


def test_gradients_leave_by_buckets_before_the_backward_is_over() -> None:
    step = replicate(made(), "cpu:0-1")
    whole, parts = pu.fuse(step), pu.check(pu.fuse(step, bucket=100_000))
    assert_same(whole, parts)

    def senders(graph: Graph, device: str) -> list[str]:
        """The fused ops of a device that make gradients, in the order in which they run."""
        ops = (graph.ops[name] for name in graph.order)
        mine = [op for op in ops if op.kind == "Fused" and op.location.device == device]
        return [op.name for op in mine if any("grad/" in blob for blob in op.outputs)]

    for device in ("cpu:0", "cpu:1"):
        assert len(senders(parts, device)) > len(senders(whole, device)) + 1
    copied = {op.inputs[0] for op in parts.ops.values() if op.kind == "Copy"}
    sending = [
        name for name in senders(parts, "cpu:1") if copied.intersection(parts.ops[name].outputs)
    ]
    assert len(sending) > 1


def test_on_gpus_averages_and_updates_are_fused_too() -> None:
    fused = pu.fuse(replicate(made(), "cuda:0-1"))
    kinds = {op.kind for op in fused.ops.values() if op.location.device.startswith("cuda")}
    assert "MomentumUpdate" not in kinds
    assert {"Copy", "Fused"} <= kinds
    bodies = [fused.ops[name] for name in fused_ops(fused) if fused.ops[name].lane == "inbound"]
    updated = [op.kind for body in bodies for op in body_of(body).ops.values()]
    trained = [name for name, state in made().states.items() if state.trainable]
    assert updated.count("MomentumUpdate") == len(trained)


@pytest.mark.parametrize("option", ["pieces", "bucket"])
def test_no_pieces_are_an_error(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is 0"):
        pu.fuse(made("mlp"), **{option: 0})  # type: ignore[arg-type]


def test_what_is_fused_cannot_be_cut_any_more() -> None:
    fused = pu.fuse(made("mlp"))
    for transform in (
        lambda: replicate(fused, "cpu:0-1"),
        lambda: pipeline(fused, 2, devices="cpu:0-1", micro=2),
        lambda: pu.recompute(fused, 2),
    ):
        with pytest.raises(GraphError, match="has a fused op, 'fused/0'") as found:
            transform()
        assert "use fuse last" in str(found.value)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("MomentumUpdate", {"momentum": 0.9}),
        ("MomentumUpdate", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("MomentumUpdate", {"momentum": 0.9, "lr_in_momentum": True, "lr_mult": 2.0}),
        (
            "MomentumUpdate",
            {"momentum": 0.9, "lr_in_momentum": True, "nesterov": True, "weight_decay": 0.1},
        ),
        ("AdamUpdate", {}),
        ("AdamUpdate", {"weight_decay": 0.1, "correct_eps": True}),
        ("AdamUpdate", {"weight_decay": 0.1, "decoupled": True, "lr_mult": 0.5, "beta1": 0.8}),
    ],
)
def test_updates_of_many_parameters_are_those_of_one_each(
    kind: str, settings: dict[str, object]
) -> None:
    found = kinds()[kind]
    assert found.function is not None
    assert found.variants.each is not None
    clock = [torch.tensor(0.1).double(), torch.tensor(3)][: 2 if kind == "AdamUpdate" else 1]
    width = len(found.inputs) - len(clock)
    rows = [[torch.rand(size, dtype=torch.float64) for _ in range(width)] for size in (3, 5)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    made = found.variants.each(*columns, *([item, item] for item in clock), **settings)
    for row, values in zip(rows, zip(*made, strict=True), strict=True):
        torch.testing.assert_close(values, found.function(*row, *clock, **settings))


def test_what_cannot_be_compiled_runs_op_by_op(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("of the compiler")

    monkeypatch.setattr("purine.compile.fused.compile_function", fails)
    step = made("mlp")
    losses, _ = trained(pu.fuse(step), compiled=True)
    assert losses == pytest.approx(trained(step)[0], rel=1e-5)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == "fused/0 is not compiled and runs op by op: AssertionError: of the compiler"
