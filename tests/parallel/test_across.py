"""Replicas on several hosts: routes, units, and the graph that one host needs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import purine as pu
from purine.analysis.infer import size_in_bytes
from purine.graph import Graph, Op
from purine.lowering.host_rules import problems_of_parts
from purine.lowering.hosts import hosts_of, part_of
from purine.parallel import replicate
from purine.parallel.routes import FAN_IN, Route
from tests.parallel.nets import lenet

TOPOLOGIES = ("sharded", "server", "tree", "ring")


@pytest.mark.parametrize("form", ["star", "tree", "path"])
@pytest.mark.parametrize("count", [2, 3, 7, 12, 17, 18, 64, 101])
def test_a_route_reaches_every_host_once(form: str, count: int) -> None:
    hosts = tuple(f"host{k}" for k in range(count))
    route = Route(hosts, {host: k for k, host in enumerate(hosts)}, hosts[1], form)  # type: ignore[arg-type]
    reached = [child for number in range(count) for child in route.children(number)]
    assert sorted(reached) == list(range(1, count))
    assert all(child in route.children(route.parent(child)) for child in reached)
    assert sorted(map(route.host, range(count))) == sorted(hosts)
    assert all(route.number(route.host(number)) == number for number in range(count))
    assert max(len(route.children(number)) for number in range(count)) <= FAN_IN


def test_up_to_17_hosts_send_straight_to_the_owner() -> None:
    def children(count: int) -> list[int]:
        hosts = tuple(f"host{k}" for k in range(count))
        route = Route(hosts, {host: k for k, host in enumerate(hosts)}, "host0", "star")
        assert route.is_flat == (count <= 17)
        return route.children(0)

    assert children(17) == list(range(1, 17))
    assert children(18) == list(range(1, 17))


def test_owners_and_the_hosts_that_pass_on_are_different_hosts() -> None:
    """No host of many has children in the trees of many units: their roots are neighbours."""
    hosts = tuple(f"host{k}" for k in range(1000))
    places = {host: k for k, host in enumerate(hosts)}
    trees = [Route(hosts, places, root, "star") for root in hosts[:160]]
    received = [sum(len(tree.children(tree.number(host))) for tree in trees) for host in hosts]
    assert sum(received) == 160 * 999
    assert max(received) <= 2 * 160


def plain(op: Op) -> Op:
    """An op without the order in which puts are sent, which is a number of its own graph."""
    settings = {key: value for key, value in op.attributes.items() if key != "deadline"}
    return replace(op, attributes=settings)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    ("devices", "method"),
    [
        ("host0-3:cpu:0-1", None),
        ("host0-4:cpu:0", None),
        ("host0-4:cpu:0", "fp16"),
        ("host0-19:cpu:0", None),
    ],
)
def test_a_host_builds_its_own_part_alone(topology: str, devices: str, method: str | None) -> None:
    def built(only: str | None) -> Graph:
        unit = 1 << 19 if "host0-19" in devices else 1 << 16
        step = replicate(lenet32(), devices, topology=topology, unit=unit, only=only)
        return step if method is None else pu.parallel.compress(step, method)

    whole = built(None)
    parts = {}
    for host in hosts_of(whole):
        view = built(host)
        assert len(view.ops) < len(whole.ops)
        expected, found = part_of(whole, host), part_of(view, host)
        parts[host] = found
        assert found.blobs == expected.blobs
        assert found.states == expected.states
        assert found.outputs == expected.outputs
        assert found.ops.keys() == expected.ops.keys()
        assert all(plain(op) == plain(expected.ops[name]) for name, op in found.ops.items())
    assert not list(problems_of_parts(parts))


@cache
def lenet32() -> Graph:
    net = pu.backward(pu.zoo.lenet(batch=8))
    return pu.solvers.sgd(pu.solvers.clip_by_norm(net, 1.0), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("topology", ["sharded", "tree", "ring"])
def test_the_part_of_a_host_does_not_grow_with_the_number_of_hosts(topology: str) -> None:
    def size(count: int, host: str) -> int:
        devices = f"host0-{count - 1}:cpu:0"
        view = replicate(lenet32(), devices, topology=topology, unit=1 << 16, only=host)
        return len(part_of(view, host).ops)

    few = size(4, "host2")
    for host in ("host0", "host2", "host20", "host128"):
        assert size(256, host) <= 2 * few


def test_a_value_goes_to_another_host_once() -> None:
    step = replicate(lenet(4), "host0-1:cpu:0-3", unit=0)
    crossing = [
        op
        for op in step.ops.values()
        if op.kind == "Copy" and step.blobs[op.inputs[0]].location.host != op.location.host
    ]
    parameters = [op for op in crossing if op.inputs[0] in step.states]
    assert len(parameters) == len({(op.inputs[0], op.location.host) for op in parameters})
    gradients = [
        op for op in crossing if "grad/" in op.inputs[0] and step.blobs[op.inputs[0]].shape
    ]
    trainable = [name for name, state in step.states.items() if state.trainable]
    assert len(gradients) == len(trainable), "each host sends one mean of its four replicas"


def test_units_alternate_between_hosts() -> None:
    step = replicate(lenet(4), "host0-1:cpu:0", unit=1 << 16)
    owners = [
        step.blobs[name].location.host for name in step.states if name.startswith("fc1/weight/unit")
    ]
    assert len(owners) > 10
    assert all(len(set(owners[k : k + 3])) == 2 for k in range(len(owners) - 2))
    held = dict.fromkeys(("host0", "host1"), 0)
    for name, state in step.states.items():
        if state.trainable:
            held[step.blobs[name].location.host] += size_in_bytes(step.blobs[name])
    assert abs(held["host0"] - held["host1"]) < 0.05 * held["host0"]


def test_a_host_that_is_not_there_is_refused() -> None:
    with pytest.raises(pu.PurineError, match="host7"):
        replicate(lenet(4), "host0-1:cpu:0", only="host7")
