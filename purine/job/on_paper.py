"""Predictions for thousands of devices: equal hosts are simulated once.

A scheme is expanded from one template, so all its replicas behave alike, and a few replicas can
represent all. Each of their hosts computes what it would compute among all, and sends as many
bytes: traffic between replicas is weighted, since a host that reduces with n others sends 1 - 1/n
of its gradients and parameters. Routes that are longer among all get their latency.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import product

from purine.analysis.infer import size_in_bytes, with_batch
from purine.errors import ConfigError
from purine.job.candidates import Candidate, spans
from purine.job.plan import JobPlan
from purine.placement.devices import as_locations
from purine.simulator.machine import Machine
from purine.simulator.prediction import Prediction

__all__ = ["Fold", "fold_for", "fold_of", "foresee_folded", "refuse_many", "smaller"]

_DEVICES = 72
"""Devices of the replicas that stand for all, at most, if two of them fit."""
_CELLS = 256
"""Micro-batches on all these devices, at most."""
_MOST = 512
"""Devices that are simulated one by one where no replicas stand for all."""
_TREE = 33
"""Hosts with which the second level of a tree of 16 branches is as wide as it gets."""
_BRANCHES = {"sharded": 16, "server": 16, "tree": 2, "ring": 1}


@dataclass(frozen=True)
class Fold:
    """The replicas that represent all: `kept` of `data`, on hosts in `groups` of `of` sets.

    A set is a host with some replicas, or the hosts of one replica. `hosts` are those of a set.
    Parameters are reduced in `units` of `unit` bytes, each owned by a set.
    """

    data: int
    kept: int
    of: int
    groups: int
    hosts: int
    topology: str
    unit: float
    units: int

    @property
    def weight(self) -> float:
        """By how much the busiest set receives more among all than among those that are kept.

        Inner nodes of all trees are shared out among all sets, as owners are among a few.
        """
        branches = min(_BRANCHES[self.topology], self.of - 1)
        if branches < self.groups and self.units < branches:
            return 1.0  # a host gathers one unit at most, however many hosts there are
        if branches < self.groups:
            return (1 - 1 / self.of) / (1 - 1 / self.groups)
        busiest = -(-self.units // (branches + 1)) * branches
        return busiest / (-(-self.units // self.groups) * (self.groups - 1))

    def delay(self, rate: float, hop: float) -> float:
        """Additional seconds for a unit among all, at a link's rate and a hop's latency.

        At each level of a tree a node gathers, or sends, as many units as it has children.
        """
        whole = _levels(self.of, self.topology)
        kept = _levels(self.groups, self.topology)
        if len(kept) == 1:
            kept = [self.weight * (self.groups - 1)]
        gathered = (sum(whole) - sum(kept)) * self.unit / rate
        return max(0.0, gathered + (len(whole) - len(kept)) * hop)

    def machine(self, machine: Machine, names: list[str]) -> Machine:
        """The machine on which the kept sets have the traffic and the routes of all."""
        set_of = {name: number // self.hosts for number, name in enumerate(names)}
        network, weights = machine.network, dict(machine.weights)
        wire = machine.wire
        for source, target in product(names, names):
            if set_of[source] == set_of[target]:
                continue
            weights[source, target] = self.weight
            route = network.route(source, target)
            hop = wire.put + wire.arrive + network.latency(source, target)
            more = self.delay(min(link.rate for link in route), hop)
            longer = replace(route[0], latency=route[0].latency + more)
            network = network.with_route(source, target, (longer, *route[1:]))
        return replace(machine, network=network, weights=weights)


def fold_of(candidate: Candidate, sizes: Collection[int] = ()) -> Fold | None:
    """The replicas of a candidate that represent all; None if all are simulated.

    `sizes` are the bytes of the parameters.
    """
    scheme = candidate.scheme
    at = [location.host for location in as_locations(candidate.devices)]
    hosts = list(dict.fromkeys(at))
    each, replica = len(at) // len(hosts), scheme.pipeline * scheme.model
    even = at == [host for host in hosts for _ in range(each)]
    fits = each % replica == 0 or replica % each == 0
    if not (even and fits) or scheme.shares or scheme.asynchronous or scheme.topology == "native":
        return None
    together = max(1, each // replica)
    each_set = together * replica
    cells = each_set * scheme.micro_batches
    groups = max(2, min(_TREE, _DEVICES // each_set, _CELLS // cells))
    sets = scheme.data // together
    if sets <= max(groups, _TREE if together * replica <= 8 else 0):
        return None
    units = [size / max(1, size // scheme.unit) for size in sizes if size * 4 >= scheme.unit]
    count = sum(max(1, size // scheme.unit) for size in sizes if size * 4 >= scheme.unit)
    return Fold(
        scheme.data,
        groups * together,
        sets,
        groups,
        max(1, replica // each),
        scheme.topology,
        min(units, default=max(sizes, default=0)),
        max(1, count // (1 if each >= replica else replica // each)),
    )


def fold_for(plan: JobPlan, candidate: Candidate) -> Fold | None:
    """The replicas that represent all replicas of a plan."""
    return fold_of(candidate, [size_in_bytes(plan.net.blobs[name]) for name in plan.net.states])


def smaller(plan: JobPlan, candidate: Candidate, fold: Fold) -> tuple[JobPlan, Candidate]:
    """The plan and the candidate with the replicas that represent all, and their batch."""
    assert plan.job.batch is not None
    batch = plan.job.batch // fold.data * fold.kept
    count = fold.kept * candidate.scheme.pipeline * candidate.scheme.model
    kept = candidate.devices[:count]
    job = replace(plan.job, batch=batch, devices=spans(kept))  # whose threads are those of all
    return (
        replace(plan, job=job, net=with_batch(plan.net, batch)),
        replace(candidate, devices=kept, scheme=replace(candidate.scheme, data=fold.kept)),
    )


def foresee_folded(
    plan: JobPlan,
    candidate: Candidate,
    build: Callable[[JobPlan, Candidate], JobPlan],
    foresee: Callable[..., Prediction],
) -> Prediction:
    """The prediction of a candidate, simulated by the replicas that represent all."""
    fold = fold_for(plan, candidate)
    if fold is None:
        refuse_many(candidate)
        return foresee(build(plan, candidate))
    own, kept = smaller(plan, candidate, fold)
    hosts = list(kept.hosts)
    return foresee(build(own, kept), shape=lambda machine: fold.machine(machine, hosts))


def refuse_many(candidate: Candidate) -> None:
    """Refuse to simulate thousands of devices one by one."""
    count = len(candidate.devices)
    if count > _MOST:
        raise ConfigError(
            f"no replicas can represent all {count} devices",
            expected="equal replicas that fill hosts, or fill them together",
            found=str(candidate),
            remedy="let pipeline times model divide the devices of a host, or be a multiple",
        )


def _levels(sets: int, topology: str) -> list[float]:
    """By level of a tree over this many sets the largest number of children of a node."""
    branches = _BRANCHES.get(topology, 16)
    levels: list[float] = []
    left, width = sets - 1, 1
    while left > 0:
        levels.append(min(branches, left))
        width *= branches
        left -= width
    return levels
