"""Does what Purine foretells of a step come true?

For each case a job is predicted and measured. Cases that belong together are started first and then
take turns of about a second, so that whatever else the machine does hits all of them alike.
Measured is the median over turns of the seconds of a step in the steady state; beside it the
machine's own spread, the distance of the quartiles over turns. Parts:

- `replay`: from a trace of the same job, recorded in turns between the measured ones;
- `whatif`: from a trace of the net on one device with one core, recorded in the same way, and what
  the profile says of busy cores that slow each other: data parallel steps on more devices,
  pipelines with three schedules, a hybrid step, and two hosts with a shaped link between them
  (network namespaces and `tc tbf`: needs root, else it is left out);
- `profile`: from the profile of the machine alone, which `purine calibrate` measures first, for
  nets that calibration does not run;
- `memory`: the bytes that each job is told to hold at most, against those that malloc handed out
  (`memory.py --forecast`);
- `speed`: events of the simulator in a second of one core. An event is the end of an op, the end
  of a flow, an arrival of a value at a host, a slot given back, or the end of a collective;
- `gpu`: one step of googlenet, resnet50 and gpt2 on cuda:0 from a profile measured first.

Errors are of the seconds of a step, |predicted / measured - 1|. The last line is JSON.

    python benchmarks/foresight.py --only replay,whatif
    python benchmarks/foresight.py --only whatif --devices 2,4,8,12 --limit 240
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from foreseen import SKIPPED, Case, Team, job_of, plan_of
from forked import apart
from network import ADDRESSES, SPACES, hosts

ROOT = Path(__file__).resolve().parent.parent
SHORT_PROFILE, LONG_PROFILE = 45.0, 110.0
"""Seconds for which the profile is measured: where it only tells how cores slow each other, and
where all times come from it."""
PARTS = ("replay", "whatif", "profile", "memory", "speed", "gpu")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
RATES = ("1gbit", "200mbit")


@dataclass(frozen=True)
class Found:
    """A case that was predicted and measured, in seconds; `spread` is the machine's own."""

    name: str
    predicted: float
    measured: float
    spread: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="replay,whatif,profile,memory,speed", help="parts")
    parser.add_argument("--cases", default="", help="only cases with one of these in their names")
    parser.add_argument("--devices", default="2,4,8,12", help="numbers of devices, of those here")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn, about")
    parser.add_argument("--quick", action="store_true", help="three turns of the smallest nets")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds after which none starts")
    parser.add_argument("--profile", type=Path, help="of this machine; measured first without")
    parser.add_argument("--calibrate", type=float, help="seconds for which to measure the profile")
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    options = parser.parse_args()
    parts = options.only.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--only: there is no part {part!r}; expected some of {', '.join(PARTS)}")
    if options.turns < 1:
        parser.error(f"--turns is {options.turns}; expected 1 or more")
    if options.quick:
        options.turns, options.seconds = min(options.turns, 3), min(options.seconds, 0.4)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy
    options.ends = time.monotonic() + options.limit if options.limit else float("inf")
    result: dict[str, object] = {"cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="foresight-") as folder:
        options.folder = options.keep or Path(folder)
        options.folder.mkdir(parents=True, exist_ok=True)
        prepare()
        if not {"whatif", "profile", "gpu"}.isdisjoint(parts):
            alone = {"profile", "gpu"}.isdisjoint(parts)
            options.calibrate = options.calibrate or (SHORT_PROFILE if alone else LONG_PROFILE)
            options.profile = options.profile or calibrated(options)
        for part in ("replay", "whatif", "profile", "gpu"):
            if part in parts:
                result |= errors_of(part, compare(options, CASES[part](options)))
        if "memory" in parts:
            result |= memory(options)
        if "speed" in parts:
            result |= speed(options)
    print(json.dumps(result))


def prepare() -> None:
    """Import and build what all workers have in common, before they are forked."""
    import torch

    import purine.job
    import purine.job.foresee
    import purine.runtime.run
    import purine.transports.processes  # noqa: F401

    torch.set_num_threads(1)
    plan_of(job_of("mlp"))  # what building a graph imports


def replays(options: argparse.Namespace) -> list[Case]:
    """Jobs whose own trace is known."""
    nets = ("lenet",) if options.quick else ("lenet", "nin", "googlenet", "resnet50", "gpt2")
    jobs = {f"{net} on one device": job_of(net) for net in nets}
    several = len(os.sched_getaffinity(0)) > 1
    if several:
        jobs["lenet on 2 devices"] = job_of("lenet", 2, devices="cpu:0-1")
    if several and not options.quick:
        jobs["googlenet on 2 devices"] = job_of("googlenet", 2, devices="cpu:0-1")
        scheme = "pipeline=2,micro=8,schedule=1f1b"
        jobs["googlenet in 2 stages"] = job_of("googlenet", 8, devices="cpu:0-1", parallel=scheme)
    return [Case(name, job, job) for name, job in jobs.items()]


def what_ifs(options: argparse.Namespace) -> list[Case]:
    """Jobs that are foretold from a trace of one device."""
    cores = len(os.sched_getaffinity(0))
    counts = [n for n in map(int, options.devices.split(",")) if n <= cores]
    found = []
    for net in ("lenet",) if options.quick else ("lenet", "googlenet", "resnet50"):
        for count in counts[:1] if options.quick else counts:
            job = job_of(net, count, devices=f"cpu:0-{count - 1}")
            found.append(Case(f"{net} on {count} devices", job, job_of(net)))
    if options.quick:
        return found
    for stages in (2, 4):
        for schedule in SCHEDULES:
            scheme = f"pipeline={stages},micro={2 * stages},schedule={schedule}"
            devices = {"devices": f"cpu:0-{stages - 1}", "share_cores": stages > cores}
            job = job_of("nin", 2 * stages, parallel=scheme, **devices)
            found.append(Case(f"nin in {stages} stages, {schedule}", job, job_of("nin")))
    job = job_of("alexnet", 2, devices="cpu:0-1", parallel="model=2,hybrid=true")
    found.append(Case("alexnet on 2 devices, hybrid", job, job_of("alexnet")))
    if os.geteuid() == 0:
        for net in ("nin", "googlenet"):
            job = job_of(net, 2, devices="host0-1:cpu:0")
            for rate in RATES:
                found.append(Case(f"{net} on 2 hosts, {rate}", job, job_of(net), rate, hosts=2))
    return found


def unseen(options: argparse.Namespace) -> list[Case]:
    """Nets that calibration does not run, from the profile alone."""
    few, more = ("lenet", "nin"), ("mlp", "alexnet", "googlenet", "resnet50", "gpt2")
    nets = few if options.quick else (*few, *more)
    found = [Case(f"{net} from the profile", job_of(net)) for net in nets]
    if len(os.sched_getaffinity(0)) > 1:
        job = job_of("nin", 2, devices="cpu:0-1")
        found.append(Case("nin on 2 devices from the profile", job))
    return found


def on_gpus(options: argparse.Namespace) -> list[Case]:
    """Nets on a GPU, dispatched op by op, from the profile alone."""
    jobs = GPU_JOBS if not options.quick else {"googlenet": GPU_JOBS["googlenet"]}
    both = {"devices": "cuda:0", "compile": False, "iters": 1000}
    return [Case(f"{net} on cuda:0", {"net": net, **both, **job}) for net, job in jobs.items()]


GPU_JOBS = {
    "googlenet": {"batch": 96, "data": "synthetic:image=3x224x224,classes=1000,count=384"},
    "resnet50": {"batch": 96, "data": "synthetic:image=3x224x224,classes=1000,count=384"},
    "gpt2": {"batch": 8, "data": "synthetic-tokens:length=512,vocabulary=50257,count=64"},
}
CASES = {"replay": replays, "whatif": what_ifs, "profile": unseen, "gpu": on_gpus}


def calibrated(options: argparse.Namespace) -> Path:
    """The profile of this machine, measured in a process of its own."""
    file: Path = options.folder / "profile.yaml"
    seconds = 10.0 if options.quick else options.calibrate
    command = [sys.executable, "-m", "purine", "calibrate", "--out", str(file)]
    begin = time.monotonic()
    print("measuring the profile ...", file=sys.stderr, flush=True)
    environment = {**os.environ}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.pop(name)
    command += ["--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, cwd=ROOT, timeout=3 * seconds + 60)
    if done.returncode:
        sys.exit("purine calibrate has failed; its message is above")
    print(f"calibrated in {time.monotonic() - begin:.0f} s", flush=True)
    return file


def compare(options: argparse.Namespace, cases: Sequence[Case]) -> list[Found]:
    """Predict and measure cases, those with the same trace and the same link together."""
    wanted = [word for word in options.cases.split(",") if word]
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if not wanted or any(word in case.name for word in wanted):
            groups.setdefault((str(case.base), case.rate), []).append(case)
    found = []
    for group in groups.values():
        if time.monotonic() > options.ends:
            print(f"no time is left for {', '.join(case.name for case in group)}", flush=True)
            continue
        found += together(options, group)
    return found


def together(options: argparse.Namespace, group: Sequence[Case]) -> list[Found]:
    """Predict and measure cases that are foretold from one trace."""
    base, rate = group[0].base, group[0].rate
    if base is None:
        return [one for case in group for one in alone(options, case)]
    trace = options.folder / f"{zlib.crc32(f'{base} {rate}'.encode()):08x}.json"
    several = "host" in str(base.get("devices")) or "-" in str(base.get("devices"))
    teams: list[Team] = []
    times: dict[str, list[float]] = {case.name: [] for case in group}
    with ExitStack() as stack:
        if rate:
            stack.enter_context(hosts(rate))
        source = Team(Case("trace", base, base))
        teams.append(source)
        stack.callback(end, teams)
        source.start(trace, cores=0 if several else 1)
        for case in group:
            if not case.replays:
                team = Team(case, SPACES, ADDRESSES) if rate else Team(case)
                team.start(cores=1 if case.hosts > 1 else 0)
                teams.append(team)
        for team in teams:
            team.send(f"run {SKIPPED + 2}")  # builds beside the others
        for team in teams:
            team.answers()
        for team in teams:
            team.warm_up(options.seconds)
        source.record(SHORT)
        for turn in range(1, options.turns + 1):
            source.record(options.seconds)
            for case, team in zip(group, teams if group[0].replays else teams[1:], strict=True):
                times[case.name].append(team.turn())
            print(f"turn {turn}/{options.turns}", file=sys.stderr, end="\r", flush=True)
        source.ask("save 0")
    found = []
    for case in group:
        predicted = apart(partial(foretold, case, trace, options.profile))
        found.append(seen(case, predicted, times[case.name]))
    return found


def alone(options: argparse.Namespace, case: Case) -> list[Found]:
    """Predict a case from the profile, and measure it."""
    if time.monotonic() > options.ends:
        print(f"no time is left for {case.name}", flush=True)
        return []
    predicted = apart(partial(foretold, case, Path(), options.profile))
    team = Team(case)
    try:
        team.start(cores=1 if case.job["devices"] == "cpu:0" else 0)
        team.warm_up(options.seconds)
        team.turn()
        times = [team.turn() for _ in range(options.turns)]
    finally:
        team.end()
    return [seen(case, predicted, times)]


def memory(options: argparse.Namespace) -> Mapping[str, object]:
    """What jobs are told to hold at most, against what malloc gave out: `memory.py --forecast`."""
    script = ROOT / "benchmarks" / "memory.py"
    if not script.is_file():
        print("memory is left out: benchmarks/memory.py is not here", flush=True)
        return {}
    command = [sys.executable, str(script), "--forecast"]
    command += ["--nets", "lenet", "--schemes", "one"] if options.quick else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit("benchmarks/memory.py has failed; its message is above")
    return {"memory_worst": json.loads(done.stdout.splitlines()[-1])["memory_worst"]}


def speed(options: argparse.Namespace) -> Mapping[str, object]:
    """Events a second of the simulator, on one core."""
    rates = {}
    for name, job in SPEED.items():
        rates[name] = apart(partial(events_a_second, job, 5 if options.quick else 40))
        print(f"{name:36}{rates[name] / 1e3:9.0f} thousand events a second", flush=True)
    return {"events_per_second": round(statistics.median(rates.values()))}


SPEED = {
    "googlenet on 8 devices": job_of("googlenet", 8, devices="cpu:0-7"),
    "nin in 4 stages": job_of("nin", 8, devices="cpu:0-3", parallel="pipeline=4,micro=8"),
    "resnet50 on 4 hosts": job_of("resnet50", 4, devices="host0-3:cpu:0"),
}


def events_a_second(job: Mapping[str, object], iterations: int) -> float:
    """How fast a job is simulated, whose ops are dispatched one by one."""
    from purine.lowering import Options, lower
    from purine.lowering.hosts import hosts_of
    from purine.simulator.machine import Machine
    from purine.simulator.network import Link, Network
    from purine.simulator.prediction import parts_of, simulate
    from purine.simulator.times import ProfileTimes

    plan = plan_of({**job, "share_cores": True})
    names = hosts_of(plan.step)
    wanted = names if len(names) > 1 else (None,)
    lowered = {host: lower(plan.step, Options(host=host)) for host in wanted}
    cores = {("", f"cpu:{number}"): (number,) for number in range(8)}
    network = Network.switched(names, Link("", 1.25e9, 50e-6))
    machine = Machine(cores=cores, network=network, crowding=0.02)
    parts = parts_of(lowered, ProfileTimes(), machine)
    begin = time.process_time()
    engine = simulate(parts, machine, iterations=iterations)
    return engine.events / (time.process_time() - begin)


def end(teams: Sequence[Team]) -> None:
    for team in teams:
        team.end()


SHORT = 0.01
"""Seconds of a turn that only warms up."""


def seen(case: Case, predicted: float, times: Sequence[float]) -> Found:
    """A case with its error; prints a line."""
    measured = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (measured,) * 3
    found = Found(case.name, predicted, measured, (high - low) / measured)
    print(
        f"{found.name:36}{predicted * 1e3:9.2f} ms foretold {measured * 1e3:9.2f} ms measured "
        f"{found.error:+7.1%}  (the machine's spread {found.spread:.1%})",
        flush=True,
    )
    return found


def foretold(case: Case, trace: Path, profile: Path | None) -> float:
    """The seconds of a step of a case."""
    from purine.analysis.cost import load_profile
    from purine.job.foresee import Source, WhatIf, foresee
    from purine.job.what_if import parse_rate
    from purine.simulator.network import Link
    from purine.trace.trace import Trace

    plan = plan_of(case.job)
    source = None
    if case.base is not None:
        source = Source(trace, Trace.load(trace), plan if case.replays else plan_of(case.base))
    link = Link(case.rate, parse_rate(case.rate), 50e-6) if case.rate else None
    known = load_profile(profile) if profile else None
    return foresee(plan, source=source, what_if=WhatIf(link), profile=known, memory=False).seconds


def errors_of(part: str, found: Sequence[Found]) -> Mapping[str, object]:
    """The figures of a part for the last line."""
    if not found:
        return {}
    errors = [abs(one.error) for one in found]
    return {
        f"{part}_median": round(statistics.median(errors), 4),
        f"{part}_worst": round(max(errors), 4),
        f"{part}_spread": round(statistics.median(one.spread for one in found), 4),
        part: {
            one.name: [round(1e3 * one.predicted, 3), round(1e3 * one.measured, 3)] for one in found
        },
    }


if __name__ == "__main__":
    main()
