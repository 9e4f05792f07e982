"""The first part of the page: settings, curves, and where the time of a step went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from purine.job.config import Job, given_options
from purine.trace.overlap import overlap
from purine.trace.summary import summary
from purine.trace.trace import Trace
from purine.viewer.columns import Json

__all__ = [
    "curves_of",
    "facts_of_job",
    "facts_of_trace",
    "results_of",
    "settings_of",
    "shares_of",
    "time_text",
]

_CURVES = ("loss", "accuracy", "lr", "images_per_second", "loss_scale", "seconds")
_POINTS = 4000
"""Rows of metrics that are kept; of more, every second, every third and so on."""


def facts_of_job(job: Job) -> list[Json]:
    """Pairs of a name and a text about the job."""
    facts: dict[str, object] = {"net": job.net, "data": job.data, "solver": job.solver}
    facts |= {"devices": job.devices, "parallel": job.parallel, "precision": job.precision}
    facts |= {"batch": job.batch, "learning rate": job.lr, "seed": job.seed}
    return [[key, _text(value)] for key, value in facts.items() if value is not None]


def results_of(summary: Mapping[str, object]) -> list[Json]:
    """Pairs of a name and a text about the results of a run and its versions."""
    named = {"iterations": "iterations", "seconds": "time of training"}
    named |= {"test_accuracy": "test accuracy", "test_loss": "test loss"}
    named |= {"images_per_second": "samples a second", "parameters": "parameters"}
    named |= {"purine": "version of purine", "torch": "version of torch"}
    known = {key: summary[key] for key in named if summary.get(key) is not None}
    return [[named[key], _result(value, key)] for key, value in known.items()]


def settings_of(job: Job) -> dict[str, Json]:
    """The options of a job that were given or settled, as text."""
    return {key: _text(value) for key, value in given_options(job).items()}


def facts_of_trace(trace: Trace) -> list[Json]:
    """Pairs of a name and a text about a trace."""
    report = summary(trace)
    locations = {event.location for event in trace.events}
    return [
        ["iterations in the trace", str(len(trace.iterations))],
        ["events", f"{len(trace.events):,}"],
        ["devices in the trace", str(len(locations))],
        ["time of an iteration", time_text(report.iteration_time)],
    ]


def shares_of(trace: Trace) -> dict[str, Json]:
    """Where the time of a step went on each device, in ns of one iteration."""
    report = overlap(trace)
    count = report.last - report.first + 1
    parts = ("busy", "data", "transfers", "peers", "other")
    devices: list[Json] = [
        {
            "location": device.location,
            **{part: round(getattr(device, part) / count) for part in parts},
        }
        for device in report.devices
    ]
    return {"devices": devices, "wall": round(report.wall / count), "hidden": report.hidden}


def curves_of(rows: Iterable[Mapping[str, object]]) -> dict[str, Json]:
    """The metrics of training and of tests as columns; infinite and NaN values are null."""
    training = [row for row in rows if "test_loss" not in row]
    tests = [row for row in rows if "test_loss" in row]
    every = -(-len(training) // _POINTS) or 1
    kept = [*training[:-1:every], *training[-1:]]
    names = [name for name in _CURVES if any(row.get(name) is not None for row in kept)]
    curves: dict[str, Json] = {"iteration": _column(kept, "iteration")}
    curves |= {name: _column(kept, name) for name in names}
    measured = {key: _column(tests, key) for key in ("iteration", "test_loss", "test_accuracy")}
    return {"training": curves, "tests": dict(measured)}


def time_text(ns: float) -> str:
    """Nanoseconds with the unit that suits them, as the script of the page writes them.

    >>> time_text(31_011_200), time_text(4.12e9)
    ('31.01 ms', '4.12 s')
    """
    units = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
    size, unit = next((one for one in units if ns >= one[0]), (1, "ns"))
    return f"{ns / size:.4g} {unit}"


def _column(rows: Sequence[Mapping[str, object]], name: str) -> list[Json]:
    return [_number(row.get(name)) for row in rows]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return value


def _result(value: object, key: str) -> str:
    if not isinstance(value, float):
        return _text(value)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} s" if key == "seconds" else text


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(_text, value)) if isinstance(value, tuple | list) else str(value)
