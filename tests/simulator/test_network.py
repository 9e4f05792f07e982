"""Links that flows share: rates by hand, and that nothing is lost or over-used."""

from __future__ import annotations

import random

import pytest

from purine.simulator.network import Flows, Link, Network, max_min


def test_one_flow_has_the_slowest_link_of_its_way() -> None:
    flows = Flows()
    flows.begin(0.0, [Link("a", 1e9), Link("b", 0.5e9)], 100)
    assert flows.settle(0.0) == {0: 200.0}


def test_a_flow_without_links_takes_no_time() -> None:
    flows = Flows()
    flows.begin(0.0, [], 100)
    flows.begin(0.0, [], 100)
    assert flows.settle(5.0) == {0: 5.0, 1: 5.0}


def test_two_flows_share_a_link_and_the_second_speeds_up() -> None:
    flows, link = Flows(), Link("a", 1e9)
    flows.begin(0.0, [link], 100)
    assert flows.settle(0.0) == {0: 100.0}
    flows.begin(50.0, [link], 100)
    # Each has half: 50 bytes are left of the first.
    assert flows.settle(50.0) == {0: 150.0, 1: 250.0}
    flows.end(0)
    assert flows.settle(150.0) == {1: 200.0}
    assert flows.carried == {"a": 200.0}


def test_both_directions_are_links_of_their_own() -> None:
    network = Network.switched(["a", "b"], Link("", 1e9, 2e-6))
    flows = Flows()
    flows.begin(0.0, network.route("a", "b"), 1000)
    flows.begin(0.0, network.route("b", "a"), 1000)
    assert flows.settle(0.0) == {0: 1000.0, 1: 1000.0}
    assert network.latency("a", "b") == pytest.approx(2e-6)


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_fair(seed: int) -> None:
    """No link is over-used, and each flow has a full link on which nobody is faster."""
    draw = random.Random(seed)
    rates = {f"l{k}": draw.uniform(1, 10) for k in range(6)}
    routes = {f: draw.sample(sorted(rates), draw.randint(1, 3)) for f in range(9)}
    found = max_min(routes, rates)
    used = {name: sum(found[f] for f, ls in routes.items() if name in ls) for name in rates}
    assert all(used[name] <= rates[name] * (1 + 1e-9) for name in rates)
    for flow, links in routes.items():
        assert any(
            used[name] >= rates[name] * (1 - 1e-9)
            and found[flow] >= max(found[f] for f, ls in routes.items() if name in ls) - 1e-9
            for name in links
        )


def test_a_link_without_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="rate above zero"):
        Link("a", 0.0)
