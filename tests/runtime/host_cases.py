"""Nets and schemes whose steps on several hosts are compared with the same net on one device.

`scripts/hosts_numbers.py` runs all of them through every transport, the test suite a few. As a
program, this is one of several hosts: `python -m tests.runtime.host_cases shm lenet/data ...`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

import purine as pu
from purine.graph import Graph
from purine.transports.processes import ProcessWorld
from purine.transports.world import World
from tests.dispatch import test_host_core
from tests.parallel.nets import Trained, agree, float64, googlenet, images

__all__ = [
    "CASES",
    "EXPECTED",
    "SCHEMES",
    "difference",
    "expected",
    "run_host",
    "step_of",
    "train",
]

BATCH, STEPS = 8, 4
SCHEMES: dict[str, dict[str, object]] = {
    **test_host_core.SCHEMES,
    "hybrid": {"model": 4, "hybrid": True},
    "shares": {"data": 4, "shares": (3, 1, 2, 2)},
    "native": {"data": 4, "topology": "native"},
    "native-pipeline": {"data": 2, "pipeline": 2, "topology": "native"},
    "shares-pipeline": {"data": 2, "shares": (3, 1), "pipeline": 2, "micro": 2},
}
"""Settings of schemes for four devices."""
DEVICES = {1: "cpu:0-3", 2: "host0-1:cpu:0-1", 4: "host0-3:cpu:0"}
"""Four devices, by the number of their hosts."""


@dataclass(frozen=True)
class Subject:
    """A small net in float64 and its data. `values` are those that states do not get by fillers."""

    net: Graph
    data: pu.data.DataSet
    values: Mapping[str, Tensor] = field(default_factory=dict)


class Residual(nn.Module):
    """A module of PyTorch with a branch, norms and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Sequential(nn.Linear(8 * 7 * 7, 32), nn.LayerNorm(32), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = nn.functional.max_pool2d(torch.relu(x + self.norm(self.inner(x))), 2)
        scores: Tensor = self.last(x.flatten(1))
        return scores


def _mlp() -> Subject:
    return Subject(float64(pu.zoo.mlp(BATCH)), images())


def _lenet() -> Subject:
    return Subject(float64(pu.zoo.lenet(BATCH)), images())


def _googlenet() -> Subject:
    net = googlenet(BATCH, image=(3, 67, 67), width=8, hidden=16)
    return Subject(float64(net), images((3, 67, 67), count=40))


def _gpt2() -> Subject:
    net = pu.zoo.gpt2(BATCH, context=12, vocabulary=30, layers=2, heads=4, width=16)
    return Subject(float64(net), pu.data.synthetic_tokens(12, vocabulary=30, count=40))


def _module() -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Residual().double()
    example = torch.zeros(BATCH, 1, 28, 28, dtype=torch.float64), torch.zeros(BATCH).long()
    imported = pu.from_torch(module, nn.functional.cross_entropy, example)
    return Subject(imported.net, images(), imported.values)


NETS = {"lenet": _lenet, "googlenet": _googlenet, "gpt2": _gpt2, "module": _module, "mlp": _mlp}
"""The nets by name; "module" is imported from PyTorch."""
CASES = tuple(
    (net, scheme)
    for net in ("lenet", "googlenet", "gpt2", "module")
    for scheme in SCHEMES
    if (net, scheme) != ("gpt2", "hybrid")
)
"""All pairs but one: `hybrid` cannot cut a net whose embedding is also its last layer."""


@cache
def subject(net: str) -> Subject:
    return NETS[net]()


def _solver(net: Graph) -> Graph:
    return pu.solvers.sgd(net, lr=0.05, momentum=0.9, weight_decay=1e-3)


@cache
def step_of(net: str, scheme: str, hosts: int) -> Graph:
    """The step of a net by a scheme."""
    settings, devices = SCHEMES[scheme], DEVICES[hosts]
    return pu.compose(subject(net).net, solver=_solver, devices=devices, clip=0.5, **settings)


EXPECTED: dict[str, Trained] = {}
"""What nets give on one device, as far as it is known."""


def expected(net: str) -> Trained:
    """What a net gives on one device."""
    if net not in EXPECTED:
        step = _solver(pu.solvers.clip_by_norm(pu.backward(subject(net).net), 0.5))
        EXPECTED[net] = train(net, step)
    return EXPECTED[net]


def train(net: str, step: Graph, world: World | None = None) -> Trained:
    """A few steps with one thread for each device, on this host of a world."""
    data, values = subject(net).data, subject(net).values
    with pu.Run(step, data=data, seed=3, threads=1, share_cores=True, world=world) as run:
        run.set_states(values)
        losses = [result.loss for result in run.steps(STEPS)]
        states = {name: value.cpu() for name, value in run.states().items()}
    return Trained(losses, dict(pu.parallel.gather_values(step, states)))


def difference(net: str, found: Trained) -> str | None:
    """How numbers differ from those of one device; None if they do not."""
    try:
        agree(found, expected(net))
    except AssertionError as error:
        return str(error).strip() or "the numbers differ"
    return None


def run_host(transport: str, cases: Sequence[str]) -> None:
    """Run cases as one of several hosts that are processes, and print a line of JSON for each."""
    torch.set_num_threads(1)
    try:
        world = ProcessWorld(transport)
        for case in cases:
            net, scheme = case.split("/")
            try:
                step = step_of(net, scheme, len(world.hosts))
            except pu.PurineError as error:  # on all hosts alike
                wrong: str | None = f"{type(error).__name__}: {error}"
            else:
                wrong = difference(net, train(net, step, world))
            line = json.dumps({"case": case, "host": world.host, "wrong": wrong})
            os.write(1, f"{line}\n".encode())  # whole, though all hosts write into one pipe
        world.close()
    except pu.PurineError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(2)  # a thread may wait for another host


if __name__ == "__main__":
    run_host(sys.argv[1], sys.argv[2:])
