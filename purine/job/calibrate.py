"""Measuring the profile of this machine: the times of kernels, of dispatch and of waking a thread.

The times of kernels are those of recorded runs of `probes`, so they are measured as in a job. The
slowdown between cores is the ratio of times of ops on one core alone and on all cores at once. The
parts share a budget of seconds; parts that did not fit are reported.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from purine.analysis.cost import Profile, Rates, point_of
from purine.analysis.measured import GPU, Kernels, Point
from purine.graph import to_yaml
from purine.graph.nodes import computes
from purine.job.config import merge
from purine.job.plan import JobPlan, make_plan
from purine.job.probes import Probe, probes
from purine.job.profiles import machine_name
from purine.job.quick import run_here, seconds_of
from purine.lowering import Options, lower
from purine.machine.cores import available, threads_of_all
from purine.registry.lookup import lookup
from purine.simulator.times import dispatch_of, settled_times, spread_of
from purine.trace.trace import Trace

__all__ = ["calibrate"]

Tell = Callable[[str], None]

_WARM, _FEWEST, _MOST = 2, 3, 40
"""Iterations that only warm up, and how many are recorded."""
_CROWDED = ("branches, batch 2", "bottlenecks, batch 2", "small images, batch 16")
"""Probes by which it is measured how much cores slow each other."""
_RATE = 1e-5
"""The learning rate: small, so that values stay ordinary."""
_HOPS = 2000


@dataclass(frozen=True)
class _Timed:
    plan: JobPlan
    trace: Trace
    seconds: float


def calibrate(*, seconds: float = 100.0, tell: Tell = lambda line: None) -> Profile:
    """Measure this machine in about so many seconds; `tell` gets a line for each part."""
    begin, cores = time.monotonic(), len(available())
    with tempfile.TemporaryDirectory(prefix="purine-") as folder:
        bench = _Bench(Path(folder), begin + seconds, tell)
        hop = _hop()
        if torch.cuda.is_available():
            bench.measure(GPU, "cuda:0", None, share=0.45)
        most = threads_of_all()
        bench.measure(1, "cpu:0", 1, share=0.5 if most > 1 or cores > 1 else 0.95)
        if cores > 1:
            bench.crowd(cores, share=0.4)
        if most > 1:
            bench.measure(most, "cpu:0", most, share=0.9)
    tell(f"{len(bench.points)} points in {time.monotonic() - begin:.0f} s")
    return Profile(
        name=machine_name(),
        core=_rates(bench.points, 1),
        device=_rates(bench.points, most),
        threads=most,
        dispatch=bench.dispatch,
        hop=hop,
        crowding=bench.crowding,
        spread=bench.spread,
        kernels=Kernels(tuple(bench.points)),
    )


class _Bench:
    def __init__(self, folder: Path, ends: float, tell: Tell) -> None:
        self.folder, self.ends, self.tell = folder, ends, tell
        self.points: list[Point] = []
        self.dispatch, self.spread, self.crowding = Profile.dispatch, Profile.spread, 0.0
        self._files: dict[str, str] = {}

    def measure(self, threads: int, device: str, job_threads: int | None, *, share: float) -> None:
        """Time the probes on a device, in a share of the remaining time."""
        every = probes(large=threads == GPU)
        until = time.monotonic() + share * (self.ends - time.monotonic())
        times: dict[tuple[object, ...], list[Point]] = defaultdict(list)
        gaps, spreads = [], []
        for number, probe in enumerate(every):
            left = until - time.monotonic()
            if left <= 0:
                self.tell(f"{device}: no time is left for {len(every) - number} of {len(every)}")
                break
            timed = self._run(probe, device, job_threads, left / (len(every) - number))
            self.tell(f"{device}, {threads or 'no'} threads, {probe.name}: {timed.seconds:.4f} s")
            for point in _points(timed, threads):
                times[point.kind, point.sizes, point.flops, point.bytes].append(point)
            if threads == 1:
                gaps.append(dispatch_of(timed.trace, Profile.dispatch))
                spreads.append(spread_of(timed.trace))
        for same in times.values():
            middle = statistics.median(point.seconds for point in same)
            self.points.append(replace(same[0], seconds=middle))
        if gaps:
            self.dispatch, self.spread = statistics.median(gaps), statistics.median(spreads)

    def crowd(self, cores: int, *, share: float) -> None:
        """Measure how much slower ops are while all cores compute."""
        ratios: list[float] = []
        until = time.monotonic() + share * (self.ends - time.monotonic())
        for probe in probes(large=False):
            if probe.name not in _CROWDED or (ratios and time.monotonic() > until):
                continue
            devices = f"cpu:0-{cores - 1}"
            before = self._run(probe, "cpu:0", 1, 1.0)
            both = self._run(probe, devices, 1, 2.0, times=cores)
            after = self._run(probe, "cpu:0", 1, 1.0)
            alone = [_compute(before), _compute(after)]
            ratios.append(_compute(both) / cores / statistics.mean(alone))
        if ratios:
            self.crowding = max(0.0, (statistics.median(ratios) - 1) / (cores - 1))
            self.tell(f"{cores} busy cores take {statistics.median(ratios):.3f} times as long")

    def _run(
        self, probe: Probe, devices: str, threads: int | None, seconds: float, *, times: int = 1
    ) -> _Timed:
        """Train a probe for about this long; its last iterations are recorded."""
        begin = time.monotonic()
        batch = times * int(probe.name.rpartition(" ")[2])
        job: dict[str, object] = {"net": self._file(probe), "data": probe.data, "batch": batch}
        job |= {"devices": devices, "lr": _RATE, "iters": 1000, "compile": False}
        if threads is not None:
            job["threads"] = threads
        count = int(probe.data.rpartition("=")[2])
        data = probe.data.replace(f"count={count}", f"count={2 * max(count, batch)}")
        plan = make_plan(merge({}, {**job, "data": data}))
        with run_here(plan, record=True) as run:
            seconds_of(run, _WARM + 1)
            once = seconds_of(run, _FEWEST)
            left = seconds - (time.monotonic() - begin)
            for _ in run.steps(max(0, min(_MOST, round(left / max(once, 1e-4))))):
                pass
        trace = run.trace
        first = trace.iterations[min(_WARM, len(trace.iterations) - 2)]
        kept = tuple(event for event in trace.events if event.iteration >= first)
        return _Timed(plan, replace(trace, events=kept), once)

    def _file(self, probe: Probe) -> str:
        if probe.name not in self._files:
            path = self.folder / f"{len(self._files)}.yaml"
            path.write_text(to_yaml(probe.net), encoding="utf-8")
            self._files[probe.name] = str(path)
        return self._files[probe.name]


def _points(timed: _Timed, threads: int) -> Iterator[Point]:
    """The measured times of the kinds in a run."""
    graph = lower(timed.plan.step, Options()).graph
    for name, seconds in settled_times(timed.trace).items():
        op = graph.ops.get(name)
        if op is None or seconds <= 0 or lookup(op).view or op.attributes.get("alias"):
            continue
        on_gpu = op.location.device.startswith("cuda")
        width = (GPU if on_gpu else threads) if computes(op.lane) or on_gpu else 1
        yield point_of(op, graph.blobs, max(width, 1) if not on_gpu else GPU, seconds)


def _compute(timed: _Timed) -> float:
    """Seconds of an iteration in ops that compute."""
    graph = lower(timed.plan.step, Options()).graph
    times = settled_times(timed.trace)
    return sum(
        t for name, t in times.items() if name in graph.ops and computes(graph.ops[name].lane)
    )


def _rates(points: Sequence[Point], threads: int) -> Rates:
    """The rates of flops and bytes of a device, and the time of an op with hardly any work."""
    own = [point for point in points if point.threads == threads]
    heavy = [p for p in own if p.flops > 50 * p.bytes and p.flops > 1e7]
    moving = [p for p in own if not p.flops and p.bytes > 1 << 20]
    tiny = sorted(p.seconds for p in own if p.bytes < 1 << 12 and p.flops < 1e5)
    default = Profile.core if threads == 1 else Profile.device
    return Rates(
        _rate([(p.flops, p.seconds) for p in heavy]) or default.flops,
        _rate([(p.bytes, p.seconds) for p in moving]) or default.bytes,
        statistics.median(tiny) if tiny else default.overhead,
    )


def _rate(pairs: Sequence[tuple[int, float]]) -> float:
    """Of all together: work over seconds."""
    spent = sum(seconds for _, seconds in pairs)
    return sum(work for work, _ in pairs) / spent if spent else 0.0


def _hop() -> float:
    """Seconds until a sleeping thread continues after another has woken it."""
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()

    def answer() -> None:
        for _ in range(_HOPS):
            there.acquire()
            back.release()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    begin = time.perf_counter()
    for _ in range(_HOPS):
        there.release()
        back.acquire()
    spent = time.perf_counter() - begin
    thread.join()
    return spent / _HOPS / 2
