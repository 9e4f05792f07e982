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
after a kill no message is asked for, and any exit code but 0 is right. MPICH leaves a file in
/dev/shm for processes that were killed. The script counts and removes those of its own hosts.

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
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from netns import ADDRESSES, LINK, Link, linked_hosts  # noqa: E402

from purine.errors import HostLostError, PurineError, StallError  # noqa: E402
from purine.graph import Graph  # noqa: E402
from purine.runtime import checkpoint, exchange  # noqa: E402
from purine.transports.inproc import InprocWorld, inproc_worlds  # noqa: E402

ITERATIONS, SAVE_EVERY = 240, 20
BOUND = 10.0
"""Seconds from a fault to the end of all other hosts."""
PATIENCE = 180.0
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
    mpich_files: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.number:>3} {self.fault} host{self.host} at {self.iteration:>3}: "
        text += f"others ended in {self.seconds} s, checkpoint {self.checkpoint}"
        return f"{text}: {'; '.join(self.wrong) or 'ok'}"


class Job:
    """`purine train` on two hosts, started as the transport and the fault need it."""

    def __init__(
        self,
        words: Sequence[object],
        transport: str,
        log: Path,
        *,
        link: Link | None = None,
        restarts: int = 0,
    ) -> None:
        train = ["-m", "purine", "train", *map(str, words)]
        self.log, self.processes = log, list[subprocess.Popen[bytes]]()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        shared = {"PURINE_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
        shared |= {"MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        tools = Path(sys.executable).parent
        if link is not None:
            shared |= {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": LINK, "WORLD_SIZE": "2"}
            for rank in range(2):
                command = [*link.inside(rank), sys.executable, *train]
                self._start(command, {**shared, "RANK": str(rank)}, self.log_of(rank))
        elif restarts:
            command = [str(tools / "torchrun"), "--nproc-per-node=2", "--master-port", port]
            self._start([*command, f"--max-restarts={restarts}", *train], shared, log)
        elif transport == "mpi":
            self._start([str(tools / "mpiexec"), "-n", "2", sys.executable, *train], shared, log)
        else:
            launch = ["launch", "--hosts", "2", "--transport", transport, "--"]
            self._start([sys.executable, *train[:2], *launch, *train[2:]], {}, log)

    def _start(self, command: list[str], variables: dict[str, str], log: Path) -> None:
        with log.open("w") as file:
            environment = {**os.environ, **variables}
            self.processes.append(
                subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env=environment)
            )

    def log_of(self, host: int) -> Path:
        """The log of a host that has one of its own."""
        return self.log.with_suffix(f".host{host}.log")

    def text(self) -> str:
        """Everything that the job has printed."""
        logs = [self.log, self.log_of(0), self.log_of(1)]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def runs(self) -> bool:
        return any(process.poll() is None for process in self.processes)

    def hosts(self) -> dict[int, int]:
        """The processes of the hosts, by number."""
        found, left = {}, [process.pid for process in self.processes]
        while left:
            pid = left.pop()
            left += _children(pid)
            variables = _read(f"/proc/{pid}/environ").split("\0")
            ranks = [v.partition("=")[2] for v in variables if re.match("(PMI_)?RANK=", v)]
            if ranks and "train" in _read(f"/proc/{pid}/cmdline").split("\0"):
                found[int(ranks[0])] = pid
        return found

    def wait(self) -> int:
        """The first exit code that is not 0; a job that hangs is killed with its hosts."""
        ends = time.monotonic() + PATIENCE
        while self.runs and time.monotonic() < ends:
            time.sleep(0.02)
        if self.runs:
            for pid in self.hosts().values():
                os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.kill()
        codes = [process.wait() for process in self.processes]
        return next((code for code in codes if code), 0)


def options(out: Path) -> list[object]:
    words: list[object] = ["--net", "mlp", "--data", "fashion-mini", "--batch", 16, "--lr", 0.05]
    words += ["--iters", ITERATIONS, "--save-every", SAVE_EVERY, "--keep", 100]
    words += ["--test-every", 100, "--log-every", 1, "--seed", 0]
    return [*words, "--devices", "host0-1:cpu:0", "--share-cores", "--out", out]


def run_case(case: Case, transport: str, folder: Path, whole: Path) -> Case:
    out, log = folder / f"{case.number}", folder / f"{case.number}.log"
    with ExitStack() as stack:
        link = stack.enter_context(linked_hosts()) if case.fault == "cut" else None
        job = Job(options(out), transport, log, link=link, restarts=int(case.fault == "restart"))
        if not _reaches(job, out, case):
            case.wrong.append(f"it ended before the fault with code {job.wait()}")
            return case
        hosts = job.hosts()
        memory = [name for pid in hosts.values() for name in _mpich_files(pid)]
        begun = time.monotonic()
        if link is not None:
            link.cut(case.host)
        else:
            os.kill(hosts[case.host], SIGNALS[case.fault])
        others = [pid for host, pid in hosts.items() if case.fault == "cut" or host != case.host]
        while any(map(_alive, others)) and time.monotonic() - begun < PATIENCE:
            time.sleep(0.02)
        case.seconds = round(time.monotonic() - begun, 2)
        code = job.wait()
        case.wrong += _ending(case, transport, code, job)
    case.wrong += [f"process {pid} is left" for pid in hosts.values() if _alive(pid)]
    case.wrong += [f"/dev/shm/{name} is left" for name in _segments(hosts.values())]
    left = [name for name in dict.fromkeys(memory) if os.path.exists(name)]
    case.mpich_files = len(left)
    for name in left:
        os.unlink(name)  # only the hosts of this case had it, and they are gone
    case.wrong += _checkpoint(case, out, whole)
    if case.wrong or case.fault == "restart":
        return case
    resumed = Job(["--resume", "--out", out], transport, log.with_suffix(".resumed.log"))
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
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 0.01))
    return job.runs and len(job.hosts()) == 2


def _ending(case: Case, transport: str, code: int, job: Job) -> list[str]:
    """What is wrong with the end of a job after a fault."""
    text, wrong = job.text(), []
    if case.seconds is None or case.seconds > BOUND:
        wrong.append(f"the other hosts ended after {case.seconds} s")
    if case.fault == "restart":
        return wrong if code == 0 else [*wrong, f"the exit code is {code}"]
    if (code not in (2, 128 + signal.SIGKILL)) if transport != "mpi" else code == 0:
        wrong.append(f"the exit code is {code}")
    logs = {case.host: text}
    if case.fault == "cut":
        logs = {host: job.log_of(1 - host).read_text() for host in (0, 1)}
    for host, log in {} if (transport, case.fault) == ("mpi", "kill") else logs.items():
        if f"host 'host{host}' is lost" not in log:
            wrong.append(f"no message names the lost host{host}")
        if not re.search(MESSAGE, log):
            wrong.append("no message names the op and the blob")
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


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    words = " ".join(_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for word in words.split()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    status = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(status) and status[0] not in "ZX"


def _segments(pids: Iterable[int]) -> list[str]:
    """Shared memory that names one of the processes, or the project."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    words = ["purine", *(f"_{pid}_" for pid in pids)]
    return [name for name in names if any(word in name for word in words)]


def _mpich_files(pid: int) -> list[str]:
    """The files of MPICH in shared memory that a process has mapped."""
    return re.findall(r"/dev/shm/mpich_shm_\w+", _read(f"/proc/{pid}/maps"))


def _iteration(out: Path) -> int:
    return _read(str(out / "metrics.jsonl")).count("\n")


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


def ended(given: argparse.Namespace, folder: Path) -> Iterator[Case | Schedule]:
    """All cases of a campaign, each at its end."""
    chance = random.Random(given.seed)
    with ThreadPoolExecutor(given.jobs) as pool:
        if given.transport == "inproc":
            yield from pool.map(run_schedule, schedules(given.count, chance))
            return
        cases = [
            Case(
                number,
                chance.choice(given.faults),
                chance.randrange(2),
                chance.randrange(1, ITERATIONS - 60),
            )
            for number in range(given.count)
        ]
        whole = folder / "whole"
        job = Job(options(whole), given.transport, folder / "whole.log")
        if job.wait():
            raise SystemExit(job.text())
        yield from pool.map(lambda case: run_case(case, given.transport, folder, whole), cases)


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
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in ended(given, folder):
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
        summary["mpich_files"] = sum(case.mpich_files for case in faults)
    print(json.dumps({**summary, "wrong": [asdict(case) for case in failed]}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
