"""The result of a simulation: the trace of a run that has not happened, and figures from it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from purine.graph import Location, Op
from purine.graph.nodes import floats
from purine.lowering import Lowered
from purine.simulator.engine import Engine
from purine.simulator.machine import Machine
from purine.simulator.part import Duration, Part, make_part
from purine.simulator.times import Times
from purine.trace.events import Event
from purine.trace.gather import merged
from purine.trace.overlap import overlap
from purine.trace.trace import Trace, edges_of, window

__all__ = ["Prediction", "predict", "simulate"]

_SKIP = 3
"""Iterations at the start that are unlike the others: pipelines of iterations fill up."""
_DRAIN = 2
"""Iterations at the end that are unlike the others: none after them takes cores and links."""


@dataclass(frozen=True)
class Prediction:
    """The predicted figures of a step.

    `seconds` is the time of a step in the steady state, without any spread of op times; nine of ten
    steps take between `low` and `high`. Of the time of all devices, `busy` is compute, `exposed`
    waits for transfers and reductions, `bubble` waits for compute of other devices, and `other` is
    dispatch, data and the credit. `links` are bytes per step by link, `pairs` by pair of hosts.
    `memory` has the peak of each device, and `events` the number of simulated events.

    `devices` are the shares of each device: (busy, exposed, bubble, other).
    """

    trace: Trace
    seconds: float
    low: float
    high: float
    busy: float
    bubble: float
    exposed: float
    other: float
    links: Mapping[str, float] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    memory: Mapping[Location, int] = field(default_factory=dict)
    events: int = 0
    devices: Mapping[str, tuple[float, float, float, float]] = field(default_factory=dict)


def predict(
    lowered: Mapping[str | None, Lowered],
    times: Times,
    machine: Machine,
    *,
    iterations: int = 12,
    credit: int = 3,
    spread: float = 0.0,
    seed: int = 0,
    memory: bool = True,
) -> Prediction:
    """Simulate the hosts of a step, given their lowered graphs; None stands for the only host.

    The same arguments give the same prediction. `spread` is the standard deviation of the logarithm
    of op times; the range of a step comes from as many more iterations, with times drawn by `seed`.

    >>> import purine as pu
    >>> from purine.lowering import lower
    >>> from purine.simulator.times import ProfileTimes
    >>> step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="cpu:0-1")
    >>> machine = Machine(cores={("", "cpu:0"): (0,), ("", "cpu:1"): (1,)})
    >>> found = predict({None: lower(step)}, ProfileTimes(), machine)
    >>> 0 < found.low <= found.seconds <= found.high, found.trace.iterations == tuple(range(12))
    (True, True)
    """
    assert iterations > _SKIP + 1
    parts = parts_of(lowered, times, machine)
    engine = Engine(parts, machine, credit=credit)
    engine.run(iterations)
    seconds = per_step(engine, iterations)
    low = high = seconds
    if spread:
        drawn = simulate(
            parts, machine, iterations=4 * iterations, credit=credit, seed=seed, spread=spread
        )
        low, high = _range(drawn, seconds)
    trace = trace_of(engine)
    shares = shares_of(trace)
    count = max(1, len(shares))
    busy, exposed, bubble, other = (sum(s[k] for s in shares.values()) / count for k in range(4))
    links = {name: size / iterations for name, size in engine.flows.carried.items()}
    pairs = {pair: size / iterations for pair, size in engine.wires.bytes.items()}
    peaks = _memory(lowered, credit) if memory else {}
    return Prediction(
        *(trace, seconds, low, high, busy, bubble, exposed, other),
        *(links, pairs, peaks, engine.events, shares),
    )


def parts_of(
    lowered: Mapping[str | None, Lowered], times: Times, machine: Machine
) -> tuple[Part, ...]:
    """The parts of all hosts, with the times of their ops."""
    return tuple(
        make_part(one, host, _durations(times, one, host, machine), machine)
        for host, one in lowered.items()
    )


def _durations(times: Times, lowered: Lowered, host: str | None, machine: Machine) -> Duration:
    """The seconds of the ops of a host, on as many threads as their devices have."""
    by_threads = cache(partial(times.of, lowered, host))

    def duration(op: Op) -> float:
        cores = machine.cores_of(op.location.host, op.location.device)
        return by_threads(len(cores) or machine.threads)(op)

    return duration


def simulate(
    parts: tuple[Part, ...],
    machine: Machine,
    *,
    iterations: int,
    credit: int = 3,
    seed: int | None = None,
    spread: float = 0.0,
) -> Engine:
    """Run the hosts without a trace; the engine then has the ends of their iterations."""
    engine = Engine(parts, machine, credit=credit, seed=seed, spread=spread, record=False)
    engine.run(iterations)
    return engine


def ends_of_steps(engine: Engine) -> list[float]:
    """The times at which each iteration was complete on all hosts, in nanoseconds."""
    return [max(ends) for ends in zip(*(host.ends for host in engine.hosts), strict=True)]


def per_step(engine: Engine, iterations: int) -> float:
    """Seconds of a step in the steady state."""
    ends = ends_of_steps(engine)
    skip = min(_SKIP, iterations - 2)
    last = max(skip + 1, iterations - 1 - _DRAIN)
    return (ends[last] - ends[skip]) / (last - skip) / 1e9


def _range(engine: Engine, seconds: float) -> tuple[float, float]:
    """The times between which nine of ten steps lie."""
    ends = ends_of_steps(engine)[_SKIP:-_DRAIN]
    steps = [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]
    cuts = statistics.quantiles(steps, n=20)
    return min(cuts[0], seconds), max(cuts[-1], seconds)


def trace_of(engine: Engine) -> Trace:
    """The simulated events in the form of a recorded trace; of several hosts as one."""
    traces = []
    for number, host in enumerate(engine.hosts):
        part = host.part
        ops = [part.graph.ops[name] for name in part.plan.ops]
        known = [(op.name, op.kind, str(op.location), op.lane) for op in ops]
        events = []
        for at, worker, op, iteration, start, end in engine.records:
            if at == number:
                name, kind, location, lane = known[op]
                if floats(lane):
                    location, lane = str(part.workers[worker][0]), "compute"
                span = round(start), round(end)
                events.append(Event(name, kind, iteration, location, lane, *span))
        traces.append(Trace(tuple(events), edges_of(part.graph)))
    return traces[0] if len(traces) == 1 else merged(traces)


def per_iteration(trace: Trace, skip: int) -> float:
    """Seconds of an iteration of a trace, after the first `skip`."""
    first, begin, end = window(trace, skip)
    return (end - begin) / (trace.iterations[-1] - first + 1) / 1e9


def shares_of(trace: Trace, skip: int = _SKIP) -> dict[str, tuple[float, float, float, float]]:
    """By device the shares of its time: compute, transfers, other devices, the rest."""
    if not trace.events:
        return {}
    skip = min(skip, len(trace.iterations) - 1)
    report = overlap(trace, skip=skip)
    wall = max(1, report.wall)
    return {
        one.location: (
            one.busy / wall,
            one.transfers / wall,
            one.peers / wall,
            (one.data + one.other) / wall,
        )
        for one in report.devices
    }


def _memory(lowered: Mapping[str | None, Lowered], credit: int) -> dict[Location, int]:
    peaks: dict[Location, int] = {}
    for host, one in lowered.items():
        own = one.peak_memory(credit=credit)
        peaks |= {at: size for at, size in own.items() if host in (None, at.host)}
    return peaks
