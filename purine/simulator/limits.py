"""What limits a step, and what would help: the largest loss of a prediction, and the second one.

A remedy is not a guess: the step is simulated again with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from purine.simulator.machine import Machine
from purine.simulator.network import Link, Network
from purine.simulator.prediction import Prediction
from purine.trace.hosts import between_hosts

__all__ = ["faster_links", "limit", "rate_text"]

_LITTLE = 0.05
"""A share of the time below which nothing is said to be lost."""


def limit(found: Prediction, machine: Machine, again: Callable[[Machine], float]) -> str:
    """One sentence about what limits a step; `again` predicts its seconds on another machine."""
    losses = {"exposed": found.exposed, "bubble": found.bubble, "other": found.other}
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] < _LITTLE:
        return f"compute limits the step: devices are busy {found.busy:.0%} of the time, so " + (
            "only more or faster devices would help"
        )
    if found.pairs and (worst == "exposed" or found.bubble + found.exposed > found.other):
        text = _links(found, machine, again)
        if text:
            return text
    device = max(found.devices, key=lambda at: sum(found.devices[at][1:3]), default="")
    if worst == "bubble":
        share = found.devices[device][2]
        return (
            f"{_short(device)} waits {share:.0%} for compute of other devices: more micro-batches, "
            "another schedule or more even stages would help, at most "
            f"{1 / max(0.01, 1 - found.bubble):.2f}x"
        )
    if worst == "exposed":
        share = found.devices[device][1]
        return f"{_short(device)} waits {share:.0%} for transfers and reductions within its host"
    free = again(replace(machine, dispatch=0.0, hop=0.0))
    return (
        f"{found.other:.0%} of the time goes to dispatch and waits for the next iteration: "
        f"larger batches would help, at most {found.seconds / free:.2f}x"
    )


def _links(found: Prediction, machine: Machine, again: Callable[[Machine], float]) -> str:
    """The sentence for a device that waits for values of another host."""
    report = between_hosts(found.trace)
    waits: Counter[tuple[str, str, str]] = Counter()
    for device in report.devices:
        for awaited in device.peers:
            waits[device.location, awaited.host, awaited.blob] += awaited.waited
    by_pair: Counter[tuple[str, str]] = Counter()
    for (location, host, _), waited in waits.items():
        by_pair[location, host] += waited
    if not by_pair:
        return ""
    (location, host), waited = by_pair.most_common(1)[0]
    blob = max(
        (b for at, h, b in waits if (at, h) == (location, host)),
        key=lambda b: waits[location, host, b],
    )
    share = waited / max(1, report.wall)
    if share < _LITTLE:
        return ""
    faster = faster_links(machine.network, 10.0)
    gain = found.seconds / again(replace(machine, network=faster))
    rate = max((link.rate for link in faster.up.values()), default=0.0)
    text = f"{_short(location)} waits {share:.0%} for values of {host}, most for {blob}: "
    if gain < 1.02:
        return text + "faster links would not help, since that host computes meanwhile"
    return text + f"links of {rate_text(rate)} would give {gain:.2f}x"


def faster_links(network: Network, factor: float) -> Network:
    """A network whose links carry this many times as much."""

    def faster(link: Link) -> Link:
        return replace(link, rate=link.rate * factor)

    return Network(
        {name: faster(link) for name, link in network.up.items()},
        {name: faster(link) for name, link in network.down.items()},
        {pair: tuple(map(faster, links)) for pair, links in network.routes.items()},
    )


def rate_text(rate: float) -> str:
    """Bytes per second as a rate of a link, in the usual units.

    >>> rate_text(125e6), rate_text(25e6)
    ('1 Gbit/s', '200 Mbit/s')
    """
    bits = rate * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _short(location: str) -> str:
    return location.removeprefix("host 127.0.0.1, ").removeprefix("host ").replace(", ", ":")
