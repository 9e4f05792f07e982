"""The figures of a prediction as text, and as JSON."""

from __future__ import annotations

from json import dumps

from purine.job import JobPlan
from purine.job.foresee import Foresight
from purine.job.placing import megabytes
from purine.trace.tables import as_time

__all__ = ["as_json", "figures", "headline"]


def headline(plan: JobPlan) -> str:
    job = plan.job
    return (
        f"{job.net} on {job.data}: {plan.iterations} iterations of {plan.samples_per_iteration} "
        f"samples on {job.devices}" + (f" ({job.parallel})" if job.parallel else "")
    )


def figures(plan: JobPlan, foretold: Foresight) -> str:
    """The figures of a prediction as text."""
    one = foretold.prediction
    step, low, high = (as_time(seconds * 1e9) for seconds in (one.seconds, one.low, one.high))
    noun = plan.sample_noun
    lines = [
        f"a step takes {step} (nine of ten between {low} and {high}): "
        f"{foretold.samples_per_second:,.0f} {noun}/s, "
        f"{_duration(foretold.seconds_in_all)} for {plan.iterations} iterations",
        f"devices: {one.busy:.1%} compute, {one.bubble:.1%} waits for other devices, "
        f"{one.exposed:.1%} for transfers, {one.other:.1%} dispatch and data",
        f"limit: {foretold.limits}",
    ]
    for (source, target), size in sorted(one.pairs.items()):
        lines.append(f"{source} to {target}: {megabytes(int(size))} a step")
    several = len({at.host for at in one.memory}) > 1
    for at, size in one.memory.items():
        name = f"{at.host}:{at.device}" if several else at.device
        lines.append(f"memory of {name}: {megabytes(size)} at the peak")
    lines.append(foretold.basis)
    lines += [f"note: {note}" for note in foretold.notes]
    return "\n".join(lines)


def as_json(foretold: Foresight) -> str:
    """The figures of a prediction as one JSON object."""
    one = foretold.prediction
    return dumps(
        {
            "seconds": one.seconds,
            "low": one.low,
            "high": one.high,
            "samples_per_second": foretold.samples_per_second,
            "seconds_in_all": foretold.seconds_in_all,
            "busy": one.busy,
            "bubble": one.bubble,
            "exposed": one.exposed,
            "other": one.other,
            "links": dict(one.links),
            "bytes": {f"{a} {b}": size for (a, b), size in one.pairs.items()},
            "memory": {str(at): size for at, size in one.memory.items()},
            "limit": foretold.limits,
            "basis": foretold.basis,
        }
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} minutes" if minutes < 120 else f"{minutes / 60:.3g} hours"
