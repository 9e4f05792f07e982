"""Where the times of ops come from: a trace of the job, a trace of the net elsewhere, a profile.

`Times` gives the seconds of any op of a lowered graph. Ops that are not in a trace are estimated by
the cost model, scaled by the ops that are.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from purine.analysis.cost import PROFILE, Profile, seconds
from purine.analysis.infer import spec_of
from purine.analysis.measured import GPU
from purine.graph import Blob, Op
from purine.graph.names import origin_of
from purine.graph.nodes import computes
from purine.lowering import Lowered
from purine.placement.devices import is_cpu
from purine.trace.events import ARRIVAL, FETCH, POST, PUT, Event, by_lane
from purine.trace.trace import Trace

__all__ = ["Known", "ProfileTimes", "Times", "TraceTimes", "dispatch_of", "spread_of"]

_MOVED = frozenset({PUT, POST, ARRIVAL, FETCH, "Fence", "HostReduce", "HostBroadcast"})
_UNSIZED = frozenset({"offset", "stream", "peer", "channel"})
"""Attributes that say which op it is and not how long it takes."""


class Times(Protocol):
    """How long ops take on an idle device."""

    def of(self, lowered: Lowered, host: str | None, threads: int) -> Callable[[Op], float]:
        """The seconds of ops of a lowered graph, whose kernels use `threads` threads."""
        ...


@dataclass(frozen=True)
class ProfileTimes:
    """Times by the cost model alone."""

    profile: Profile = PROFILE

    def of(self, lowered: Lowered, host: str | None, threads: int) -> Callable[[Op], float]:
        return partial(_estimate, blobs=_blobs(lowered), profile=self.profile, threads=threads)


def _blobs(lowered: Lowered) -> Mapping[str, Blob]:
    """The blobs of a lowered graph, with those that only exist inside its segments."""
    return {**lowered.graph.blobs, **(lowered.unsegmented or lowered.graph).blobs}


def _estimate(op: Op, blobs: Mapping[str, Blob], profile: Profile, threads: int) -> float:
    width = threads if computes(op.lane) else 1
    return seconds(op, blobs, profile, threads=width if is_cpu(op.location) else GPU)


@dataclass(frozen=True)
class Known:
    """A trace with the graph whose ops it timed, lowered as it ran, on `threads` threads."""

    trace: Trace
    lowered: Lowered
    threads: int = 1
    host: str | None = None


@dataclass(frozen=True)
class TraceTimes:
    """Times of traces. The first match in this order decides:

    the same op by name, kind and sizes; an op of the same origin, kind and sizes; any op of this
    kind and these sizes; an op of the same origin and kind, by the ratio of estimates; the
    estimate, times the mean ratio of measured to estimated time of the kind. `own` are times by
    name alone, of a trace without a graph.
    """

    known: Sequence[Known] = ()
    own: Mapping[str, float] = field(default_factory=dict)
    profile: Profile = PROFILE

    def of(self, lowered: Lowered, host: str | None, threads: int) -> Callable[[Op], float]:
        blobs = _blobs(lowered)
        table = _Table(self.known, self.profile, threads)

        def duration(op: Op) -> float:
            own = self.own.get(op.name, self.own.get(f"{host}/{op.name}"))
            return table.seconds(op, blobs) if own is None else own

        return duration

    @classmethod
    def of_job(cls, trace: Trace, profile: Profile = PROFILE) -> TraceTimes:
        """The times of a trace by the names of its ops."""
        return cls(own=settled_times(trace), profile=profile)


def settled_times(trace: Trace) -> dict[str, float]:
    """Seconds of each op in an ordinary iteration after warm-up, also of packing.

    This is the mean over the middle half of the iterations, ranked by the total time of their ops.
    A sum of medians would be too short, since each op is slow in some iterations.
    """
    first = trace.iterations[trace.warm_up] if trace.events else 0
    every: dict[str, list[int]] = defaultdict(list)
    spent: dict[int, dict[str, int]] = defaultdict(dict)
    for event in trace.events:
        if event.kind not in _MOVED:
            every[event.op].append(event.end - event.start)
            if event.iteration >= first:
                spent[event.iteration][event.op] = event.end - event.start
    ranked = sorted(spent, key=lambda iteration: (sum(spent[iteration].values()), iteration))
    aside = len(ranked) // 4
    counted: dict[str, list[int]] = defaultdict(list)
    for iteration in ranked[aside : len(ranked) - aside]:
        for op, time in spent[iteration].items():
            counted[op].append(time)
    return {op: statistics.fmean(counted.get(op, times)) / 1e9 for op, times in every.items()}


class _Table:
    """Measured times of ops, by properties that they share."""

    def __init__(self, known: Iterable[Known], profile: Profile, threads: int) -> None:
        self.profile, self.threads = profile, threads
        self.exact: dict[tuple[object, ...], float] = {}
        sized: dict[tuple[object, ...], list[float]] = defaultdict(list)
        origin: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
        kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for one in known:
            graph = one.lowered.unsegmented or one.lowered.graph
            factor = profile.speedup(one.threads) / profile.speedup(threads)
            for name, time in settled_times(one.trace).items():
                op = graph.ops.get(name)
                if op is None:
                    continue
                time *= factor if computes(op.lane) else 1.0
                estimate = _estimate(op, graph.blobs, profile, threads)
                form, role = _form(op, graph.blobs), _role(op)
                self.exact[name, form] = time
                sized[role, form].append(time)
                sized[form].append(time)
                origin[role, op.kind].append((time, estimate))
                kinds[op.kind].append((time, estimate))
        self.sized = {key: statistics.median(times) for key, times in sized.items()}
        self.origin = {key: _ratio(pairs) for key, pairs in origin.items()}
        self.kinds = {key: _ratio(pairs) for key, pairs in kinds.items()}
        self.all = _ratio([pair for pairs in kinds.values() for pair in pairs])

    def seconds(self, op: Op, blobs: Mapping[str, Blob]) -> float:
        form, role = _form(op, blobs), _role(op)
        exact, sized = self.exact.get((op.name, form)), self.sized.get((role, form))
        for time in (exact, sized, self.sized.get(form)):
            if time is not None:
                return time
        estimate = _estimate(op, blobs, self.profile, self.threads)
        ratio = self.origin.get((role, op.kind)) or self.kinds.get(op.kind) or self.all
        return estimate * ratio


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Measured over estimated time, of all ops together."""
    estimated = sum(estimate for _, estimate in pairs)
    return sum(time for time, _ in pairs) / estimated if estimated else 1.0


def _form(op: Op, blobs: Mapping[str, Blob]) -> tuple[object, ...]:
    """The key that decides how long an op takes: its kind, settings, and the sizes of its blobs."""
    settings = repr(sorted((k, v) for k, v in op.attributes.items() if k not in _UNSIZED))
    sizes = tuple(spec_of(blobs[name]) for name in op.inputs)
    results = tuple(blobs[name].shape for name in op.results)
    return op.kind, settings, sizes, results, computes(op.lane)


def _role(op: Op) -> tuple[str, str]:
    """The role of an op, and the op of the net that it comes from, whatever part of the batch."""
    origin = origin_of(op)
    return origin.of.removeprefix(origin.parts), origin.role


def spread_of(trace: Trace) -> float:
    """The standard deviation of the logarithm of op times after warm-up, weighted by time.

    It is half of the distance between the 16th and the 84th percentile, so outliers do not count.
    """
    first = trace.iterations[trace.warm_up] if trace.events else 0
    spent: dict[str, list[int]] = defaultdict(list)
    for event in trace.events:
        if event.iteration >= first and event.kind not in _MOVED and event.end > event.start:
            spent[event.op].append(event.end - event.start)
    total = weight = 0.0
    for times in spent.values():
        if len(times) >= 4:
            low, high = (statistics.quantiles(times, n=25)[k] for k in (3, 20))
            share = sum(times)
            total += share * (math.log(max(high, 1)) - math.log(max(low, 1))) / 2
            weight += share
    return total / weight if weight else 0.0


def dispatch_of(trace: Trace, default: float) -> float:
    """Seconds between two ops of a thread of which the second waited for nothing else.

    Lanes of a location whose events never overlap count as one thread.
    """
    gaps: list[int] = []
    for events in _threads(trace):
        until = None
        for event in events:
            if until is not None and 0 <= event.start - until < 150_000:
                gaps.append(event.start - until)
            until = event.end
    return default if len(gaps) < 20 else statistics.quantiles(gaps, n=4)[0] / 1e9


def _threads(trace: Trace) -> Iterable[list[Event]]:
    at: dict[str, list[list[Event]]] = defaultdict(list)
    for (location, _), queue in by_lane(trace.events).items():
        at[location].append([trace.events[index] for index in queue])
    for lanes in at.values():
        merged = sorted((event for lane in lanes for event in lane), key=lambda e: e.start)
        single = all(a.end <= b.start for a, b in itertools.pairwise(merged))
        yield from [merged] if single else lanes
