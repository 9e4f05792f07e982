"""Compression between hosts: who reads what, the numbers, the bytes, and the residuals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.errors import CheckpointError, ConfigError
from purine.graph import Graph
from purine.graph.names import origin_of
from purine.kinds import Net, euclidean_loss, inner_product
from purine.kinds.compress import DecodeInt8, DecodeTopK, EncodeInt8, EncodeTopK
from purine.lowering.hosts import channels_of, hosts_of, part_of
from purine.parallel import compress
from purine.parallel.compress import METHODS
from purine.transports.inproc import InprocWorld
from tests.parallel.nets import float64
from tests.reference import following, run
from tests.runtime.test_hosts import on_hosts

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SCHEMES: dict[str, dict[str, object]] = {
    "sharded": {},
    "server": {"data": 4, "topology": "server"},
    "tree": {"data": 4, "topology": "tree"},
    "ring": {"data": 4, "topology": "ring"},
    "pipelines": {"data": 2, "pipeline": 2},
}
RATE = 0.1


def line() -> Graph:
    """A weight of 4 KiB on two hosts; the first owns it."""
    net = Net()
    x, target = net.input("x", (2, 64)), net.input("target", (2, 16))
    net.output(euclidean_loss(inner_product(x, 16, bias=False, name="fc"), target, name="loss"))
    step = pu.solvers.sgd(pu.backward(net.graph()), lr=RATE)
    return pu.parallel.replicate(step, "host0-1:cpu:0")


def feeds(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = {"x": 64, "target": 16}
    return {
        f"replica{k}/{name}": torch.randn(2, size, generator=generator)
        for k in range(2)
        for name, size in sizes.items()
    }


def gradient(weight: Tensor, fed: Mapping[str, Tensor], replica: int) -> Tensor:
    """The gradient of a replica, by torch alone."""
    weight = weight.clone().requires_grad_()
    x, target = fed[f"replica{replica}/x"], fed[f"replica{replica}/target"]
    loss = (x @ weight.t() - target).square().sum() / 4
    (found,) = torch.autograd.grad(loss, weight)
    return found


@cache
def large(scheme: str = "sharded") -> Graph:
    def solver(net: Graph) -> Graph:
        return pu.solvers.sgd(net, lr=0.01, momentum=0.9)

    devices = "host0-1:cpu:0-1"
    return pu.compose(pu.zoo.lenet(batch=8), solver=solver, devices=devices, **SCHEMES[scheme])


@pytest.mark.parametrize("method", HALVES)
def test_casts_give_the_numbers_of_a_computation_by_hand(method: str) -> None:
    step, dtype = compress(line(), method), HALVES[method]
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    states = {"fc/weight": weight}
    for number in range(5):
        fed = feeds(number)
        states = following(step, run(step, fed, states))
        rounded = weight.to(dtype).float()
        sent = gradient(rounded, fed, 1).to(dtype).float()
        weight = weight - RATE * (gradient(rounded, fed, 0) + sent) / 2
        torch.testing.assert_close(states["fc/weight"], weight, rtol=1e-6, atol=1e-6)
    assert not torch.equal(weight, weight.to(dtype).float()), "the owner keeps float32"


@pytest.mark.parametrize("returned", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["int8", "topk"])
def test_error_feedback_gives_the_numbers_of_a_computation_by_hand(
    method: str, returned: str
) -> None:
    step = compress(line(), method, parameters=returned, share=0.1)
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    states, residual = {"fc/weight": weight}, torch.zeros(16, 64)
    for number in range(5):
        fed = feeds(number)
        states = following(step, run(step, fed, states))
        read = weight.bfloat16().float() if returned == "bf16" else weight
        whole = gradient(read, fed, 1)
        if method == "int8":
            codes, scales, residual = EncodeInt8(whole, residual)
            sent = DecodeInt8(codes, scales)
        else:
            values, places, residual = EncodeTopK(whole, residual, share=0.1)
            sent = DecodeTopK(values, places, shape=(16, 64))
        weight = weight - RATE * (gradient(read, fed, 0) + sent) / 2
        torch.testing.assert_close(states["fc/weight"], weight, rtol=1e-5, atol=1e-5)
    found = states["residual/replica1/grad/fc/weight"]
    torch.testing.assert_close(found, residual, rtol=1e-4, atol=1e-4)
    assert found.any()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", METHODS)
def test_no_large_gradient_goes_between_hosts_in_float32(scheme: str, method: str) -> None:
    """And with casts no parameter does. Activations of pipelines do."""
    step = compress(large(scheme), method)
    pu.check(step)
    for op in step.ops.values():
        if op.kind != "Copy":
            continue
        source, target = step.blobs[op.inputs[0]], step.blobs[op.outputs[0]]
        if source.location.host == target.location.host or source.dtype != "float32":
            continue
        if pu.analysis.infer.size_in_bytes(source) < 4096:
            continue
        readers = {origin_of(reader).role for reader in step.consumers[target.name]}
        assert "reduce" not in readers, op
        if method in HALVES:
            assert source.name not in step.states, op


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", HALVES)
def test_all_replicas_read_the_rounded_parameter(scheme: str, method: str) -> None:
    """On the owner's host too: the exact value has an encoder and updates as its readers."""
    before, step = large(scheme), compress(large(scheme), method)
    rounded = [name.removesuffix("/rounded") for name in step.blobs if name.endswith("/rounded")]
    assert rounded
    for name in rounded:
        readers = step.consumers[name]
        assert {op.kind for op in readers if origin_of(op).role != "update"} == {"EncodeCast"}
        assert [op for op in before.consumers[name] if origin_of(op).role == "update"] == [
            op for op in readers if origin_of(op).role == "update"
        ]


def test_what_is_small_or_not_float32_stays() -> None:
    step = pu.compose(float64(pu.zoo.mlp(batch=8)), solver=pu.solvers.sgd, devices="host0-1:cpu:0")
    for method in METHODS:
        assert compress(step, method) == step
    small = compress(large(), "fp16")
    for name in ("conv1/weight", "conv2/bias"):
        assert not any(op.kind == "EncodeCast" for op in small.consumers[name])


@pytest.mark.parametrize("method", METHODS)
def test_a_second_time_changes_nothing(method: str) -> None:
    once = compress(large(), method)
    assert compress(once, method) == once


def sent_bytes(step: Graph) -> int:
    outgoing = [c for host in hosts_of(step) for c in channels_of(part_of(step, host), host)[1]]
    return sum(pu.analysis.infer.size_in_bytes(c.blob) for c in outgoing if c.blob is not None)


def test_bytes_on_the_wire() -> None:
    """Half with casts. With int8 gradients are a quarter of theirs, and parameters stay."""
    whole = sent_bytes(large())
    assert sent_bytes(compress(large(), "fp16")) == pytest.approx(whole / 2, rel=0.01)
    assert sent_bytes(compress(large(), "bf16")) == pytest.approx(whole / 2, rel=0.01)
    int8 = sent_bytes(compress(large(), "int8"))
    assert int8 == pytest.approx(whole / 2 + whole / 8, rel=0.02)
    both = sent_bytes(compress(large(), "int8", parameters="bf16"))
    assert both == pytest.approx(whole / 4 + whole / 8, rel=0.02)
    topk = sent_bytes(compress(large(), "topk", parameters="bf16"))
    assert topk == pytest.approx(whole / 4 + 0.02 * whole / 2, rel=0.02)


def test_between_devices_of_one_host() -> None:
    step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="cpu:0-1")
    found = compress(step, "fp16", between="devices")
    assert pu.parallel.bytes_moved(found) == pytest.approx(
        pu.parallel.bytes_moved(step) / 2, rel=0.01
    )


WRONG = {
    "one host": (lambda: compress(line_on("cpu:0-1"), "fp16"), "the step is on one host"),
    "one device": (
        lambda: compress(line_on("cpu:0"), "fp16", between="devices"),
        "the step is on one device",
    ),
    "another method": (lambda: compress(line(), "fp8"), "no method of compression 'fp8'"),
    "other parameters": (lambda: compress(line(), "int8", parameters="int8"), "'int8'"),
    "no share": (lambda: compress(line(), "topk", share=0.0), "share is 0.0"),
    "more than all": (lambda: compress(line(), "topk", share=1.5), "share is 1.5"),
    "a negative block": (lambda: compress(line(), "int8", block=-1), "block is -1"),
}


def line_on(devices: str) -> Graph:
    return pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices=devices)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        call()


def data() -> pu.data.DataSet:
    """Images of four classes that a net can learn to tell apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(160) % 4
    centres = torch.randn(4, 1, 28, 28, generator=generator)
    values = centres[labels] + 0.5 * torch.randn(160, 1, 28, 28, generator=generator)
    source = pu.data.ArraySource(values.numpy(), labels.numpy(), classes=10)
    return pu.data.DataSet("clusters", source)


def trained(step: Graph, steps: int, resumed: Path | None = None, saved: Path | None = None):
    """The losses and the states of a run on two hosts, which are threads."""

    def work(world: InprocWorld) -> tuple[list[float], dict[str, Tensor]]:
        with pu.Run(step, data=data(), seed=3, threads=1, share_cores=True, world=world) as run:
            if resumed is not None:
                run.load(resumed)
            losses = [result.loss for result in run.steps(steps)]
            if saved is not None:
                run.save(saved)
            return losses, dict(run.states())

    one, other = on_hosts(work)
    assert isinstance(one, tuple), one
    assert isinstance(other, tuple), other
    assert one[0] == other[0]
    return one


@cache
def learning() -> Graph:
    def solver(net: Graph) -> Graph:
        return pu.solvers.sgd(net, lr=0.005, momentum=0.9)

    return pu.compose(pu.zoo.mlp(batch=8), solver=solver, devices="host0-1:cpu:0")


@cache
def uncompressed() -> list[float]:
    losses, _ = trained(learning(), 20)
    assert losses[-1] < 0.01 * losses[0]
    return losses


@pytest.mark.parametrize("method", METHODS)
def test_training_comes_near_what_it_is_without(method: str) -> None:
    """At every iteration; a twentieth of each gradient is later by a few iterations."""
    step = compress(learning(), method, share=0.05)
    losses, _ = trained(step, 20)
    tolerance = 0.3 if method == "topk" else 0.01
    for found, expected in zip(losses, uncompressed(), strict=True):
        assert abs(found - expected) < tolerance
    assert losses[-1] < 0.01 * losses[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_runs_on_two_hosts(scheme: str) -> None:
    exact, _ = trained(large(scheme), 4)
    losses, _ = trained(compress(large(scheme), "int8", parameters="bf16"), 4)
    for found, expected in zip(losses, exact, strict=True):
        assert abs(found - expected) < 0.05


@pytest.mark.parametrize("method", ["bf16", "topk"])
def test_a_resumed_run_goes_on_with_its_residuals(method: str, tmp_path: Path) -> None:
    step = compress(large(), method)
    losses, states = trained(step, 6)
    first, half = trained(step, 3, saved=tmp_path)
    rest, found = trained(step, 3, resumed=tmp_path)
    assert [*first, *rest] == losses
    assert all(torch.equal(value, found[name]) for name, value in states.items())
    residuals = [value for name, value in half.items() if name.startswith("residual/")]
    assert bool(residuals) == (method == "topk")
    assert all(value.any() for value in residuals)


def test_a_checkpoint_with_residuals_is_of_its_devices(tmp_path: Path) -> None:
    trained(compress(large(), "topk"), 1, saved=tmp_path)
    alone = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=8)), lr=0.01, momentum=0.9)
    with pu.Run(alone, data=data(), threads=1) as run, pytest.raises(CheckpointError) as caught:
        run.load(tmp_path)
    assert "residual/" in str(caught.value)
