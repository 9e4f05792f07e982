"""Times of a net's ops on this machine, from a few steps in this process.

A plan compares schemes on devices of this machine. The times of ops while all devices compute are
measured with plain data parallelism on as many devices, for each batch size of a device.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from purine.analysis.infer import with_batch
from purine.errors import PurineError
from purine.job.foresee import Source
from purine.job.plan import JobPlan, make_plan
from purine.machine.cores import available
from purine.placement.devices import as_locations, is_cpu
from purine.runtime.run import Run

__all__ = ["measurable", "measured", "run_here", "seconds_of", "tried"]

_TURNS = 10
_STEPS = 2
"""Steps of a turn. Sizes take turns, so whatever else the machine does slows all of them."""


def measurable(plan: JobPlan) -> bool:
    """Whether all devices of a plan are cores of this machine, with a core for each."""
    locations = as_locations(plan.job.devices)
    threads = plan.job.threads or 1
    return all(map(is_cpu, locations)) and len(locations) * threads <= len(available())


def measured(
    plan: JobPlan, sizes: Collection[tuple[int, int]], *, seconds: float
) -> tuple[Source, ...]:
    """Traces of the net of a plan on this machine, for pairs (devices, samples of each)."""
    plans: list[JobPlan] = []
    for devices, samples in sizes:
        try:
            plans.append(_plain(plan, devices, samples))
        except PurineError:  # a batch that the net cannot be made for
            continue
    with ExitStack() as stack:
        runs = [stack.enter_context(run_here(own, record=True)) for own in plans]
        ends = perf_counter() + seconds
        for turn in range(_TURNS):
            for run in runs:
                seconds_of(run, _STEPS)
            if turn > 1 and perf_counter() > ends:
                break
        return tuple(
            Source(Path("measured"), run.trace, own) for run, own in zip(runs, plans, strict=True)
        )


def tried(plans: Sequence[JobPlan], *, seconds: float) -> list[float]:
    """Seconds of a step of each of these plans, run here in turns; medians."""
    spent: list[list[float]] = [[] for _ in plans]
    with ExitStack() as stack:
        runs = [stack.enter_context(run_here(own)) for own in plans]
        ends = perf_counter() + seconds
        turn = seconds / len(runs) / _TURNS
        counts = [max(_STEPS, round(turn / seconds_of(run, _STEPS))) for run in runs]
        while perf_counter() < ends or not spent[-1]:
            for run, count, times in zip(runs, counts, spent, strict=True):
                times.append(seconds_of(run, count))
    return [statistics.median(times) for times in spent]


def run_here(plan: JobPlan, *, record: bool = False) -> Run:
    """A run of a plan's step in this process, op by op."""
    job = plan.job
    return Run(
        plan.step,
        data=plan.data,
        seed=job.seed or 0,
        threads=job.threads,
        prefetch=job.prefetch,
        compiled=False,
        record=record,
    )


def seconds_of(run: Run, steps: int) -> float:
    """The seconds of a step, of so many that are run now."""
    start = perf_counter()
    for _ in run.steps(steps):
        pass
    return (perf_counter() - start) / steps


def _plain(plan: JobPlan, devices: int, samples: int) -> JobPlan:
    """Plain data parallelism on devices of this machine, with this number of samples on each."""
    job = replace(
        plan.job,
        devices=f"cpu:0-{devices - 1}" if devices > 1 else "cpu:0",
        parallel=f"data={devices}" if devices > 1 else None,
        threads=plan.job.threads if devices > 1 else None,
        batch=None,
        compress=None,
        accumulate=1,
    )
    return make_plan(job, net=with_batch(plan.net, devices * samples), elsewhere=True)
