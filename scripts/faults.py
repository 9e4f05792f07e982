"""A campaign of faults: hosts of small jobs die, stop or lose their link at random moments.

    python scripts/faults.py --transport shm --count 60 --seed 0 --jobs 2
    python scripts/faults.py --transport tcp --faults cut --count 60       # needs root
    python scripts/faults.py --transport inproc --count 1000 --jobs 8

Each case trains a small net on two hosts, and at a random iteration one of them is killed (`kill`,
SIGKILL), stopped (`stop`, SIGSTOP) or cut off (`cut`: hosts in network namespaces, whose link is
set down). Checked are: all other hosts (after a cut both) end within ten seconds with code 2 and a
message that names the lost host, the op and the blob; no process and no shared memory is left; the
last checkpoint is whole and has the bits of an undisturbed run; so has the end of the resumed run.
With `restart`, `torchrun --max-restarts=1` has started the hosts. One is killed, and the job must
end by itself with the bits of an undisturbed run.

Over `mpi`, `mpiexec` kills the other hosts when one dies, often before they can say anything. So
after a kill no message is asked for, and any exit code but 0 is right.

Hosts are forked from a process that has imported torch and built the step once (`warm.py`).
With several cases at a time (`--jobs 3` on two cores) one runs while another waits for a loss to be
noticed.

Over `inproc` the cases are schedules: hosts are threads, and messages are delayed, overtake each
other and are lost. A run must give the numbers of one device, or every host must end with an error
that tells which op waits for which blob.

A line for each case, and one JSON object as the last line. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # hosts are forked, with torch as it is here

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from host_jobs import PATIENCE, Job, alive, left_over, mpich_files, read  # noqa: E402
from netns import linked_hosts  # noqa: E402
from warm import Warm  # noqa: E402

from purine.errors import HostLostError, PurineError, StallError  # noqa: E402
from purine.graph import Graph  # noqa: E402
from purine.runtime import checkpoint, exchange  # noqa: E402
from purine.transports.inproc import InprocWorld, inproc_worlds  # noqa: E402

ITERATIONS, SAVE_EVERY = 240, 20
BOUND = 10.0
"""Seconds from a fault to the end of all other hosts."""
MESSAGE = "expected: blob '[^']+'.*, for which op '[^']+' waits"
FAULTS = {
    "shm": ("kill", "stop"),
    "tcp": ("kill", "stop"),
    "torchdist": ("kill", "stop"),
    "mpi": ("kill", "stop"),
    "inproc": ("schedule",),
}
"""By transport the faults of a campaign unless others are named."""
ALL_FAULTS = {**dict.fromkeys(("tcp", "torchdist"), ("kill", "stop", "cut", "restart"))}
ALL_FAULTS |= {"shm": ("kill", "stop", "restart"), "mpi": ("kill", "stop")}
SIGNALS = {"kill": signal.SIGKILL, "restart": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass
class Case:
    """A fault, and what was wrong with the end of the job."""

    number: int
    fault: str
    host: int
    iteration: int
    seconds: float | None = None
    checkpoint: int | None = None
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.number:>3} {self.fault} host{self.host} at {self.iteration:>3}: "
        text += f"others ended in {self.seconds} s, checkpoint {self.checkpoint}"
        return f"{text}: {'; '.join(self.wrong) or 'ok'}"


def options(out: Path) -> list[object]:
    words: list[object] = ["--net", "mlp", "--data", "fashion-mini", "--batch", 16, "--lr", 0.05]
    words += ["--iters", ITERATIONS, "--save-every", SAVE_EVERY, "--keep", 100]
    words += ["--test-every", 100, "--log-every", 1, "--seed", 0]
    return [*words, "--devices", "host0-1:cpu:0", "--share-cores", "--out", out]


def warmed() -> Warm:
    """A process from which hosts are forked that have imported all, and built the step once."""
    import purine.cli.progress  # noqa: F401  (which the command imports when it is called)
    from tests.command import call

    dry = call("train", *map(str, options(Path("dry"))), "--dry-run")
    if dry.code:
        raise SystemExit(dry.err)
    return Warm()


def run_case(case: Case, warm: Warm, transport: str, folder: Path, whole: Path) -> Case:
    out, log = folder / f"{case.number}", folder / f"{case.number}.log"
    with ExitStack() as stack:
        link = stack.enter_context(linked_hosts()) if case.fault == "cut" else None
        restarts = int(case.fault == "restart")
        job = Job(warm, options(out), transport, log, link=link, restarts=restarts)
        stack.callback(job.end)
        if not _reaches(job, out, case):
            case.wrong.append(f"it ended before the fault with code {job.wait()}")
            return case
        hosts = job.hosts()
        memory = [name for pid in hosts.values() for name in mpich_files(pid)]
        begun = time.monotonic()
        if link is not None:
            link.cut(case.host)
        else:
            os.kill(hosts[case.host], SIGNALS[case.fault])
        others = [host for host in hosts if case.fault == "cut" or host != case.host]
        while any(alive(hosts[host]) for host in others) and time.monotonic() - begun < PATIENCE:
            time.sleep(0.01)
        case.seconds = round(time.monotonic() - begun, 2)
        if case.fault == "stop" and transport != "mpi":  # `mpiexec` ends it by itself
            os.kill(hosts[case.host], signal.SIGKILL)
        job.wait()
        case.wrong += _ending(case, transport, job, others)
    case.wrong += left_over(hosts.values())
    case.wrong += [f"{name} is left" for name in dict.fromkeys(memory) if os.path.exists(name)]
    case.wrong += _checkpoint(case, out, whole)
    if case.wrong or case.fault == "restart":
        return case
    resumed = Job(warm, ["--resume", "--out", out], transport, log.with_suffix(".resumed.log"))
    code = resumed.wait()
    if code:
        case.wrong.append(f"the resumed run ended with code {code}")
    elif not _same_bits(out, whole):
        case.wrong.append("the resumed run has other bits")
    return case


def _reaches(job: Job, out: Path, case: Case) -> bool:
    """Wait for the iteration of the fault; whether all hosts run then."""
    chance, ends = random.Random(case.number), time.monotonic() + PATIENCE
    while _iteration(out) < case.iteration and job.runs and time.monotonic() < ends:
        time.sleep(0.004)
    time.sleep(chance.uniform(0.0, 0.01))
    return job.runs and len(job.hosts()) == 2


def _ending(case: Case, transport: str, job: Job, others: Sequence[int]) -> list[str]:
    """What is wrong with the end of a job after a fault."""
    text, wrong = job.text(), []
    if case.seconds is None or case.seconds > BOUND:
        wrong.append(f"the other hosts ended after {case.seconds} s")
    codes = {host: job.code_of(host) for host in others}
    if case.fault == "restart":
        return wrong + [f"the exit code is {code}" for code in codes.values() if code]
    for host, code in codes.items():
        if code == 0 if transport == "mpi" else code != 2:
            wrong.append(f"the exit code of host{host} is {code}")
        if (transport, case.fault) == ("mpi", "kill"):
            continue
        lost = 1 - host
        if f"host 'host{lost}' is lost" not in job.text(host):
            wrong.append(f"no message of host{host} names the lost host{lost}")
        if not re.search(MESSAGE, job.text(host)):
            wrong.append(f"no message of host{host} names the op and the blob")
    if "Traceback" in text:
        wrong.append("there is a traceback")
    return wrong


def _checkpoint(case: Case, out: Path, whole: Path) -> list[str]:
    """What is wrong with the newest checkpoint."""
    try:
        newest = checkpoint.latest(out)
        if newest is None:
            return [] if case.iteration <= 2 * SAVE_EVERY else ["there is no checkpoint"]
        case.checkpoint = checkpoint.load(newest).iteration
        same = _same_bits(newest, checkpoint.checkpoint_path(whole, case.checkpoint))
    except PurineError as error:
        return [f"the checkpoint is damaged: {error.what}"]
    return [] if same else [f"the checkpoint of iteration {case.checkpoint} has other bits"]


def _iteration(out: Path) -> int:
    return read(out / "metrics.jsonl").count("\n")


def _same_bits(one: Path, other: Path) -> bool:
    first, second = (checkpoint.load(path) for path in (one, other))
    return first.iteration == second.iteration and all(
        torch.equal(value, second.values[name]) for name, value in first.values.items()
    )


@dataclass
class Schedule:
    """A run over a network that delays and loses messages, and what was wrong with its end."""

    number: int
    scheme: str
    delay: float
    loss: float
    lost: int = 0
    told: str | None = None
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.number:>4} {self.scheme}, delay {self.delay} s, loss {self.loss}: "
        text += f"{self.lost} values lost, {self.told or 'the numbers of one device'}"
        return f"{text}: {'; '.join(self.wrong) or 'ok'}"


def run_schedule(schedule: Schedule) -> Schedule:
    from tests.runtime.host_cases import difference, train

    step, results = STEPS[schedule.scheme], dict[str, object]()

    def work(world: InprocWorld) -> None:
        try:
            results[world.host] = difference("mlp", train("mlp", step, world))
        except BaseException as error:
            results[world.host] = error

    worlds = inproc_worlds(
        ("host0", "host1"), delay=schedule.delay, loss=schedule.loss, seed=schedule.number
    )
    threads = [threading.Thread(target=work, args=(world,), daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            schedule.wrong.append("a host hangs")
    schedule.lost = worlds[0].lost_values
    for host, result in results.items():
        if isinstance(result, StallError | HostLostError):
            schedule.told = schedule.told or result.what
            if not (result.op and result.blob):
                schedule.wrong.append(f"{host} does not name the op and the blob")
        elif result is not None:
            schedule.wrong.append(f"{host}: {result}")
    if schedule.told and not schedule.lost:
        schedule.wrong.append("nothing was lost")
    return schedule


STEPS: dict[str, Graph] = {}
"""The steps of all schemes, made before several threads need them."""


def schedules(count: int, chance: random.Random) -> list[Schedule]:
    from tests.runtime.host_cases import SCHEMES, expected, step_of

    exchange._BEAT, exchange._OVERDUE = 0.1, 3.0  # so that a loss is told soon
    expected("mlp")
    STEPS.update({scheme: step_of("mlp", scheme, 2) for scheme in SCHEMES})
    return [
        Schedule(
            number,
            chance.choice(list(STEPS)),
            chance.choice((0.0, 0.001, 0.02)),
            chance.choice((0.0, 0.001, 0.01, 0.1)),
        )
        for number in range(count)
    ]


def ended(given: argparse.Namespace, warm: Warm, folder: Path) -> Iterator[Case]:
    """All cases of a campaign, each at its end."""
    chance, whole = random.Random(given.seed), folder / "whole"
    cases = [
        Case(
            number,
            chance.choice(given.faults),
            chance.randrange(2),
            chance.randrange(1, ITERATIONS - 60),
        )
        for number in range(given.count)
    ]
    job = Job(warm, options(whole), given.transport, folder / "whole.log")
    if job.wait():
        raise SystemExit(job.text())
    run = partial(run_case, warm=warm, transport=given.transport, folder=folder, whole=whole)
    with ThreadPoolExecutor(given.jobs) as pool:
        yield from pool.map(run, cases)


def campaign(given: argparse.Namespace) -> Iterator[Case | Schedule]:
    """All cases or schedules of a campaign, each at its end."""
    if given.transport == "inproc":
        with ThreadPoolExecutor(given.jobs) as pool:
            yield from pool.map(run_schedule, schedules(given.count, random.Random(given.seed)))
        return
    with ExitStack() as stack:
        warm = stack.enter_context(closing(warmed()))
        folder = given.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        yield from ended(given, warm, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="number of cases")
    parser.add_argument("--transport", choices=FAULTS, default="shm")
    parser.add_argument("--faults", nargs="+", help="kill, stop, cut, restart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--keep", type=Path, help="a folder for runs and logs, kept afterwards")
    given = parser.parse_args()
    known = ALL_FAULTS.get(given.transport, ())
    given.faults = given.faults or FAULTS[given.transport]
    if known and not set(known).issuperset(given.faults):
        parser.error(f"faults of {given.transport} are {', '.join(known)}")
    if "cut" in given.faults and os.geteuid():
        parser.error("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes namespaces too
    cases: list[Case | Schedule] = []
    for case in campaign(given):
        cases.append(case)
        print(case, flush=True)
    failed = [case for case in cases if case.wrong]
    summary: dict[str, object] = {"transport": given.transport, "seed": given.seed}
    summary |= {"cases": len(cases), "failed": len(failed)}
    if given.transport == "inproc":
        summary["told"] = sum(isinstance(case, Schedule) and bool(case.told) for case in cases)
    else:
        faults = [case for case in cases if isinstance(case, Case)]
        summary["slowest_s"] = max((case.seconds or 0.0 for case in faults), default=0.0)
    print(json.dumps({**summary, "wrong": [asdict(case) for case in failed]}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
