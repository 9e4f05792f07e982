"""Thousands of devices on paper: hosts that do the same are simulated once.

A scheme is expanded from one template: all its replicas do the same, each beside the others. So a
few replicas stand for all. Each of their hosts computes what it would compute among all, and sends
as many bytes: what goes between replicas is weighted, since a host that reduces with n others sends
1 - 1/n of its gradients and parameters. Routes that are longer among all have their latency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from purine.analysis.infer import with_batch
from purine.job.candidates import Candidate
from purine.job.plan import JobPlan
from purine.placement.devices import as_locations
from purine.simulator.machine import Machine
from purine.simulator.prediction import Prediction

__all__ = ["Fold", "fold_of", "foresee_folded", "smaller"]

_DEVICES = 64
"""Devices of the replicas that stand for all, at most, if two of them fit."""
_GROUPS = 8
"""Hosts, or sets of hosts with a replica each, that stand for all."""
_BRANCHES = {"sharded": 16, "server": 16, "tree": 2, "ring": 1}


@dataclass(frozen=True)
class Fold:
    """What stands for all replicas: `kept` of `data`, on hosts in `groups` of `of` sets.

    A set is a host with some replicas, or the hosts of one replica. `hosts` are those of a set.
    """

    data: int
    kept: int
    of: int
    groups: int
    hosts: int
    topology: str
    unit: int

    @property
    def weight(self) -> float:
        """By how much a set sends more among all than among those that are kept."""
        return (1 - 1 / self.of) / (1 - 1 / self.groups)

    @property
    def hops(self) -> int:
        """How many more hosts a gradient passes on its way."""
        return _depth(self.of, self.topology) - _depth(self.groups, self.topology)

    def machine(self, machine: Machine, names: list[str]) -> Machine:
        """The machine on which the sets that are kept have the traffic and the ways of all."""
        set_of = {name: number // self.hosts for number, name in enumerate(names)}
        network, weights = machine.network, dict(machine.weights)
        wire = machine.wire
        for source, target in product(names, names):
            if set_of[source] == set_of[target]:
                continue
            weights[source, target] = self.weight
            if self.hops:
                route = network.route(source, target)
                slowest = min(link.rate for link in route)
                hop = wire.put + wire.arrive + self.unit / slowest
                more = self.hops * (hop + network.latency(source, target))
                first, *rest = route
                longer = replace(first, latency=first.latency + more)
                network = network.with_route(source, target, (longer, *rest))
        return replace(machine, network=network, weights=weights)


def fold_of(candidate: Candidate) -> Fold | None:
    """Which of the replicas of a candidate stand for all; None where all are simulated."""
    scheme = candidate.scheme
    at = [location.host for location in as_locations(candidate.devices)]
    hosts = list(dict.fromkeys(at))
    each, replica = len(at) // len(hosts), scheme.pipeline * scheme.model
    even = at == [host for host in hosts for _ in range(each)]
    fits = each % replica == 0 or replica % each == 0
    if not (even and fits) or scheme.shares or scheme.asynchronous or scheme.topology == "native":
        return None
    together = max(1, each // replica)
    groups = max(2, min(_GROUPS, _DEVICES // (together * replica)))
    sets = scheme.data // together
    if sets <= groups:
        return None
    return Fold(
        scheme.data,
        groups * together,
        sets,
        groups,
        max(1, replica // each),
        scheme.topology,
        scheme.unit,
    )


def smaller(plan: JobPlan, candidate: Candidate, fold: Fold) -> tuple[JobPlan, Candidate]:
    """The plan and the candidate with the replicas that stand for all, and their batch."""
    assert plan.job.batch is not None
    batch = plan.job.batch // fold.data * fold.kept
    count = fold.kept * candidate.scheme.pipeline * candidate.scheme.model
    scheme = replace(candidate.scheme, data=fold.kept)
    job = replace(plan.job, batch=batch)
    return (
        replace(plan, job=job, net=with_batch(plan.net, batch)),
        replace(candidate, devices=candidate.devices[:count], scheme=scheme),
    )


def foresee_folded(
    plan: JobPlan,
    candidate: Candidate,
    build: Callable[[JobPlan, Candidate], JobPlan],
    foresee: Callable[..., Prediction],
) -> Prediction:
    """The prediction of a candidate, simulated by the replicas that stand for all."""
    fold = fold_of(candidate)
    if fold is None:
        return foresee(build(plan, candidate))
    own, kept = smaller(plan, candidate, fold)
    hosts = list(kept.hosts)
    return foresee(build(own, kept), shape=lambda machine: fold.machine(machine, hosts))


def _depth(sets: int, topology: str) -> int:
    """How many hosts a gradient passes at most, of those that hold it."""
    branches = _BRANCHES.get(topology, 16)
    if branches == 1:
        return sets - 1
    depth, reached = 0, 1
    while reached < sets:
        depth, reached = depth + 1, reached + branches ** (depth + 1)
    return depth
