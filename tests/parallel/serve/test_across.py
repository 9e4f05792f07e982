"""Workers on several hosts: who has what, and what crosses between them."""

from __future__ import annotations

from typing import Any

import pytest

import purine as pu
from purine.errors import ConfigError
from purine.graph import ROUND, Graph
from purine.lowering import Options, lower
from purine.lowering.hosts import channels_of, hosts_of
from purine.lowering.workers import alone, worker_parts
from purine.parallel import serve

SCHEMES: dict[str, dict[str, Any]] = {
    "downpour": {"push": 2},
    "easgd": {"every": 2},
    "local": {"every": 3},
    "diloco": {"every": 2},
}
HOSTS = "host0:cpu:0,host1:cpu:0,host2:cpu:0"


def step(lr: float = 0.1) -> Graph:
    return pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4, hidden=(8,))), lr=lr, momentum=0.5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("servers", [0, 1])
def test_a_worker_waits_for_nobody_and_its_courier_goes_between_two_hosts(
    scheme: str, servers: int
) -> None:
    graph = serve(step(), HOSTS, scheme, servers=servers, **SCHEMES[scheme])
    assert pu.graph.from_yaml(pu.graph.to_yaml(graph)) == graph
    parts, count = worker_parts(graph), 3 - servers
    assert list(parts) == list(range(2 * count))
    for number in range(count):
        host = f"host{number + servers}"
        assert hosts_of(parts[number]) == (host,)
        courier = parts[count + number]
        (called,) = (op for op in courier.ops.values() if op.kind == ROUND)
        assert (called.whole("of"), called.location.host) == (number, host)
        assert called.whole("pace") == next(iter(SCHEMES[scheme].values()))
        assert set(hosts_of(courier)) == {"host0", host}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_round_sends_each_parameter_once_in_each_direction(scheme: str) -> None:
    net = step()
    graph = serve(net, HOSTS, scheme, servers=1, **SCHEMES[scheme])
    courier = alone(worker_parts(graph)[2])
    size = sum(state.trainable for state in net.states.values())
    for host, peer in (("host0", "host1"), ("host1", "host0")):
        part = lower(courier, Options(host=host)).graph
        incoming, outgoing = channels_of(part, host)
        assert {channel.target for channel in outgoing} == {peer}
        assert len(incoming) == len(outgoing) == size


def test_only_the_server_has_what_all_share() -> None:
    graph = serve(step(), HOSTS, "downpour", servers=1, push=2)
    homes: dict[str, set[str]] = {}
    for name, state in graph.states.items():
        homes.setdefault(state.shared, set()).add(graph.blobs[name].location.host)
    assert homes["fc1/weight"] == homes["momentum/fc1/weight"] == {"host0"}
    assert homes["at0/fc1/weight"] == homes["at0/accrued/fc1/weight"] == {"host1"}


@pytest.mark.parametrize(
    ("scheme", "devices", "settings", "found"),
    [
        ("ssp", HOSTS, {}, "ssp"),
        ("gossip", HOSTS, {}, "gossip"),
        ("downpour", HOSTS, {"push": 2, "fetch": 3}, "fetch=3"),
        ("downpour", HOSTS, {"stale_rate": True}, "True"),
        ("downpour", HOSTS, {"servers": 2}, "2"),
        ("easgd", "host0:cpu:0-1,host1:cpu:0", {}, "cpu:0, cpu:1, cpu:0"),
        ("easgd", "host0:cpu:0,host1:cuda:0", {}, "cuda"),
    ],
)
def test_what_does_not_go_over_hosts_is_refused(
    scheme: str, devices: str, settings: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        serve(step(), devices, scheme, **settings)
    assert found in str(caught.value)
