"""Predictions for a job: its step, simulated on the devices that it names.

Times of ops come from a trace of the same job, from one of the same net on other devices, or from
the profile of the machine, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

from purine.analysis.cost import Profile
from purine.errors import ConfigError
from purine.graph import Location
from purine.job.folder import RunFolder
from purine.job.placing import scheme_of
from purine.job.plan import JobPlan, make_plan
from purine.job.profiles import own_profile
from purine.lowering import Lowered, Options, lower, options_for
from purine.lowering.hosts import hosts_of
from purine.lowering.segments import SEGMENT
from purine.machine.cores import available, threads_of_all
from purine.placement.devices import is_cpu
from purine.simulator.limits import limit
from purine.simulator.machine import TRANSPORTS, Machine, Wire
from purine.simulator.network import Link, Network
from purine.simulator.prediction import Prediction, predict
from purine.simulator.times import Known, ProfileTimes, Times, TraceTimes, dispatch_of, spread_of
from purine.trace.events import host_of
from purine.trace.trace import Trace

__all__ = ["Foresight", "Source", "Told", "WhatIf", "foresee", "foresight", "read_source"]

_LINK = Link("10gbit", 1.25e9, 50e-6)
"""What hosts are taken to be connected by where nothing says it."""


@dataclass(frozen=True)
class WhatIf:
    """A hypothetical machine: other links between hosts, and slow devices.

    `slow` gives speeds by (host or "", device). `transport` is the one between hosts.
    """

    link: Link | None = None
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    transport: str = "tcp"


@dataclass(frozen=True)
class Source:
    """A recorded trace, and the plan of its job, if its folder has one.

    `others` are traces of the same net, with other batches or devices.
    """

    path: Path
    trace: Trace
    plan: JobPlan | None = None
    others: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Foresight:
    """A prediction of a job: the figures of its step, what limits it, and how long the job takes.

    `basis` is the source of the times. `notes` are the assumptions.
    """

    prediction: Prediction
    limits: str
    basis: str
    samples_per_second: float
    seconds_in_all: float
    notes: tuple[str, ...] = ()


def read_source(path: Path) -> Source:
    """A trace with the job of its folder: the path of a run or of a file."""
    file = path / "trace.json" if path.is_dir() else path
    trace = Trace.load(file)
    if not trace.events:
        what, remedy = "the trace has no events", "record some iterations with --trace"
        raise ConfigError(what, "a trace with events", "none", remedy, where=file)
    if not (file.parent / "config.yaml").is_file():
        return Source(file, trace)
    folder = RunFolder.existing(file.parent)
    plan = make_plan(
        replace(folder.read_config(), out=None),
        net=folder.read_net(),
        test_net=folder.read_test_net(),
        elsewhere=True,
    )
    return Source(file, trace, plan)


class Told(TypedDict, total=False):
    """What a prediction is told beside the plan of a job; all of it may be left out.

    Without a `source`, times are those of the `profile`. `iterations` are simulated. Without
    `memory`, the peaks of devices are not computed. With `single`, ops are dispatched one by one,
    as in a run that is recorded; the trace then has the names of the graph, and no segments.
    `shape` changes the machine that it is simulated on.
    """

    source: Source | None
    what_if: WhatIf
    profile: Profile | None
    iterations: int
    memory: bool
    single: bool
    shape: Callable[[Machine], Machine] | None


def foresee(plan: JobPlan, **told: Unpack[Told]) -> Prediction:
    """The prediction of a job's step: its trace, and the figures from it.

    >>> from purine.job import merge
    >>> foretold = foresee(make_plan(merge({}, {"net": "mlp", "iters": 5})))
    >>> foretold.seconds > 0, foretold.trace.iterations == tuple(range(12))
    (True, True)
    """
    return _Setting(plan, told).prediction()


def foresight(plan: JobPlan, **told: Unpack[Told]) -> Foresight:
    """The prediction of a job, with what limits it and when it will be done."""
    setting = _Setting(plan, told)
    prediction = setting.prediction()

    def again(machine: Machine) -> float:
        return setting.predict(machine, spread=0.0).seconds

    return Foresight(
        prediction,
        limit(prediction, setting.machine, again),
        setting.basis,
        plan.samples_per_iteration / prediction.seconds,
        plan.iterations * prediction.seconds,
        setting.notes(),
    )


class _Setting:
    """A job, the source of the times of its ops, and the machine that it is to run on."""

    def __init__(self, plan: JobPlan, told: Told) -> None:
        self.plan, self.told = plan, told
        self.source = source = told.get("source")
        self.what_if = told.get("what_if") or WhatIf()
        self.profile = told.get("profile") or own_profile()
        self.hosts = hosts_of(plan.step)
        other = None if source is None else source.plan
        self.replayed = other is not None and (
            (other.step, other.job.threads) == (plan.step, plan.job.threads)
        )
        """Whether the trace is of the same job: its devices, its scheme and its batch."""
        names: Sequence[str | None] = self.hosts if len(self.hosts) > 1 else (None,)
        grouped = source is not None and any(e.kind == SEGMENT for e in source.trace.events)
        self.lowered: dict[str | None, Lowered] = {}
        for host in names:
            single = told.get("single", False)
            options = Options(host=host) if single else options_for(plan.step, host)
            one = lower(plan.step, options)
            # The times of a trace of segments are those of segments.
            self.lowered[host] = replace(one, members={}) if grouped and self.replayed else one
        self.times, self.basis = self._times()
        shape = told.get("shape")
        self.machine = self._machine() if shape is None else shape(self._machine())

    def _times(self) -> tuple[Times, str]:
        source = self.source
        if source is None:
            basis = "guesses, since no profile was measured (run purine calibrate)"
            if self.profile.kernels.points:
                basis = f"the profile {self.profile.name!r}"
            return ProfileTimes(self.profile), f"times are {basis}"
        if self.replayed:
            return TraceTimes.of_job(source.trace, self.profile), "times are those of this job"
        if source.plan is None:
            basis = "times are those of ops with the same names; the rest are estimates"
            return TraceTimes.of_job(source.trace, self.profile), basis
        known = _known(source.plan, source.trace)
        for other in source.others:
            known += [] if other.plan is None else _known(other.plan, other.trace)
        return TraceTimes(
            known, profile=self.profile
        ), "times are those of the same net on other devices"

    def _machine(self) -> Machine:
        """The machine of the job, as it is."""
        profile, job, source = self.profile, self.plan.job, self.source
        link = self.what_if.link or _LINK
        dispatch = profile.dispatch
        if source is not None:
            dispatch = dispatch_of(source.trace, dispatch)
        return Machine(
            dispatch=dispatch,
            hop=profile.hop,
            cores=_cores(self.plan),
            threads=threads_of_all() if job.threads is None else job.threads,
            crowding=0.0 if self.replayed else profile.crowding,
            contended=not self.replayed,
            wire=_wire(self.what_if.transport, profile),
            network=Network.switched(self.hosts, link),
            slow={
                (h or host, at): s
                for (h, at), s in self.what_if.slow.items()
                for host in self.hosts
            },
        )

    def prediction(self) -> Prediction:
        """What the machine of the job will do, with the peak of each device if it is asked for."""
        spread = self.profile.spread if self.source is None else spread_of(self.source.trace)
        prediction = self.predict(self.machine, spread=spread)
        asked = self.told.get("memory", True)
        return replace(prediction, memory=self.memory()) if asked else prediction

    def predict(self, machine: Machine, *, spread: float) -> Prediction:
        """What a machine will do."""
        job = self.plan.job
        return predict(
            self.lowered,
            self.times,
            machine,
            iterations=self.told.get("iterations", 12),
            credit=job.prefetch + 1,
            spread=spread,
            seed=job.seed or 0,
            memory=False,
        )

    def memory(self) -> dict[Location, int]:
        """The peak of each device."""
        step, credit = self.plan.step, self.plan.job.prefetch + 1
        if len(self.hosts) == 1:
            return dict(lower(step, options_for(step)).peak_memory(credit=credit))
        peaks: dict[Location, int] = {}
        for host in self.hosts:
            peaks |= lower(step, Options(host=host)).peak_memory(credit=credit)
        return peaks

    def notes(self) -> tuple[str, ...]:
        """The assumptions."""
        notes = []
        if len(self.hosts) > 1 and self.what_if.link is None:
            notes.append(
                "hosts are assumed to be joined by 10 Gbit/s; change it with --what-if link="
            )
        if len(self.hosts) > 1:
            notes.append(f"values go between hosts over {self.what_if.transport}")
        return tuple(notes)


def _known(plan: JobPlan, trace: Trace) -> list[Known]:
    """The trace of another job, host by host, with the graphs that ran."""
    hosts, threads = hosts_of(plan.step), plan.job.threads or 1
    if len(hosts) == 1:
        return [Known(trace, lower(plan.step, Options()), threads)]
    known = []
    for host in hosts:
        events = tuple(
            replace(event, op=event.op.removeprefix(f"{host}/"))
            for event in trace.events
            if host_of(event.location) == host
        )
        known.append(Known(Trace(events), lower(plan.step, Options(host=host)), threads, host))
    return known


def _cores(plan: JobPlan) -> dict[tuple[str, str], tuple[int, ...]]:
    """The cores of each device, as `machine.cores` assigns them; a machine that does not exist has
    as many as its devices need."""
    job, cores = plan.job, {}
    devices: dict[str, list[str]] = {}
    for op in plan.step.ops.values():
        own = devices.setdefault(op.location.host, [])
        if is_cpu(op.location) and op.location.device not in own:
            own.append(op.location.device)
    for host, names in devices.items():
        size = job.threads or 1
        count = len(available()) if job.share_cores else 1 << 20
        for name in names if len(names) > 1 else ():
            number = int(name.partition(":")[2])
            numbers = range(number * size, (number + 1) * size)
            cores[host, name] = tuple(sorted({core % count for core in numbers}))
    return cores


def _wire(name: str, profile: Profile) -> Wire:
    if name not in TRANSPORTS:
        expected = f"one of {', '.join(sorted(TRANSPORTS))}"
        raise ConfigError(f"there is no transport {name!r}", expected, name, "name one of them")
    wire = TRANSPORTS[name]
    measured = profile.wires.get(name)
    if measured is None:
        return wire
    message, _, byte = measured
    share = 1.0 if wire.prompt else 0.5
    return replace(
        wire,
        put=message * share / 2,
        arrive=message * share / 2,
        per_byte=byte * share,
        received_byte=byte * (1 - share),
    )


def refuse_workers(plan: JobPlan) -> None:
    """Refuse a job of asynchronous workers, which the simulator does not model."""
    scheme = scheme_of(plan.job)
    if scheme is not None and scheme.asynchronous is not None:
        what = "asynchronous workers are not predicted"
        remedy = "predict the synchronous scheme"
        found = str(scheme.asynchronous)
        raise ConfigError(what, "replicas, pipelines, cut layers", found, remedy)
