"""Topology `native` over GPUs of several hosts, which are not there: right numbers, no race.

Hosts are threads, GPUs the stand-in of `stand_in`, and NCCL a meeting of the hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.core import compile_plan
from purine.errors import HostLostError, RunError
from purine.graph import Graph
from purine.lowering import Options, lower
from purine.lowering.hosts import hosts_of
from purine.lowering.together import Group, collective_of
from purine.parallel.reduce import Topology
from purine.runtime.streams import Streams, stream_plan
from purine.transports.communicator import Communicator
from purine.transports.inproc import InprocWorld
from tests.parallel.nets import Trained, agree, images
from tests.runtime.host_cases import SCHEMES, difference, expected, subject, train
from tests.runtime.stand_in import StandIn, stand_in
from tests.runtime.test_hosts import net, on_hosts, serial, solver

__all__ = ["stand_in"]


def names_of(count: int) -> list[str]:
    return [f"host{number}" for number in range(count)]


def step_of(name: str, devices: str, **scheme: object) -> Graph:
    given: dict[str, object] = {"topology": "native", **scheme}
    return pu.compose(subject(name).net, solver=solver, devices=devices, clip=0.5, **given)


@pytest.mark.parametrize(
    ("name", "devices", "scheme"),
    [
        ("lenet", "host0-1:cuda:0", "native"),
        ("gpt2", "host0-1:cuda:0", "native"),
        ("module", "host0-3:cuda:0", "native"),
        ("lenet", "host0-3:cuda:0", "native-pipeline"),
        ("lenet", "host0-1:cuda:0-1", "native"),
        ("module", "host0-1:cuda:0-1", "native-pipeline"),
    ],
)
def test_gpus_of_hosts_train_as_one_device(
    name: str, devices: str, scheme: str, stand_in: StandIn
) -> None:
    wide = devices.count("-1") == 2 or "host0-3" in devices
    settings = {**SCHEMES[scheme], "data": SCHEMES[scheme]["data"] if wide else 2}
    step = step_of(name, devices, **settings)
    work = partial(train, name, step)
    for found in on_hosts(work, hosts=hosts_of(step), delay=0.001):
        assert isinstance(found, Trained), found
        assert difference(name, found) is None
    assert expected(name)
    assert stand_in.streams
    assert not stand_in.races, sorted(set(stand_in.races))[:5]
