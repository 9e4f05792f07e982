"""What does training cost on a machine that is busy with other work, and what on an idle one?

Each contender trains LeNet in a process of its own: with Purine's defaults, with one thread, with
OpenMP threads that sleep at once (`passive`), and with the spinning of the OpenMP library left as
it is (`spinning`). They take turns, on the machine as it is and beside processes that compute
without end, which are ended when the benchmark ends. Reported are medians over turns, their spread,
what the default costs on the idle machine against the spinning of the library, and which part of
the best contender's speed it keeps on the busy one.

    python benchmarks/busy.py --turns 5
    python benchmarks/busy.py --before ../old --spins 1000,3000   # another worktree; other counts
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

OWN = Path(__file__).resolve().parent.parent
OPENMP = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
LIBRARY_SPINS = "300000"
"""How often a thread of GNU OpenMP looks for work before it sleeps, where nobody says."""


@dataclass(frozen=True)
class Contender:
    """A worktree, a number of threads (0: the default), and variables of the environment."""

    name: str
    tree: Path = OWN
    threads: int = 0
    variables: dict[str, str] = field(default_factory=dict)


def contenders(options: argparse.Namespace) -> list[Contender]:
    found = [
        Contender("default"),
        Contender("one thread", threads=1),
        Contender("passive", variables={"OMP_WAIT_POLICY": "PASSIVE"}),
        Contender("spinning", variables={"GOMP_SPINCOUNT": LIBRARY_SPINS}),
    ]
    spins = [count for count in options.spins.split(",") if count]
    found += [Contender(f"spins {n}", variables={"GOMP_SPINCOUNT": n}) for n in spins]
    if options.before:
        found.append(Contender("before", Path(options.before).resolve()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="that a turn trains")
    parser.add_argument("--busy", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--spins", default="", help="spin counts to try as well: N,N")
    parser.add_argument("--before", metavar="PATH", help="another worktree, as one contender more")
    parser.add_argument("--train", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options)
        return
    print(f"lenet, batch {options.batch}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"iterations a second, idle and beside {options.busy} busy processes")
    names = contenders(options)
    speeds: dict[str, dict[str, list[float]]] = {
        load: {contender.name: [] for contender in names} for load in ("idle", "busy")
    }
    for _ in range(options.turns):
        for load, count in (("idle", 0), ("busy", options.busy)):
            with busy(count):
                for contender in names:
                    speeds[load][contender.name].append(measured(contender, options))
    report(speeds, options)


def report(speeds: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    medians = {
        load: {name: statistics.median(values) for name, values in by_name.items()}
        for load, by_name in speeds.items()
    }
    print(f"{'':<12}{'idle':>10}{'spread':>16}{'busy':>10}{'spread':>16}")
    for name in medians["idle"]:
        cells = ""
        for load in ("idle", "busy"):
            own = speeds[load][name]
            cells += f"{medians[load][name]:>10.1f}{f'{min(own):.1f} to {max(own):.1f}':>16}"
        print(f"{name:<12}{cells}")
    idle, crowded = medians["idle"], medians["busy"]
    cost = idle["spinning"] / idle["default"] - 1
    kept = crowded["default"] / max(crowded.values())
    print(f"the default costs {cost:+.1%} idle, and keeps {kept:.1%} of the best busy")
    answer: dict[str, object] = {
        "busy_processes": options.busy,
        "iterations_per_second": medians,
        "turns": speeds,
        "cost_idle": cost,
        "kept_busy": kept,
    }
    if "before" in crowded:
        answer["times_as_fast_as_before"] = {
            load: medians[load]["default"] / medians[load]["before"] for load in medians
        }
    print(json.dumps(answer))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute as long as the context is open."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def measured(contender: Contender, options: argparse.Namespace) -> float:
    """Iterations a second of a process that trains."""
    environment = {key: value for key, value in os.environ.items() if key not in OPENMP}
    environment |= {**contender.variables, "PYTHONPATH": str(contender.tree)}
    command = [sys.executable, __file__, "--train", str(contender.threads)]
    command += ["--seconds", str(options.seconds), "--batch", str(options.batch)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def train(options: argparse.Namespace) -> None:
    """Train for some seconds, and print how many iterations a second that were."""
    sys.path.pop(0)  # this folder
    import purine as pu

    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=options.batch), data.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9)
    with pu.Run(step, data=data, threads=options.train or None) as run:
        for _ in run.steps(5):
            pass
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < options.seconds:
            count += sum(1 for _ in run.steps(10))
        print(count / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
