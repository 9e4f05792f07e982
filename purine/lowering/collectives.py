"""Lowering pass `collectives`: choose how this machine runs each `Reduce`.

A `Reduce` whose inputs share one memory (sets of cores, logical GPUs on one card) becomes an
`Average` that reads them in place, in the order of the replicas. Between different GPUs it becomes
a call of NCCL. Otherwise it stays a `Reduce`: its inputs are copied to its device and added there.
A `Reduce` between hosts is left to the pass `hosts`.

NCCL deadlocks if two GPUs see collectives in different orders. Control edges therefore fix one
order for all GPUs, and one thread enqueues each collective on all its GPUs. Collectives with GPUs
of other hosts are enqueued by another thread, so the order between the two sets would not be fixed.
Such a host therefore copies and adds the parts within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.cuda import nccl

from purine.core import urgency
from purine.graph import COLLECTIVES, Builder, Graph, Op
from purine.kinds.average import is_flat
from purine.lowering.lowered import Lowered
from purine.registry.aten import device_of
from purine.registry.kind import Kernel, Results

__all__ = ["Cards", "NcclReduce", "has_nccl", "without_collectives"]


def has_nccl() -> bool:
    """Whether this build of torch can call NCCL."""
    return hasattr(torch._C, "_nccl_reduce")


def without_collectives(graph: Graph, *, by_nccl: bool | None = None) -> Lowered:
    """The graph with each collective in the form that its devices allow.

    `by_nccl` says whether GPUs can use NCCL within a host. By default they do if torch has it and
    they do not meet GPUs of other hosts.
    """
    collectives = [op for op in graph.ops.values() if op.kind in COLLECTIVES and _here(graph, op)]
    if not collectives:
        return Lowered(graph)
    if by_nccl is None:
        by_nccl = has_nccl() and not any(op.attributes.get("gpus") for op in graph.ops.values())
    builder = Builder(graph)
    cards = Cards()
    kernels: dict[str, Kernel] = {}
    groups: dict[str, list[torch.device]] = {}
    for op in collectives:
        own = device_of(op.location)
        devices = [device_of(graph.blobs[name].location) for name in op.inputs]
        means = op.whole("groups", 1)
        group = devices[::means]
        one_per_replica = devices == [card for card in group for _ in range(means)]
        gpus = len(set(group)) == len(group) and all(card.type == "cuda" for card in group)
        if set(devices) == {own}:
            builder.ops[op.name] = replace(op, kind="Average")
        elif by_nccl and gpus and own in group and one_per_replica:
            kernels[op.name] = NcclReduce(op, group, group.index(own), cards)
            groups[op.name] = group
    builder.control.update(_one_order(graph, groups))
    return Lowered(builder.graph(), kernels)


def _here(graph: Graph, op: Op) -> bool:
    """Whether all inputs of an op are on its host."""
    return all(graph.blobs[name].location.host == op.location.host for name in op.inputs)


def _one_order(
    graph: Graph, groups: Mapping[str, Sequence[torch.device]]
) -> Iterator[tuple[str, str]]:
    """Control edges by which every GPU sees its collectives in one order."""
    last: dict[torch.device, str] = {}
    for name in urgency(graph) if groups else ():
        for card in groups.get(name, ()):
            if card in last:
                yield last[card], name
            last[card] = name


class Cards:
    """One stream for the collectives of each GPU, created when it is first needed."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def stream(self, card: torch.device) -> torch.cuda.Stream:
        if card not in self._streams:
            create: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
            self._streams[card] = create(card)
        return self._streams[card]


class NcclReduce:
    """The kernel of a `Reduce` between GPUs: one call of NCCL for all blobs of one dtype.

    When the kernel is called, the stream of the op, on the owner's GPU, has waited for all inputs.
    The streams of the collective wait for it on every GPU, and it waits for all of them: for the
    rest of the program this is an op of one stream. Temporary memory belongs to the stream that
    uses it.
    """

    def __init__(self, op: Op, group: Sequence[torch.device], root: int, cards: Cards) -> None:
        self.group, self.root, self.cards = tuple(group), root, cards
        self.blobs = op.whole("groups", 1)
        self.weights = op.items("weights") if op.attributes.get("weights") else None
        """The weights of the replicas, where they are not equal."""

    def __call__(self, *tensors: Tensor) -> Results:
        columns = [tensors[blob :: self.blobs] for blob in range(self.blobs)]
        flat = [all(is_flat(part, column[0]) for part in column) for column in columns]
        by_dtype: dict[torch.dtype, list[int]] = {}
        for blob, column in enumerate(columns):
            by_dtype.setdefault(column[0].dtype, []).append(blob)
        sums = {}
        for dtype, blobs in by_dtype.items():
            length = sum(columns[blob][0].numel() for blob in blobs)
            device = columns[blobs[0]][self.root].device
            sums[dtype] = torch.empty(length, dtype=dtype, device=device)
        with self._own_streams() as streams:
            for dtype, blobs in by_dtype.items():
                lines = []
                for replica, stream in enumerate(streams):
                    with torch.cuda.stream(stream):
                        parts = [_flattened(columns[blob][replica], flat[blob]) for blob in blobs]
                        line = parts[0] if len(parts) == 1 else torch.cat(parts)
                        lines.append(line if self.weights is None else line * self.weights[replica])
                nccl.reduce(lines, output=sums[dtype], root=self.root, streams=streams)
        results: dict[int, Tensor] = {}
        for dtype, blobs in by_dtype.items():
            total, start = sums[dtype], 0
            if self.weights is None:
                total.mul_(1.0 / len(self.group))
            for blob in blobs:
                like = columns[blob][self.root]
                results[blob] = _slice(total, start, like, flat[blob])
                start += like.numel()
        means = tuple(results[blob] for blob in range(self.blobs))
        return means[0] if len(means) == 1 else means

    @contextmanager
    def _own_streams(self) -> Iterator[list[torch.cuda.Stream]]:
        """The streams of the collective, ordered after and before the rest of the op's own
        stream."""
        streams = [self.cards.stream(card) for card in self.group]
        own = torch.cuda.current_stream(self.group[self.root])
        begin = own.record_event()
        for stream in streams:
            stream.wait_event(begin)
        yield streams
        for stream in streams:
            own.wait_event(stream.record_event())


def _flattened(part: Tensor, flat: bool) -> Tensor:
    """The elements in memory order if that is the same in all replicas, else in index order."""
    return part.as_strided([part.numel()], [1]) if flat else part.reshape(-1)


def _slice(line: Tensor, start: int, like: Tensor, flat: bool) -> Tensor:
    if flat:
        return line.as_strided(like.shape, like.stride(), start)
    return line[start : start + like.numel()].view(like.shape)
