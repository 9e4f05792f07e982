"""Micro-batches that go to whichever device is free: the bits of fixed devices."""

from __future__ import annotations

import threading

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Location, from_yaml, to_yaml
from purine.graph.nodes import floats
from purine.kinds import Net, batch_norm, inner_product, softmax_loss
from purine.lowering import lower
from purine.parallel import Scheme, accumulate, floating, replicate
from purine.runtime.executor import Executor, Settings
from purine.runtime.program import compile_program
from tests.parallel.nets import float64, images, lenet, same_bits, trained


def normalised(batch: int) -> Graph:
    """A step of a net with batch norm, whose statistics are states."""
    net = Net()
    x, label = net.data((batch, 1, 28, 28))
    hidden = batch_norm(inner_product(x, 6, name="fc1"), name="norm")
    net.output(softmax_loss(inner_product(hidden, 10, name="fc2"), label, name="loss"))
    return pu.solvers.sgd(pu.backward(float64(net.graph())), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("make", [lenet, normalised])
@pytest.mark.parametrize("devices", ["cpu:0", "cpu:0-2"])
def test_the_bits_are_those_of_fixed_devices(make, devices):  # type: ignore[no-untyped-def]
    count = 1 + int(devices[-1])
    step = accumulate(make(2), 4, chained=False)
    fixed = replicate(step, devices) if count > 1 else step
    moving = floating(fixed)
    lanes = {op.lane for op in moving.ops.values() if floats(op.lane)}
    assert len(lanes) == 4 * count
    same_bits(trained(pu.check(moving)), trained(fixed))


def test_micro_batches_that_do_not_wait_for_each_other_have_mean_statistics() -> None:
    apart, chained = (accumulate(normalised(4), 2, chained=chained) for chained in (False, True))
    one, other = trained(apart), trained(chained)
    torch.testing.assert_close(one.losses, other.losses)
    for name, value in one.states.items():
        if "running" in name or "mean" in name or "variance" in name:
            assert not torch.equal(value, other.states[name]), name
        elif value.is_floating_point():
            torch.testing.assert_close(value, other.states[name])


def two_parts(home: str = "cpu:0") -> Graph:
    """Two ops of different lanes that float, both at home at one device; another device has one."""
    b = Builder()
    for name, device, lane in (("a", home, 0), ("b", home, 1), ("c", "cpu:1", 2)):
        at = Location(device=device)
        b.blob(name, (1,), location=at)
        b.op(name, "aten.ones", [], [name], {"size": (1,)}, location=at, lane=f"float:{lane}")
    b.outputs = ["a", "b", "c"]
    return b.graph()


def test_a_device_that_is_held_up_leaves_its_work_to_others() -> None:
    """With fixed devices this would hang: `a` waits until `b`, of the same device, has run."""
    ran = threading.Event()

    def a() -> torch.Tensor:
        assert ran.wait(60)
        return torch.ones(1)

    def b() -> torch.Tensor:
        ran.set()
        return torch.ones(1)

    program = compile_program(lower(two_parts()), {"a": a, "b": b})
    cores = {"cpu:0": (0,), "cpu:1": (0,)}
    with Executor(program, states={}, settings=Settings(cores=cores, record=True)) as executor:
        executor.extend(1)
        assert executor.wait(0)["b"].item() == 1.0
        ran_at = {event.op: event.location for event in executor.trace().events}
        assert ran_at["a"] != ran_at["b"]


def test_lanes_that_float_are_part_of_the_text() -> None:
    graph = two_parts()
    assert from_yaml(to_yaml(graph)) == graph
    assert "lane float:1" in pu.graph.to_text(graph)


def test_a_lane_that_waits_for_another_is_refused() -> None:
    b = Builder(two_parts())
    b.control.add(("a", "b"))
    with pytest.raises(GraphError, match="op 'b' on lane 'float:1' waits for op 'a'"):
        pu.check(b.graph())
    with pytest.raises(GraphError, match="CPU devices for lanes that float"):
        pu.check(two_parts("cuda:0"))


def test_replicas_that_normalise_together_cannot_float() -> None:
    step = replicate(normalised(2), "cpu:0-1", batch_norm="synchronised")
    with pytest.raises(ConfigError, match=r"waits for op .* of another micro-batch"):
        floating(step)
    with pytest.raises(ConfigError, match="no op belongs to a part"):
        floating(normalised(2))


def test_a_scheme_says_that_micro_batches_float() -> None:
    scheme = Scheme.parse("data=2,micro=4,floating=true")
    assert str(scheme) == "data=2,floating=true,micro=4"
    with pytest.raises(ConfigError, match="parts of a net cannot float"):
        Scheme.parse("pipeline=2,floating=true")
    step = pu.compose(
        float64(pu.zoo.mlp(batch=16)),
        solver=lambda graph: pu.solvers.sgd(graph, lr=0.1),
        devices="cpu:0-1",
        scheme=scheme,
    )
    assert {op.lane for op in step.ops.values() if floats(op.lane)} == {
        f"float:{number}" for number in range(8)
    }
    with pu.Run(step, data=images(), share_cores=True) as run:
        assert all(result.loss > 0 for result in run.steps(2))


def test_packed_filters_make_no_lane_wait_for_another() -> None:
    """Three micro-batches of a device read the filters that one op packs."""
    net = pu.zoo.lenet(batch=8)
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    fixed = pu.layout(replicate(accumulate(step, 3, chained=False), "cpu:0-1"), "channels-last")
    moving = lower(floating(fixed), after="packing").graph
    packs = [op for op in moving.ops.values() if op.kind == "PackFilters"]
    assert packs
    assert not any(floats(op.lane) for op in packs)
