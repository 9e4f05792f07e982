"""Collectives as this machine can run them: by NCCL between its cards, else by one device.

A `Reduce` whose parts share one memory (sets of cores, logical GPUs on one card) is an `Average`
that reads them in place, in the order of the replicas. Between cards of their own it is a call of
NCCL. In all other cases it stays what it is: the parts are copied to its device and added up there.

Every card sees its collectives in one order, that in which their inputs become ready. One thread
enqueues each whole, on all its cards, so cards never wait for each other crosswise; control edges
fix the order within an iteration as well, so that it is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.cuda import nccl

from purine.core import urgency
from purine.graph import COLLECTIVES, Builder, Graph, Op
from purine.kinds.average import is_flat
from purine.lowering.prepared import Prepared
from purine.registry.aten import device_of
from purine.registry.kind import Kernel, Results

__all__ = ["Cards", "NcclReduce", "has_nccl", "without_collectives"]


def has_nccl() -> bool:
    """Whether this build of torch can call NCCL."""
    return hasattr(torch._C, "_nccl_reduce")


def without_collectives(graph: Graph, *, by_nccl: bool | None = None) -> Prepared:
    """The graph with each collective in the form that its devices allow.

    `by_nccl` says whether cards have NCCL between them, by default where torch has.
    """
    found = [op for op in graph.ops.values() if op.kind in COLLECTIVES]
    if not found:
        return Prepared(graph)
    if by_nccl is None:
        by_nccl = has_nccl()
    builder = Builder(graph)
    cards = Cards()
    kernels: dict[str, Kernel] = {}
    groups: dict[str, list[torch.device]] = {}
    for op in found:
        own = device_of(op.location)
        devices = [device_of(graph.blobs[name].location) for name in op.inputs]
        group = devices[:: _blobs(op)]
        if set(devices) == {own}:
            builder.ops[op.name] = replace(op, kind="Average")
        elif by_nccl and _are_cards(group) and own in group and devices == _each(group, _blobs(op)):
            kernels[op.name] = NcclReduce(op, group, group.index(own), cards)
            groups[op.name] = group
    if groups:
        last: dict[torch.device, str] = {}
        for name in urgency(graph):
            for card in groups.get(name, ()):
                if card in last:
                    builder.control.add((last[card], name))
                last[card] = name
    return Prepared(builder.graph(), kernels)


def _are_cards(group: Sequence[torch.device]) -> bool:
    """Whether each replica has a card of its own."""
    return all(card.type == "cuda" for card in group) and len(set(group)) == len(group)


def _each(group: Sequence[torch.device], blobs: int) -> list[torch.device]:
    """Where parts are if a replica has all of its own."""
    return [card for card in group for _ in range(blobs)]


def _blobs(op: Op) -> int:
    """How many means an op makes."""
    groups = op.attributes.get("groups", 1)
    assert isinstance(groups, int)
    return groups


class Cards:
    """One stream for the collectives of each card, made when it is first needed."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def stream(self, card: torch.device) -> torch.cuda.Stream:
        if card not in self._streams:
            self._streams[card] = torch.cuda.Stream(card)
        return self._streams[card]


class NcclReduce:
    """The kernel of a `Reduce` between cards: a call of NCCL for all blobs of one dtype.

    The op's own stream, on the owner's card, has waited for all parts when the kernel is called.
    The streams of the collective begin behind it on every card, and it goes on behind all of them:
    to everybody else this is an op of one stream like any other. Memory that is needed on the way
    belongs to the streams that use it.
    """

    def __init__(self, op: Op, group: Sequence[torch.device], root: int, cards: Cards) -> None:
        self.group = tuple(group)
        self.root = root
        self.cards = cards
        self.blobs = _blobs(op)
        weights = op.attributes.get("weights")
        assert weights is None or isinstance(weights, tuple)
        self.weights = weights
        """The shares of the replicas, where they are not equal."""

    def __call__(self, *parts: Tensor) -> Results:
        columns = [parts[blob :: self.blobs] for blob in range(self.blobs)]
        alike = [all(is_flat(part, column[0]) for part in column) for column in columns]
        sums: dict[torch.dtype, list[int]] = {}
        for blob, column in enumerate(columns):
            sums.setdefault(column[0].dtype, []).append(blob)
        rooms = {
            dtype: torch.empty(
                sum(columns[blob][0].numel() for blob in blobs),
                dtype=dtype,
                device=columns[blobs[0]][self.root].device,
            )
            for dtype, blobs in sums.items()
        }
        streams = [self.cards.stream(card) for card in self.group]
        own = torch.cuda.current_stream(self.group[self.root])
        begin = own.record_event()
        for stream in streams:
            stream.wait_event(begin)
        for dtype, blobs in sums.items():
            lines = []
            for replica, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    given = [_line(columns[blob][replica], alike[blob]) for blob in blobs]
                    lines.append(self._joined(given, replica))
            nccl.reduce(lines, output=rooms[dtype], root=self.root, streams=streams)
        for stream in streams:
            own.wait_event(stream.record_event())
        results: list[Tensor | None] = [None] * self.blobs
        for dtype, blobs in sums.items():
            room, start = rooms[dtype], 0
            if self.weights is None:
                room.mul_(1.0 / len(self.group))
            for blob in blobs:
                like = columns[blob][self.root]
                results[blob] = _cut(room, start, like, alike[blob])
                start += like.numel()
        made = tuple(result for result in results if result is not None)
        return made[0] if len(made) == 1 else made

    def _joined(self, lines: Sequence[Tensor], replica: int) -> Tensor:
        """What a replica contributes, as one line with its share."""
        line = lines[0] if len(lines) == 1 else torch.cat(list(lines))
        return line if self.weights is None else line * self.weights[replica]


def _line(part: Tensor, alike: bool) -> Tensor:
    """The elements as they lie in memory where they lie alike in all replicas, else in order."""
    return part.as_strided([part.numel()], [1]) if alike else part.reshape(-1)


def _cut(room: Tensor, start: int, like: Tensor, alike: bool) -> Tensor:
    if alike:
        return room.as_strided(like.shape, like.stride(), start)
    return room[start : start + like.numel()].view(like.shape)
