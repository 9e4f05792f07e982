"""What hosts of one machine read in place."""

from __future__ import annotations

import torch

import purine as pu
from purine.graph import Graph
from purine.kinds.adjoin import ADJOIN, _adjoin
from purine.lowering.board import POST, places_of, posted
from purine.lowering.host_rules import host_problems
from purine.lowering.hosts import channels_of, part_of
from purine.lowering.parcels import in_parcels

HOSTS = ("host0", "host1", "host2")


def step(*, only: str | None = None, shared: bool = True) -> Graph:
    net = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=4)), lr=0.1, momentum=0.9)
    return pu.parallel.replicate(net, "host0-2:cpu:0", shared=shared, only=only)


def without_deadlines(part: Graph) -> list[tuple[object, ...]]:
    """The ops of a part; deadlines count the ops of the step."""
    return sorted(
        (op.name, op.kind, op.inputs, *sorted((op.attributes | {"deadline": 0}).items()))
        for op in part.ops.values()
    )


def test_parts_behind_each_other_are_one_without_a_copy() -> None:
    for whole in (torch.rand(6, 3), torch.rand(6, 2, 3, 3).to(memory_format=torch.channels_last)):
        parts = whole[:1], whole[1:4], whole[4:]
        assert _adjoin(*parts).data_ptr() == whole.data_ptr()
        assert _adjoin(*parts).equal(whole)
        assert _adjoin(*parts).stride() == whole.stride()


def test_parts_that_lie_elsewhere_are_joined_by_a_copy() -> None:
    whole = torch.rand(6, 3)
    for parts in ((whole[3:], whole[:3]), (whole[:3], whole[3:].clone()), (whole[:2], whole[3:])):
        assert _adjoin(*parts).equal(torch.cat(parts))
        assert _adjoin(*parts).data_ptr() != whole.data_ptr()


def test_each_parameter_is_posted_once_and_read_in_its_place_by_all_others() -> None:
    graph = step()
    assert host_problems(graph) == []
    parts = {host: part_of(graph, host) for host in HOSTS}
    posts = [op for part in parts.values() for op in part.ops.values() if op.kind == POST]
    assert len({op.inputs for op in posts}) == len(posts)
    for part in parts.values():
        host = next(iter(part.ops.values())).location.host
        incoming, outgoing = channels_of(part, host)
        read = {channel.board for channel in (*incoming, *outgoing) if channel.board is not None}
        assert read == set(places_of(in_parcels(graph)).values())


def test_a_host_that_builds_its_own_part_knows_the_same_places() -> None:
    whole = step()
    for host in HOSTS:
        own = step(only=host)
        assert places_of(in_parcels(own)) == places_of(in_parcels(whole))
        assert without_deadlines(part_of(own, host)) == without_deadlines(part_of(whole, host))


def test_joins_read_the_board_and_no_other_memory() -> None:
    part = part_of(step(), "host1")
    (join,) = (op for op in part.ops.values() if op.kind == ADJOIN)
    own = {name for name in join.inputs if name.startswith(posted(""))}
    made = {part.producers[name].kind for name in join.inputs}
    assert own
    assert made == {POST, "Arrival"}


def test_without_shared_memory_nothing_is_posted() -> None:
    part = part_of(step(shared=False), "host1")
    assert {POST, ADJOIN}.isdisjoint(op.kind for op in part.ops.values())
