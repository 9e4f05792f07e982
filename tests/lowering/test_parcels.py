"""Small values between two hosts go as one message."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest

import purine as pu
from purine.analysis.infer import check
from purine.graph import Graph
from purine.lowering.hosts import channels_of, hosts_of, part_of
from purine.lowering.parcels import in_parcels
from purine.parallel import replicate


@cache
def part() -> Graph:
    """The step of one replica."""
    net = pu.zoo.googlenet(2, image=(3, 32, 32), width=4, hidden=8, batch_norm=True)
    return pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9)


def step_of(count: int, topology: str) -> Graph:
    return replicate(part(), f"host0-{count - 1}:cpu:0", topology=topology)


@pytest.mark.parametrize("topology", ["sharded", "tree", "ring"])
@pytest.mark.parametrize("count", [2, 5])
def test_parcels_hold_what_the_copies_brought(count: int, topology: str) -> None:
    step = step_of(count, topology)
    packed = check(in_parcels(step))
    assert in_parcels(packed) is packed
    copies = {op.name: op for op in step.ops.values() if op.kind == "Copy"}
    gone = copies.keys() - packed.ops.keys()
    assert len(gone) > 0.7 * len(copies)
    brought: dict[str, str] = {}
    for op in packed.ops.values():
        if op.name.endswith("/split"):
            copy = packed.producers[op.inputs[0]]
            join = packed.producers[copy.inputs[0]]
            brought |= dict(zip(op.outputs, join.inputs, strict=True))
            sizes = tuple(math.prod(packed.blobs[name].shape or ()) for name in op.outputs)
            assert op.attributes["split_sizes"] == sizes
    assert brought == {copies[name].outputs[0]: copies[name].inputs[0] for name in gone}


@pytest.mark.parametrize("topology", ["sharded", "tree", "ring"])
def test_few_small_values_are_sent_by_themselves(topology: str) -> None:
    step = step_of(4, topology)
    for host in hosts_of(step):
        _, outgoing = channels_of(part_of(step, host), host)
        small = Counter(
            channel.target
            for channel in outgoing
            if channel.blob is not None
            and len(channel.blob.shape or ()) == 1
            and 4 * math.prod(channel.blob.shape or ()) <= 4096
        )
        assert max(small.values(), default=0) < 10
