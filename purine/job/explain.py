"""A run beside its prediction: the predicted and the measured time of each op.

The same op runs once for each device and each part of a batch. Those that come from one op of the
net, in one role, are added up: a *part* of the step. The times of an arrival from another host are
those of the transfer.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from purine.analysis.cost import Profile
from purine.errors import ConfigError
from purine.graph import Op
from purine.graph.names import origin_of
from purine.job.foresee import Foresight, Source, WhatIf, foresight
from purine.job.plan import JobPlan
from purine.simulator.prediction import per_iteration, shares_of
from purine.simulator.times import settled_times
from purine.trace.tables import as_table, as_time
from purine.trace.trace import Trace

__all__ = ["Explained", "Part", "explain"]


@dataclass(frozen=True, slots=True)
class Part:
    """Ops that are added up: the number of their events in a step, and their nanoseconds."""

    name: str
    count: int
    predicted: float
    recorded: float

    @property
    def apart(self) -> float:
        """Measured minus predicted nanoseconds of a step."""
        return self.recorded - self.predicted


@dataclass(frozen=True)
class Explained:
    """What was predicted of a step and what was recorded: seconds, shares, and times of ops.

    `shares` are of all devices' time, of both: compute, transfers, other devices, the rest.
    `unforeseen` are ops that only one of the two traces has.
    """

    foresight: Foresight
    predicted: float
    recorded: float
    shares: tuple[tuple[float, ...], tuple[float, ...]]
    kinds: tuple[Part, ...]
    parts: tuple[Part, ...]
    unforeseen: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The relative error of the step time: 0.1 if the prediction was a tenth too long."""
        return self.predicted / self.recorded - 1

    def text(self, top: int = 10) -> str:
        """A report in plain text."""
        lines = [
            f"a step: {as_time(self.predicted * 1e9)} predicted, "
            f"{as_time(self.recorded * 1e9)} recorded ({self.error:+.1%}); {self.foresight.basis}",
            "",
            "share of all devices' time",
            _shares(*self.shares),
            "",
            "time of a step by kind, all devices together",
            _table(sorted(self.kinds, key=lambda part: -part.recorded)[:top]),
            "",
            "where they part most",
            _table(sorted(self.parts, key=lambda part: -abs(part.apart))[:top]),
        ]
        if self.unforeseen:
            names = ", ".join(self.unforeseen[:5])
            lines += ["", f"in one of the two only: {len(self.unforeseen)} ops, such as {names}"]
        return "\n".join(lines) + "\n"


def explain(
    plan: JobPlan, recorded: Trace, *, source: Source | None = None, profile: Profile | None = None
) -> Explained:
    """Predict the job of a trace, from a `source` or the profile, and compare both."""
    count = len(recorded.iterations)
    if count < 2:
        expected = "a trace of two iterations or more: the first one warms up"
        remedy = "record more with --trace-iters"
        raise ConfigError("the trace is too short", expected, str(count), remedy)
    told = foresight(
        plan, source=source, what_if=WhatIf(), profile=profile, memory=False, single=True
    )
    foretold = told.prediction.trace
    ours, theirs = _times(foretold), _times(recorded)
    kinds = {event.op: event.kind for event in (*foretold.events, *recorded.events)}
    both = [name for name in theirs if name in ours]
    ops = plan.step.ops
    return Explained(
        told,
        told.prediction.seconds,
        per_iteration(recorded, recorded.warm_up),
        (
            _mean(told.prediction.devices.values()),
            _mean(shares_of(recorded, recorded.warm_up).values()),
        ),
        _parts(both, ours, theirs, kinds.__getitem__),
        _parts(both, ours, theirs, lambda name: _part(name, ops.get(name), kinds[name])),
        tuple(sorted(ours.keys() ^ theirs.keys())),
    )


def _times(trace: Trace) -> dict[str, float]:
    """Nanoseconds of each op after warm-up; for transfers between hosts the median."""
    first = trace.iterations[trace.warm_up]
    spent: dict[str, list[int]] = defaultdict(list)
    for event in trace.events:
        if event.iteration >= first:
            spent[event.op].append(event.end - event.start)
    medians = {op: statistics.median(times) for op, times in spent.items()}
    return medians | {op: seconds * 1e9 for op, seconds in settled_times(trace).items()}


def _part(name: str, op: Op | None, kind: str) -> str:
    """The key by which an op is added up: an op of the net, and its role."""
    if op is None:
        return f"{name} ({kind})"
    origin = origin_of(op)
    role = f" {origin.role}" if origin.role else ""
    return f"{origin.of.removeprefix(origin.parts)}{role} ({kind})"


def _parts(
    names: Iterable[str],
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    group: Callable[[str], str],
) -> tuple[Part, ...]:
    together: dict[str, list[str]] = defaultdict(list)
    for name in names:
        together[group(name)].append(name)
    return tuple(
        Part(key, len(own), sum(ours[name] for name in own), sum(theirs[name] for name in own))
        for key, own in together.items()
    )


def _mean(devices: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    rows = list(devices)
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True)) if rows else ()


def _table(parts: Sequence[Part]) -> str:
    rows: list[tuple[str, ...]] = [("", "ops", "predicted", "recorded", "apart")]
    for part in parts:
        ratio = f"{part.predicted / part.recorded - 1:+.0%}" if part.recorded else "-"
        times = as_time(part.predicted), as_time(part.recorded)
        rows.append((part.name, str(part.count), *times, ratio))
    return as_table(rows, left=1)


def _shares(predicted: Sequence[float], recorded: Sequence[float]) -> str:
    head = ("", "compute", "transfers", "other devices", "dispatch and data")
    rows: list[tuple[str, ...]] = [head]
    for name, shares in (("predicted", predicted), ("recorded", recorded)):
        rows.append((name, *(f"{share:.1%}" for share in shares)))
    return as_table(rows, left=1)
