"""The bytes that devices hold over time: sizes from the graph, times from a trace.

A buffer is held from the start of the first op that writes it to the end of the last op that reads
it, in each iteration. States are held all the time, as in `purine.analysis.memory`, whose forecast
is for one iteration; here iterations overlap as they did in the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from purine.analysis.infer import size_in_bytes
from purine.analysis.memory import buffers
from purine.graph import NOTHING, Graph, Location
from purine.trace.trace import Trace
from purine.viewer.columns import Json, packed
from purine.viewer.roles import graph_name

__all__ = ["memory_of"]

_Column: TypeAlias = npt.NDArray[np.int64]

_POINTS = 2000
"""Points of a curve that are kept: of more, the largest of each stretch of time."""
_TOP = 100
"""Blobs of the worst moment that are listed by name; the others are added up."""


@dataclass(frozen=True, slots=True)
class _Hold:
    blob: str
    size: int
    start: int
    end: int


def memory_of(trace: Trace, graphs: Sequence[Graph], origin: int) -> list[Json]:
    """For each device its curve and its peak. `graphs` are the lowered graphs of all hosts.

    Times count from `origin`.
    """
    devices: list[Json] = []
    for graph in graphs:
        fixed, holds = _fixed(graph), _holds(trace, graph)
        for location in sorted(fixed.keys() | holds.keys(), key=str):
            own = holds.get(location, [])
            if own or fixed.get(location):
                device = _device(location, fixed.get(location, []), own, origin, _makers(graph))
                devices.append(device)
    return devices


def _makers(graph: Graph) -> dict[str, str]:
    """By blob the op that writes it; by state the op that writes its next value."""
    makers = {name: op.name for name, op in graph.producers.items()}
    for state in graph.states.values():
        if state.next in makers:
            makers.setdefault(state.read, makers[state.next])
    return makers


def _fixed(graph: Graph) -> dict[Location, list[tuple[str, int]]]:
    """By device the values that are held all the time: states and inputs, by name and size."""
    buffer, fixed = buffers(graph), defaultdict(list)
    for name in dict.fromkeys(buffer[name] for name in (*graph.states, *graph.inputs)):
        blob = graph.blobs[name]
        fixed[blob.location].append((name, size_in_bytes(blob)))
    return fixed


def _holds(trace: Trace, graph: Graph) -> dict[Location, list[_Hold]]:
    """By device the intervals in which the other buffers are held."""
    buffer = buffers(graph)
    fixed = {buffer[name] for name in (*graph.states, *graph.inputs)}
    kept = {buffer[name] for name in graph.outputs}
    kept |= {buffer[state.next] for state in graph.states.values()}
    hosts = {op.location.host for op in graph.ops.values()}
    spans: dict[tuple[str, int], list[int]] = {}
    ends: dict[int, int] = {}
    for event in trace.events:
        if event.host not in hosts:
            continue
        op = graph.ops.get(graph_name(graph, event))
        ends[event.iteration] = max(ends.get(event.iteration, 0), event.end)
        if op is None:
            continue
        for name in (*op.inputs, *op.outputs):
            if name == NOTHING or buffer[name] in fixed:
                continue
            span = spans.setdefault((buffer[name], event.iteration), [event.start, event.end])
            span[0], span[1] = min(span[0], event.start), max(span[1], event.end)
    found: dict[Location, list[_Hold]] = defaultdict(list)
    for (name, iteration), (start, end) in spans.items():
        blob = graph.blobs[name]
        end = ends[iteration] if name in kept else end
        found[blob.location].append(_Hold(name, size_in_bytes(blob), start, end))
    return found


def _device(
    location: Location,
    fixed: Sequence[tuple[str, int]],
    holds: Sequence[_Hold],
    origin: int,
    makers: Mapping[str, str],
) -> dict[str, Json]:
    base = sum(size for _, size in fixed)
    times, held = _curve(holds)
    worst = int(np.argmax(held)) if len(held) else 0
    peak, at = (base + int(held[worst]), int(times[worst])) if len(held) else (base, origin)
    parts = [*fixed, *((one.blob, one.size) for one in holds if one.start <= at < one.end)]
    total: dict[str, list[int]] = {}
    for name, size in parts:  # several iterations in flight hold one blob several times
        entry = total.setdefault(name, [0, 0])
        entry[0], entry[1] = entry[0] + size, entry[1] + 1
    largest = sorted(total.items(), key=lambda item: (-item[1][0], item[0]))
    rest = sum(size for _, (size, _) in largest[_TOP:])
    names = {name for name, _ in fixed}
    kept = list(_thinned(times, held))
    return {
        "location": str(location),
        "states": base,
        "peak": peak,
        "at": at - origin,
        "time": packed([int(times[k]) - origin for k in kept]),
        "held": packed([base + int(held[k]) for k in kept]),
        "blobs": [
            [name, size, count, name in names, makers.get(name)]
            for name, (size, count) in largest[:_TOP]
        ],
        "others": [len(largest) - _TOP, rest] if len(largest) > _TOP else None,
    }


def _curve(holds: Sequence[_Hold]) -> tuple[_Column, _Column]:
    """The times at which the bytes change, and the bytes from then on."""
    times = np.array([t for one in holds for t in (one.start, one.end)], dtype=np.int64)
    steps = np.array([s for one in holds for s in (one.size, -one.size)], dtype=np.int64)
    order = np.lexsort((steps, times))  # at one moment buffers are freed before others are written
    return times[order], np.cumsum(steps[order])


def _thinned(times: _Column, held: _Column) -> Iterator[int]:
    """The indices that a curve needs: the largest and the last value of each interval of time."""
    if len(times) <= _POINTS:
        yield from range(len(times))
        return
    edges = np.linspace(times[0], times[-1], _POINTS // 2 + 1)[1:-1]
    for part in np.split(np.arange(len(times)), np.searchsorted(times, edges)):
        if len(part):
            largest = int(part[np.argmax(held[part])])
            yield from sorted({largest, int(part[-1])})
