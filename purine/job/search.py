"""The plan of a job: the search for a scheme.

Candidates are enumerated, ranked by the cost model, and simulated, the most promising first. A
candidate whose compute alone takes longer than the best step so far is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

from purine.analysis.cost import Profile
from purine.analysis.infer import check, size_in_bytes
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError, PurineError
from purine.graph import Location
from purine.job.caffe import caffe_solver
from purine.job.candidates import Candidate, Work, candidates, spans
from purine.job.config import Job
from purine.job.foresee import Source, WhatIf, foresee
from purine.job.on_paper import foresee_folded
from purine.job.placing import megabytes, threads_for
from purine.job.plan import JobPlan, prepared, recipe_of
from purine.job.profiles import own_profile
from purine.job.quick import measurable, measured, tried
from purine.machine.capacity import available_memory
from purine.parallel import Scheme
from purine.placement.devices import is_cpu, parse_devices
from purine.recipe import make_step
from purine.simulator.machine import Machine
from purine.simulator.prediction import Prediction

__all__ = [
    "ERROR",
    "MANY",
    "Planned",
    "Search",
    "Searched",
    "search",
    "seconds_text",
    "with_candidate",
]

ERROR = 0.08
"""How far predictions may be from a run where times are measured: plans that differ by less are
equally good."""
MANY = 64
"""Above so many devices hosts that do the same are simulated once."""
_TIES, _FEWEST = 5, 3
"""How many plans are run in turns, at most and at least, to choose between them."""
_NEAR = 1.5
"""How much longer than the best a plan may take, as predicted, to run among the first."""
_SIZES = 6
"""How many sizes of batches are measured."""
_ONE = Scheme()


@dataclass(frozen=True)
class Planned:
    """A simulated candidate: seconds of a step, its range, and the peak of each device.

    `tried` are the seconds of a step that ran.
    """

    candidate: Candidate
    seconds: float
    low: float
    high: float
    peaks: Mapping[Location, int]
    tried: float | None = None

    @property
    def peak(self) -> int:
        """The largest peak of a device."""
        return max(self.peaks.values(), default=0)


@dataclass(frozen=True)
class Searched:
    """The result of a search: plans, the best first, and why other candidates were dropped.

    `job` is that of the best plan. `seconds` are those of the search, of which `measured` were
    spent measuring the net.
    """

    job: Job
    plans: tuple[Planned, ...]
    out: tuple[tuple[Candidate, str], ...]
    basis: str
    seconds: float
    measured: float
    memory: int

    @property
    def best(self) -> Planned:
        return self.plans[0]

    @property
    def ties(self) -> tuple[Planned, ...]:
        """The plans that differ from the best by less than the error of predictions."""
        if self.best.tried is not None:
            return ()
        most = self.best.seconds * (1 + ERROR)
        return tuple(one for one in self.plans[1:] if one.seconds < most)


@dataclass(frozen=True)
class Search:
    """The settings of a search besides the job.

    `memory` are the bytes of each device, or None for the memory of this machine, shared by its CPU
    devices. `most` bounds the number of simulated candidates, `seconds` the time of the search,
    `measuring` the seconds of it for measuring. With a `source` nothing is measured. Plans that may
    be the best take turns here for `trial` seconds, five at a time, if they can.
    """

    allow: Collection[str] = ()
    what_if: WhatIf = field(default_factory=WhatIf)
    profile: Profile = field(default_factory=own_profile)
    source: Source | None = None
    memory: int | None = None
    most: int = 24
    seconds: float = 300.0
    measuring: float = 30.0
    trial: float = 0.0
    progress: Callable[[str], None] = lambda text: None


def search(plan: JobPlan, told: Search) -> Searched:
    """The best schemes for the devices of a plan; raises if none fits into their memory."""
    return _Searching(plan, told).run()


def with_candidate(plan: JobPlan, candidate: Candidate) -> JobPlan:
    """The plan with the scheme of a candidate; it may need more than this machine has."""
    scheme, all_devices = candidate.scheme, parse_devices(plan.job.devices)
    same = candidate.devices == all_devices
    alone = len(candidate.devices) == 1 and scheme.micro_batches == 1 and scheme.recompute is None
    job = replace(
        plan.job,
        devices=plan.job.devices if same else spans(candidate.devices),
        parallel=None if alone else str(scheme),
        compress=candidate.compress or plan.job.compress,
    )
    if not same:
        job = replace(job, threads=threads_for(job))
    caffe, image = caffe_solver(job), plan.values.get(MEAN_IMAGE)
    with_samples = prepared(job, plan.net, plan.data.train, image)
    step = check(make_step(with_samples, recipe_of(job, caffe, plan.iterations)))
    return replace(plan, job=job, step=step)


class _Searching:
    def __init__(self, plan: JobPlan, told: Search) -> None:
        self.plan, self.told = plan, told
        self.devices = parse_devices(plan.job.devices)
        self.memory = told.memory or available_memory("cpu:0")
        self.sources: tuple[Source, ...] = ()
        self.measuring = 0.0
        self.plans: list[Planned] = []
        self.out: list[tuple[Candidate, str]] = []
        self.start = perf_counter()

    def run(self) -> Searched:
        batch, net = self.plan.job.batch, self.plan.net
        assert batch is not None
        every = candidates(
            self.devices,
            batch,
            allow=self.told.allow,
            shared=self.told.what_if.transport == "shm",
            layers=max(1, len(net.ops) - 1),
            inner=any(op.kind == "InnerProduct" for op in net.ops.values()),
        )
        todo = list(every)
        if self.told.source is None and self.told.measuring > 0 and measurable(self.plan):
            start = perf_counter()
            sizes = _sizes(todo, batch)
            self.sources = measured(self.plan, sizes, seconds=self.told.measuring)
            self.measuring = perf_counter() - start
        work = self._work()
        todo = _ordered(todo, work)
        tried = 0
        while todo:
            one = todo.pop(0)
            why = self._left_out(one, work, tried)
            if why:
                self.out.append((one, why))
                continue
            tried += 1
            smaller = self._try(one)
            if smaller is not None:
                todo.insert(0, smaller)
        return self._searched()

    def _work(self) -> Work:
        """The work of a step, from the times of one device."""
        one = with_candidate(self.plan, Candidate(self.devices[:1], _ONE))
        seconds = self._foresee(one).seconds
        sizes = (size_in_bytes(one.step.blobs[name]) for name in one.step.states)
        solver_states = 2 if self.plan.job.momentum else 1
        link = self.told.what_if.link
        rate = float("inf") if link is None else link.rate
        blobs = sum(size_in_bytes(blob) for blob in self.plan.net.blobs.values())
        return Work(
            seconds,
            sum(sizes) // solver_states,
            rate,
            self.plan.job.accumulate or 1,
            float(blobs),
            max(1, len(self.plan.net.ops)),
        )

    def _left_out(self, one: Candidate, work: Work, tried: int) -> str:
        """Why a candidate is not simulated, if it is not."""
        if one.scheme.asynchronous is not None:
            return "workers that do not wait for each other are not simulated"
        about = f"about {seconds_text(work.estimate(one))} a step"
        if tried and tried >= self.told.most:
            return f"{self.told.most} others are more promising: {about}"
        if tried and perf_counter() - self.start > self.told.seconds:
            return f"no time was left for it: {about}"
        best = min((plan.seconds for plan in self.plans), default=float("inf"))
        least = 0.7 * work.compute(one)
        if least > best:
            alone = f"its compute alone takes {seconds_text(least)}"
            return f"{alone}, the best step {seconds_text(best)}"
        return ""

    def _try(self, one: Candidate) -> Candidate | None:
        """Simulate a candidate; if it does not fit, returns one that needs less memory."""
        try:
            if len(self.devices) > MANY:
                foretold = foresee_folded(self.plan, one, with_candidate, self._foresee)
            else:
                foretold = self._foresee(with_candidate(self.plan, one))
        except PurineError as error:
            self.out.append((one, error.what))
            return None
        planned = Planned(one, foretold.seconds, foretold.low, foretold.high, foretold.memory)
        over = self._too_much(planned)
        if over:
            self.out.append((one, over))
            if one.scheme.recompute is None and self.plan.job.compile is not True:
                return replace(one, scheme=replace(one.scheme, recompute=8))
            return None
        self.plans.append(planned)
        self.told.progress(f"{one}: {seconds_text(planned.seconds)} a step")
        return None

    def _foresee(
        self, plan: JobPlan, shape: Callable[[Machine], Machine] | None = None
    ) -> Prediction:
        source, what_if, profile = self.told.source, self.told.what_if, self.told.profile
        if source is None and self.sources:
            # That of the same job comes first, whose times need no scaling.
            first, *others = sorted(
                self.sources, key=lambda one: one.plan is None or one.plan.step != plan.step
            )
            source = replace(first, others=tuple(others))
        return foresee(
            plan, source=source, what_if=what_if, profile=profile, iterations=10, shape=shape
        )

    def _too_much(self, planned: Planned) -> str:
        """Why a plan does not fit, if it does not: devices of a host may share one memory."""
        if self.told.memory is None:
            shared: dict[str, int] = {}
            for at, size in planned.peaks.items():
                where = at.host if is_cpu(at) else str(at)
                shared[where] = shared.get(where, 0) + size
            worst = max(shared.values(), default=0)
        else:
            worst = planned.peak
        if worst <= self.memory:
            return ""
        return f"it needs {megabytes(worst)} of {megabytes(self.memory)}"

    def _searched(self) -> Searched:
        if not self.plans:
            needs = [why for _, why in self.out if why.startswith("it needs")]
            raise ConfigError(
                "no scheme fits into the memory of the devices",
                expected=f"at most {megabytes(self.memory)}",
                found=min(needs, key=lambda why: (len(why), why), default="no scheme that works"),
                remedy="name more devices, lower --batch, or give --memory what devices have",
            )
        plans = self._tried(sorted(self.plans, key=lambda one: one.seconds))
        basis = f"times are the profile {self.told.profile.name!r}"
        if self.sources:
            basis = "times are measured here, in this process"
        elif self.told.source is not None:
            basis = "times are those of the trace"
        best, job = plans[0].candidate, self.plan.job
        if len(self.devices) <= MANY:
            job = with_candidate(self.plan, best).job
        else:
            job = replace(job, parallel=str(best.scheme), compress=best.compress or job.compress)
        seconds = perf_counter() - self.start
        return Searched(job, plans, tuple(self.out), basis, seconds, self.measuring, self.memory)

    def _tried(self, plans: list[Planned]) -> tuple[Planned, ...]:
        """The plans, with those first that ran here, the fastest of these first.

        The most promising run first. The ratios of their measured to predicted times show how far
        other predictions may be off. As long as another plan may still be faster, more of them run,
        together with the fastest so far.
        """
        if self.told.trial <= 0 or len(plans) < 2 or not self._runs_here(plans):
            return tuple(plans)
        best = plans[0].seconds
        close = sum(one.seconds < best * (1 + ERROR) for one in plans)
        near = sum(one.seconds < best * _NEAR for one in plans)
        first = max(min(close, _TIES), min(near, _FEWEST))
        if first < 2:
            return tuple(plans)
        ran, waiting = self._run(plans[:first]), plans[first:]
        while waiting and perf_counter() - self.start < self.told.seconds:
            ratios = [_took(one) / one.seconds for one in ran]
            error = max(ERROR, max(ratios) / min(ratios) - 1)
            most = _took(ran[0]) * (1 + error) / min(ratios)
            chosen = [one for one in waiting if one.seconds < most][: _TIES - 1]
            if not chosen:
                break
            waiting = [one for one in waiting if one not in chosen]
            ran = sorted([*self._run([ran[0], *chosen]), *ran[1:]], key=_took)
        return (*ran, *waiting)

    def _runs_here(self, plans: Collection[Planned]) -> bool:
        several = any(len(one.candidate.hosts) > 1 for one in plans)
        return not several and measurable(self.plan)

    def _run(self, plans: Collection[Planned]) -> list[Planned]:
        """Plans that took turns here, the fastest first."""
        start = perf_counter()
        steps = [with_candidate(self.plan, one.candidate) for one in plans]
        times = tried(steps, seconds=self.told.trial)
        self.measuring += perf_counter() - start
        ran = [replace(one, tried=time) for one, time in zip(plans, times, strict=True)]
        return sorted(ran, key=_took)


def _took(one: Planned) -> float:
    """The measured seconds of a step of a plan, else the predicted ones."""
    return one.seconds if one.tried is None else one.tried


def _ordered(todo: Collection[Candidate], work: Work) -> list[Candidate]:
    """Candidates by their estimate: plain data parallelism, then the best of each product of
    numbers of replicas, stages and shards, then the rest."""
    ordered = sorted(todo, key=lambda one: (not one.plain, work.estimate(one)))
    first: dict[object, Candidate] = {}
    for one in ordered:
        scheme = one.scheme
        key = scheme.data, scheme.pipeline, scheme.model, scheme.hybrid, scheme.asynchronous
        first.setdefault(key, one)
    firsts = list(first.values())
    return [*firsts, *(one for one in ordered if one not in firsts)]


def _sizes(todo: Collection[Candidate], batch: int) -> list[tuple[int, int]]:
    """The measurements to make: devices and samples of each, by how many candidates need them.

    Plain data parallelism and one device alone come first.
    """
    count: dict[tuple[int, int], float] = {}
    for one in todo:
        scheme = one.scheme
        key = len(one.devices), batch // (scheme.data * scheme.micro_batches)
        if key[1]:
            alone = one.plain or len(one.devices) == 1
            count[key] = count.get(key, 0) + (1000 if alone else 1)
    return sorted(count, key=lambda key: (-count[key], key))[:_SIZES]


def seconds_text(seconds: float) -> str:
    """Seconds as text, those below one in milliseconds."""
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
