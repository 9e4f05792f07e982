"""Bytes between devices: the transfers of a trace, their sizes and their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from purine.analysis.infer import size_in_bytes
from purine.graph import NOTHING, Graph, Op
from purine.lowering.shares import SHARE, SHARED
from purine.trace.events import ARRIVAL, POST, PUT, Event
from purine.trace.trace import Trace, puts_of
from purine.viewer.columns import Json, packed
from purine.viewer.roles import graph_name

__all__ = ["traffic_of"]

_BINS = 400


@dataclass(frozen=True, slots=True)
class _Move:
    """The transfer of an op; `blob` is the one that it reads in the memory of another device."""

    source: str
    target: str
    size: int
    blob: str = ""


def traffic_of(trace: Trace, step: Graph | None, graphs: Sequence[Graph]) -> dict[str, Json]:
    """The transfers of a trace as a matrix, and over time.

    `step` is the whole job; `graphs` are its lowered forms, one for each host. Without them only
    the number of transfers between hosts is known.
    """
    moves = list(_moves(trace, step, graphs))
    begin = min(event.start for event in trace.events)
    end = max(event.end for event in trace.events)
    width = max(1, -(-(end - begin) // _BINS))
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    over: dict[tuple[str, str], npt.NDArray[np.int64]] = {}
    for event, source, target, size in moves:
        entry = totals[source, target]
        entry[0], entry[1] = entry[0] + size, entry[1] + 1
        entry[2] += event.end - event.start
        bins = over.setdefault((source, target), np.zeros(_BINS, dtype=np.int64))
        _spread(bins, (event.start - begin) / width, (event.end - begin) / width, size)
    places = sorted({place for pair in totals for place in pair})
    pairs: list[Json] = [
        [places.index(a), places.index(b), size, count, time, packed(over[a, b])]
        for (a, b), (size, count, time) in sorted(totals.items())
    ]
    return {
        "places": list(places),
        "pairs": pairs,
        "bin": width,
        "bins": _BINS,
        "iterations": len(trace.iterations),
        "sized": bool(graphs),
        "span": end - begin,
    }


def _spread(bins: npt.NDArray[np.int64], start: float, end: float, size: int) -> None:
    """Add bytes to the bins between two times, evenly."""
    first, last = (min(_BINS - 1, int(place)) for place in (start, end))
    moved = 0
    for at in range(first, last):
        share = round(size * (min(at + 1, end) - start) / (end - start))
        bins[at] += share - moved
        moved = share
    bins[last] += size - moved


def _moves(
    trace: Trace, step: Graph | None, graphs: Sequence[Graph]
) -> Iterator[tuple[Event, str, str, int]]:
    """Each transfer: its event, the locations of its ends, and its bytes.

    Where devices share memory, nothing is copied: an op reads what another device wrote. That
    counts as a transfer the first time that a device reads a blob in an iteration.
    """
    by_host = {op.location.host: graph for graph in graphs for op in graph.ops.values()}
    known: dict[tuple[str, str], tuple[_Move, ...]] = {}
    read: set[tuple[str, str, int]] = set()
    puts = puts_of(trace)
    for index, event in enumerate(trace.events):
        if event.kind in (PUT, POST):
            continue  # the arrival stands for both
        graph = by_host.get(event.host)
        if graph is None:
            if index in puts:
                yield event, trace.events[puts[index]].location, event.location, 0
            continue
        key = event.host, event.op
        if key not in known:
            op = graph.ops.get(graph_name(graph, event))
            known[key] = () if op is None else tuple(_ends(op, graph, step))
        for move in known[key]:
            once = move.blob, move.target, event.iteration
            if move.blob and once in read:
                continue
            read.add(once)
            yield event, move.source, move.target, move.size


def _ends(op: Op, graph: Graph, step: Graph | None) -> Iterator[_Move]:
    """The blob that an op moves between devices: that of a copy, or one that another op reads
    elsewhere."""
    whole = step.ops.get(op.name) if step is not None else None
    if op.kind == ARRIVAL and step is not None and whole is not None:
        source, target = step.blobs[whole.inputs[0]], step.blobs[whole.outputs[0]]
        yield _Move(str(source.location), str(target.location), size_in_bytes(target))
        return
    if op.kind == "Copy":
        source, target = graph.blobs[op.inputs[0]], graph.blobs[op.outputs[0]]
        if source.location != target.location:
            yield _Move(str(source.location), str(target.location), size_in_bytes(target))
        return
    if op.kind == SHARED:  # stands behind the shares, and moves nothing
        return
    parts = 1
    if op.kind == SHARE:  # it reads its part of the elements
        parts = sum(other.kind == SHARE for other in graph.consumers[op.inputs[0]])
    for name in dict.fromkeys(op.inputs):
        blob = graph.blobs.get(name)
        if name != NOTHING and blob is not None and blob.location != op.location:
            own = name if parts == 1 else ""
            size = size_in_bytes(blob) // parts
            yield _Move(str(blob.location), str(op.location), size, own)
