"""Jobs that `foresight.py` predicts and measures: workers that run them, and their cases.

A worker is a process for each host of a job. It makes some steps when it is asked to, and answers
with the seconds of one in the steady state: between the ends of the fourth and of the last. A
second run of the same job records the trace from which others are predicted.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forked import Forked
from network import LINK
from scaling import free_port

if TYPE_CHECKING:
    from purine.job.plan import JobPlan
    from purine.runtime.run import Run

__all__ = ["SKIPPED", "Case", "Team", "job_of", "plan_of"]

SKIPPED = 3
"""Steps at the start of a turn that do not count: as many as in a prediction."""

Options = Mapping[str, object]


@dataclass(frozen=True)
class Case:
    """A job to predict: its options, and those of the job whose trace tells the times of its ops.

    Without a `base` they come from the profile. `rate` is that of the link between two hosts.
    """

    name: str
    job: Options
    base: Options | None = None
    rate: str = ""
    hosts: int = 1

    @property
    def replays(self) -> bool:
        """Whether the trace is of the very job."""
        return self.base == self.job


SIZES: Mapping[str, Options] = {
    "mlp": {"net": "mlp", "batch": 64},
    "lenet": {"net": "lenet", "batch": 32},
    "nin": {"net": "nin", "batch": 8, "data": "synthetic:image=3x32x32,classes=10,count=512"},
    "googlenet": {
        "net": "googlenet",
        "batch": 4,
        "data": "synthetic:image=3x224x224,classes=1000,count=64",
    },
    "resnet50": {
        "net": "resnet50",
        "batch": 2,
        "data": "synthetic:image=3x224x224,classes=1000,count=64",
    },
    "alexnet": {
        "net": "alexnet",
        "batch": 8,
        "data": "synthetic:image=3x227x227,classes=1000,count=64",
    },
    "gpt2": {
        "net": "gpt2",
        "batch": 1,
        "data": "synthetic-tokens:length=128,vocabulary=50257,count=64",
    },
}
"""By net the job of one device with one core."""


def job_of(net: str, times: int = 1, **more: object) -> Options:
    """A job of a net, with so many times the batch of one device."""
    job = {"threads": 1, "iters": 1000, "devices": "cpu:0", **SIZES[net]}
    return {**job, "batch": times * int(str(job["batch"])), **more}


def plan_of(job: Options) -> JobPlan:
    from purine.job import merge
    from purine.job.plan import make_plan

    return make_plan(merge({}, job), elsewhere=True)


@dataclass
class Team:
    """The processes of a job, one for each host."""

    case: Case
    spaces: tuple[str, ...] = ()
    """Network namespaces of the hosts."""
    addresses: tuple[str, ...] = ("127.0.0.1",)
    workers: list[Forked] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    def start(self, trace: Path | None = None, cores: int = 1) -> None:
        """Start the processes, which build and warm up."""
        port = free_port()
        for rank in range(self.case.hosts):
            work = partial(_work, self.case, rank, port, self.spaces, self.addresses, trace, cores)
            self.workers.append(Forked(work))

    def ask(self, question: str) -> list[float]:
        self.send(question)
        return self.answers()

    def send(self, question: str) -> None:
        for worker in self.workers:
            worker.ask(question)

    def answers(self) -> list[float]:
        """The answers of all processes to the last question."""
        answers = []
        for worker in self.workers:
            line = worker.answers.readline()
            if not line:
                sys.exit(f"a worker of {self.case.name} has ended; its message is above")
            answers.append(float(line))
        return answers

    def warm_up(self, seconds: float, most: int = 400) -> None:
        """Find how many steps a turn of some seconds has."""
        once = self.seconds = max(self.ask(f"run {SKIPPED + 2}"))
        self.steps = min(most, SKIPPED + 1 + max(3, round(seconds / max(once, 1e-4))))

    def turn(self) -> float:
        """The seconds of a step."""
        return max(self.ask(f"run {self.steps}"))

    def record(self, seconds: float) -> float:
        """Record about as many steps; returns the seconds of one."""
        count = max(3, round(seconds / max(self.seconds, 1e-4)))
        return max(self.ask(f"record {SKIPPED + 1 + min(60, count)}"))

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


def _work(
    case: Case,
    rank: int,
    port: int,
    spaces: tuple[str, ...],
    addresses: tuple[str, ...],
    trace: Path | None,
    cores: int,
    questions: Iterator[str],
    tell: Callable[[object], None],
) -> None:
    if spaces:
        _enter(spaces[rank])
    own = sorted(os.sched_getaffinity(0))
    if case.hosts > 1 or cores:
        wanted = {own[(rank * cores + k) % len(own)] for k in range(cores)}
        os.sched_setaffinity(0, wanted)
    os.environ |= {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(case.hosts)}
    if spaces:
        os.environ["GLOO_SOCKET_IFNAME"] = LINK
    plan = plan_of(case.job)
    runs: dict[str, Run] = {}
    for line in questions:
        what, count = line.split()
        if what == "save":
            assert trace is not None
            runs["record"].trace.save(trace)
            tell(0)
            continue
        if what == "rss":
            tell(_held())
            continue
        run = runs.get(what)
        if run is None:
            run = runs[what] = _run(plan, what == "record", case)
        tell(_timed(run, int(count)))


def _run(plan: JobPlan, record: bool, case: Case) -> Run:
    from purine.runtime.run import Run
    from purine.transports.processes import ProcessWorld

    job = plan.job
    return Run(
        plan.step,
        data=plan.data,
        seed=0,
        prefetch=job.prefetch,
        threads=job.threads,
        share_cores=job.share_cores,
        compiled=job.compile,
        tf32=job.precision == "tf32",
        record=record,
        world=ProcessWorld("tcp") if case.hosts > 1 else None,
    )


def _timed(run: Run, count: int) -> float:
    """The seconds of a step in the steady state."""
    ends = []
    for result in run.steps(count):
        assert result.loss == result.loss
        ends.append(time.perf_counter())
    return (ends[-1] - ends[SKIPPED]) / (len(ends) - 1 - SKIPPED)


def _held() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _enter(space: str) -> None:
    """Go into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{space}") as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {space}")
