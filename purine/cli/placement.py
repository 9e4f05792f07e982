"""Text about a job before it runs: what is trained, and what it needs of its devices."""

from __future__ import annotations

from purine.job import JobPlan
from purine.job.placing import placement, scheme_of
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["headline", "placement_text"]


def headline(plan: JobPlan) -> str:
    """What is trained: net, data, iterations and solver; precision and devices if not the usual."""
    job = plan.job
    samples, devices = plan.samples_per_iteration, parse_devices(job.devices)
    text = f"{job.net} on {job.data}: {plan.iterations} iterations of {samples} samples "
    text += f"with {job.solver}" + ("" if job.precision == "fp32" else f" in {job.precision}")
    return text + (f" on {len(devices)} devices ({_settings(plan)})" if len(devices) > 1 else "")


def placement_text(plan: JobPlan) -> str:
    """Memory of each device, bytes moved, and the schedule of a pipeline."""
    job, needs = plan.job, placement(plan.step)
    lines = [
        headline(plan),
        "memory at the worst moment of an iteration, without what kernels need for themselves:",
    ]
    lines += [f"  {location.device:<8} {_size(size):>12}" for location, size in needs.peaks.items()]
    lines += [
        f"  all {_size(needs.needed(memory))} of {_size(size)} available ({memory})"
        for memory, size in needs.available.items()
    ]
    if len(needs.peaks) > 1:
        lines.append(f"between devices: {_size(needs.moved)} an iteration")
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


def _settings(plan: JobPlan) -> str:
    items = str(scheme_of(plan.job)).split(",")
    return ",".join("schedule=grid" if "\n" in item else item for item in items)


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
