"""What a job needs of its devices, as text."""

from __future__ import annotations

from purine.job import Plan
from purine.job.placing import placement, scheme_of
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["placement_text", "where_text"]


def where_text(plan: Plan) -> str:
    """The precision of a job and its devices where they are not the usual ones.

    It stands behind the solver.
    """
    job = plan.job
    devices = parse_devices(job.devices)
    precision = "" if job.precision == "fp32" else f" in {job.precision}"
    if len(devices) == 1:
        return precision
    return f"{precision} on {len(devices)} devices ({_settings(plan)})"


def placement_text(plan: Plan) -> str:
    """Memory of each device, bytes moved, and the schedule of a pipeline."""
    job, found = plan.job, placement(plan.step)
    lines = [
        f"{job.net} on {job.data}: {plan.iterations} iterations of {plan.images} samples "
        f"with {job.solver}{where_text(plan)}",
        "memory at the worst moment of an iteration, without what kernels need for themselves:",
    ]
    lines += [f"  {place.device:<8} {_size(size):>12}" for place, size in found.peaks.items()]
    lines += [
        f"  all {_size(found.needed(memory))} of {_size(size)} available ({memory})"
        for memory, size in found.available.items()
    ]
    if len(found.peaks) > 1:
        lines.append(f"between devices: {_size(found.moved)} an iteration")
    scheme = scheme_of(job)
    if scheme is not None and scheme.pipeline > 1:
        lines += _schedule(scheme, job.accumulate or 1)
    return "\n".join(lines)


def _schedule(scheme: Scheme, times: int) -> list[str]:
    grid = scheme.grid(times)
    return [
        f"schedule of each replica, {grid.micro} micro-batches over {grid.stages} stages; "
        f"{scheme.idle(times):.1%} idle where stages take equally long:",
        *(f"  {row}" for row in str(grid).splitlines()),
    ]


def _settings(plan: Plan) -> str:
    items = str(scheme_of(plan.job)).split(",")
    return ",".join("schedule=grid" if "\n" in item else item for item in items)


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
