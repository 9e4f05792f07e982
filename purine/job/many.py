"""The prediction of a job on too many devices to simulate one by one."""

from __future__ import annotations

from dataclasses import replace

from purine.analysis.cost import Profile
from purine.job.automatic import base_plan
from purine.job.candidates import Candidate
from purine.job.config import Job
from purine.job.foresee import Foresight, WhatIf, foresight, refuse_workers
from purine.job.on_paper import fold_for, refuse_many, smaller
from purine.job.placing import scheme_of
from purine.job.plan import JobPlan
from purine.job.search import MANY, with_candidate
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["MANY", "foresight_of_many"]


def foresight_of_many(
    job: Job, *, what_if: WhatIf, profile: Profile | None
) -> tuple[JobPlan, Foresight]:
    """The plan of a job without its step, and the prediction of that step.

    A few replicas represent all, if the scheme has enough equal ones.
    """
    scheme = scheme_of(job) or Scheme()
    base = base_plan(job)
    base = replace(base, job=replace(base.job, parallel=str(scheme)))
    refuse_workers(base)
    one = Candidate(parse_devices(job.devices), scheme)
    fold = fold_for(base, one)
    if fold is None:
        refuse_many(one)
        return base, foresight(with_candidate(base, one), what_if=what_if, profile=profile)
    own, kept = smaller(base, one, fold)
    hosts = list(kept.hosts)
    foretold = foresight(
        with_candidate(own, kept),
        what_if=what_if,
        profile=profile,
        shape=lambda machine: fold.machine(machine, hosts),
    )
    note = f"{fold.kept} of {fold.data} replicas were simulated and represent all"
    return base, replace(
        foretold,
        samples_per_second=base.samples_per_iteration / foretold.prediction.seconds,
        seconds_in_all=base.iterations * foretold.prediction.seconds,
        notes=(*foretold.notes, note),
    )
