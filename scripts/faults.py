"""A campaign of faults: hosts of small jobs are killed or stopped at random moments.

    python scripts/faults.py --count 60 --transport shm --seed 0 --jobs 2

Each case trains a small net on two hosts, and kills (SIGKILL) or stops (SIGSTOP) one of them at a
random iteration. It checks that the other host ends within ten seconds with a message that names
the lost host, the op and the blob; that no process and no shared memory is left; that the last
checkpoint is whole; and that the resumed run reaches the bits of an undisturbed one. A line for
each case, and one JSON object as the last line. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from purine.errors import PurineError  # noqa: E402
from purine.runtime import checkpoint  # noqa: E402

ITERATIONS, SAVE_EVERY = 500, 40
BOUND = 10.0
"""Seconds from a fault to the end of all other hosts."""
PATIENCE = 120.0
MESSAGE = "expected: blob '[^']+'.*, for which op '[^']+' waits"


@dataclass
class Case:
    """A fault, and what was wrong with the end of the job."""

    number: int
    signal: str
    host: int
    iteration: int
    seconds: float | None = None
    checkpoint: int | None = None
    wrong: list[str] = field(default_factory=list)


class Job:
    """A job on two hosts that was started by `purine launch`."""

    def __init__(self, words: Sequence[object], transport: str, log: Path) -> None:
        command = [sys.executable, "-m", "purine", "launch", "--hosts", "2"]
        command += ["--transport", transport, "--", "train", *map(str, words)]
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)

    def hosts(self) -> list[int]:
        """The processes of the hosts, by number."""
        pid = self.process.pid
        return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]

    def wait(self) -> int:
        """The exit code; a job that hangs is killed with its hosts."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for pid in self.hosts():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            return self.process.wait()


def options(out: Path) -> list[object]:
    words: list[object] = ["--net", "mlp", "--data", "fashion-mini", "--batch", 16, "--lr", 0.05]
    words += ["--iters", ITERATIONS, "--save-every", SAVE_EVERY, "--test-every", 200]
    words += ["--log-every", 1, "--seed", 0, "--devices", "host0-1:cpu:0", "--share-cores"]
    return [*words, "--out", out]


def run_case(case: Case, transport: str, folder: Path, whole: Path) -> Case:
    out, chance = folder / f"{case.number}", random.Random(case.number)
    job = Job(options(out), transport, folder / f"{case.number}.log")
    begun = time.monotonic()
    while _iteration(out) < case.iteration and job.process.poll() is None:
        if time.monotonic() - begun > PATIENCE:
            break
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 0.02))
    hosts = job.hosts()
    if len(hosts) != 2:
        case.wrong.append(f"it ended before the fault with code {job.wait()}")
        return case
    os.kill(hosts[case.host], getattr(signal, case.signal))
    begun = time.monotonic()
    while _alive(hosts[1 - case.host]) and time.monotonic() - begun < PATIENCE:
        time.sleep(0.02)
    case.seconds = round(time.monotonic() - begun, 2)
    code = job.wait()
    case.wrong += _ending(case, code, job.log.read_text())
    case.wrong += [f"process {pid} is left" for pid in hosts if _alive(pid)]
    case.wrong += [f"/dev/shm/{name} is left" for name in _segments(hosts)]
    try:
        newest = checkpoint.latest(out)
        case.checkpoint = None if newest is None else checkpoint.load(newest).iteration
    except PurineError as error:
        case.wrong.append(f"the checkpoint is damaged: {error.what}")
        return case
    code = Job(["--resume", "--out", out], transport, folder / f"{case.number}-resumed.log").wait()
    if code:
        case.wrong.append(f"the resumed run ended with code {code}")
    elif not _same_bits(out, whole):
        case.wrong.append("the resumed run has other bits")
    return case


def _ending(case: Case, code: int, text: str) -> list[str]:
    wrong = []
    if code not in (2, 128 + signal.SIGKILL):
        wrong.append(f"the exit code is {code}")
    if case.seconds is None or case.seconds > BOUND:
        wrong.append(f"the other host ended after {case.seconds} s")
    if f"host 'host{case.host}' is lost" not in text:
        wrong.append("no message names the lost host")
    if not re.search(MESSAGE, text):
        wrong.append("no message names the op and the blob")
    if "Traceback" in text:
        wrong.append("there is a traceback")
    return wrong


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    status = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(status) and status[0] not in "ZX"


def _segments(pids: Sequence[int]) -> list[str]:
    """Shared memory that names one of the processes, or the project."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    words = ["purine", *(f"_{pid}_" for pid in pids)]
    return [name for name in names if any(word in name for word in words)]


def _iteration(out: Path) -> int:
    return _read(str(out / "metrics.jsonl")).count("\n")


def _same_bits(one: Path, other: Path) -> bool:
    first, second = (checkpoint.load(path) for path in (one, other))
    return first.iteration == second.iteration and all(
        torch.equal(value, second.values[name]) for name, value in first.values.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="number of cases")
    parser.add_argument("--transport", choices=("shm", "torchdist"), default="shm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--keep", type=Path, help="a folder for runs and logs, kept afterwards")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    cases = [
        Case(
            number,
            chance.choice(("SIGKILL", "SIGSTOP")),
            chance.randrange(2),
            chance.randrange(1, ITERATIONS - 100),
        )
        for number in range(given.count)
    ]
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / "whole"
        code = Job(options(whole), given.transport, folder / "whole.log").wait()
        if code:
            print((folder / "whole.log").read_text(), file=sys.stderr)
            return 2
        with ThreadPoolExecutor(given.jobs) as pool:
            for case in pool.map(
                lambda case: run_case(case, given.transport, folder, whole), cases
            ):
                what = "; ".join(case.wrong) or "ok"
                text = f"{case.number:>3} {case.signal} host{case.host} at {case.iteration:>3}: "
                text += f"others ended in {case.seconds} s, checkpoint {case.checkpoint}: {what}"
                print(text, flush=True)
    failed = [case for case in cases if case.wrong]
    slowest = max((case.seconds or 0.0 for case in cases), default=0.0)
    summary = {"transport": given.transport, "seed": given.seed, "cases": len(cases)}
    found = [asdict(case) for case in failed]
    print(json.dumps({**summary, "failed": len(failed), "slowest_s": slowest, "wrong": found}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
