"""Collectives between hosts: what they stand for, and one order for all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Location
from purine.graph.verify import no_cycle
from purine.lowering import lower, options_for
from purine.lowering.host_rules import problems_of_parts
from purine.lowering.hosts import hosts_of, part_of
from purine.lowering.together import (
    BROADCAST,
    REDUCE,
    Collective,
    Group,
    collective_of,
    collectives_of,
    groups_of,
    in_depth,
)
from purine.parallel import compress, replicate
from purine.placement.place import to_devices


def native(devices: str = "host0-2:cpu:0", unit: int = 1 << 12) -> Graph:
    net = pu.solvers.clip_by_norm(pu.backward(pu.zoo.mlp(batch=4, hidden=(8,))), 0.5)
    step = pu.solvers.sgd(net, lr=0.1, momentum=0.9)
    return replicate(step, devices, topology="native", unit=unit, bucket=1 << 10)


def calls(part: Graph) -> list[Collective]:
    found = [collective_of(op) for op in part.ops.values()]
    return sorted((one for one in found if one is not None), key=lambda one: one.number)


def test_every_host_makes_the_same_collectives_in_the_same_order() -> None:
    step = native()
    for lowered in (False, True):
        orders = set()
        for host in hosts_of(step):
            part = part_of(step, host)
            if lowered:
                part = lower(step, replace(options_for(step), host=host)).graph
            position = {name: index for index, name in enumerate(part.order)}
            for kind in (REDUCE, BROADCAST):
                own = [one for one in calls(part) if one.kind == kind]
                places = [position[one.op] for one in own]
                assert places == sorted(places), "edges of the graph fix the order"
                assert [one.number for one in own] == list(range(len(own)))
                orders.add((kind, tuple(one.root for one in own)))
        assert len(orders) == 2


def test_collectives_take_the_place_of_all_that_gradients_and_parameters_need() -> None:
    step = native()
    for host in hosts_of(step):
        part = part_of(step, host)
        for op in part.ops.values():
            if op.kind in ("Put", "Arrival"):
                for name in (*op.inputs, *op.outputs):
                    assert part.blobs[name].shape == (), "only scalars are put"
        own = calls(part)
        reduced = [one for one in own if one.kind == REDUCE]
        for one in reduced:
            assert bool(part.ops[one.op].outputs) == (one.root == host)
        trainable = {name for name, state in step.states.items() if state.trainable}
        assert len(own) - len(reduced) == len(trainable)


def test_the_order_does_not_depend_on_how_a_step_was_built() -> None:
    step = native()
    turned = replace(
        step,
        ops=dict(reversed(step.ops.items())),
        blobs=dict(reversed(step.blobs.items())),
        states=dict(reversed(step.states.items())),
    )
    assert turned.digest == step.digest
    assert collectives_of(turned) == collectives_of(step)
    assert in_depth(turned) == in_depth(step)


def test_weights_are_the_shares_of_hosts() -> None:
    sizes = (5, 1, 2)
    steps = [pu.solvers.sgd(pu.backward(pu.zoo.mlp(n, hidden=(4,))), lr=0.1) for n in sizes]
    step = replicate(steps, "host0-2:cpu:0", topology="native")
    for host, size in zip(hosts_of(step), sizes, strict=True):
        reduces = [op for op in part_of(step, host).ops.values() if op.kind == REDUCE]
        assert reduces
        assert {op.attributes["weight"] for op in reduces} == {size / 8}


def swapped(part: Graph) -> Graph:
    """A part with two reductions in the other order."""
    builder = Builder(part)
    one, other = (part.ops[one.op] for one in calls(part) if one.kind == REDUCE and one.number < 2)
    for op, number in ((one, 1), (other, 0)):
        builder.ops[op.name] = replace(op, attributes={**op.attributes, "number": number})
    builder.control -= {(one.name, other.name)}
    builder.control |= {(other.name, one.name)}
    return builder.graph()


def unordered(part: Graph) -> Graph:
    builder = Builder(part)
    builder.control = {edge for edge in part.control if part.ops[edge[0]].kind != BROADCAST}
    return builder.graph()


def test_hosts_of_different_orders_are_refused() -> None:
    step = native()
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    assert not list(problems_of_parts(parts))
    errors = problems_of_parts({**parts, "host1": swapped(parts["host1"])})
    assert any("differ in collective 0 of HostReduce" in str(error) for error in errors)
    errors = problems_of_parts({**parts, "host1": unordered(parts["host1"])})
    assert any("nothing orders collectives" in str(error) for error in errors)


def test_a_cycle_through_a_collective_is_found() -> None:
    """One host sends a parameter after it has reduced a gradient for which another needs it."""
    step = native()
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    root = max(collectives_of(step), key=lambda one: (one.kind == BROADCAST, one.number)).root
    last = [one.op for one in calls(parts[root]) if one.kind == BROADCAST][-1]
    first = next(one.op for one in calls(parts[root]) if one.kind == REDUCE)
    builder = Builder(parts[root])
    builder.control = {edge for edge in builder.control if edge[0] != last}
    builder.control.add((first, last))
    alone = builder.graph()
    assert not list(no_cycle(alone, None))
    errors = list(problems_of_parts({**parts, root: alone}))
    assert any("hosts wait for each other in a cycle" in str(error) for error in errors)


def test_a_step_as_a_whole_keeps_its_reductions() -> None:
    """Its memory and its time are estimated so."""
    step = native()
    kinds = [op.kind for op in lower(step, options_for(step)).graph.ops.values()]
    assert kinds.count("Reduce") == [op.kind for op in step.ops.values()].count("Reduce") > 0


def test_gpus_and_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match="no collective in common"):
        native("host0:cuda:0,host1:cpu:0")


@pytest.mark.parametrize("devices", ["host0-2:cuda:0", "host0-1:cuda:0-1", "host0-3:cuda:0"])
def test_collectives_of_gpus_have_one_order_over_kinds_and_groups(devices: str) -> None:
    step = native(devices)
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    assert not list(problems_of_parts(parts))
    whole = collectives_of(step)
    assert [one.number for one in whole] == list(range(len(whole)))
    assert [one.kind for one in whole] == sorted(one.kind for one in whole), "broadcasts are first"
    for host, part in parts.items():
        own = calls(part)
        assert [(one.number, one.kind, one.root) for one in own] == [
            (one.number, one.kind, one.root) for one in whole if host in one.hosts
        ]
        assert {part.ops[one.op].location.device for one in own} == {
            at.device for at in {op.location for op in step.ops.values()} if at.host == host
        } - {"cpu:0"}
        for before, after in pairwise(own):
            assert after.op in part.successors[before.op]


def test_a_group_of_gpus_has_one_communicator_for_each_set_of_gpus() -> None:
    groups = groups_of(native("host0-1:cuda:0-1"))
    assert groups == (
        Group("", ("host0", "host1"), ("cuda:0", "cuda:0")),
        Group("", ("host0", "host1"), ("cuda:1", "cuda:1")),
    )
    assert {group.kind for group in groups_of(native())} == {REDUCE, BROADCAST}


def test_a_reduction_with_two_parts_of_one_host_is_refused() -> None:
    step = native("cpu:0-2")
    at = {Location(device=f"cpu:{k}"): Location("host0", f"cpu:{k}") for k in (0, 1)}
    at[Location(device="cpu:2")] = Location("host1")
    spread = to_devices(step, at)
    with pytest.raises(GraphError, match="is no reduction between hosts"):
        part_of(spread, "host0")


def test_collectives_are_not_compressed() -> None:
    with pytest.raises(ConfigError, match="not compressed"):
        compress(native(), "fp16")


def test_a_host_builds_the_whole_step() -> None:
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4, hidden=(8,))), lr=0.1)
    whole = replicate(step, "host0-1:cpu:0", topology="native")
    assert replicate(step, "host0-1:cpu:0", topology="native", only="host1") == whole
