"""A campaign of deaths and joins: workers of an asynchronous job over host processes come and go.

    python scripts/worker_faults.py --deaths 20 --joins 10 --transport shm

A server has the shared parameters, and four workers train, each in a process of its own. At random
moments a worker is killed (SIGKILL), or another one joins by command; if no seat is free, one is
told to leave first. A worker that has died is started again while fewer than `--least` are left.
Checked are: the job ends; each push that a worker knows to be applied has been, no push is applied
twice, and the versions of all shared states are the pushes of all workers together; the accuracy is
that of the same job without faults, within `--band` points; no process is left.

All processes are forked from this one. A line for each event, and one JSON object as the last line.
The exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # processes are forked, with torch as it is here
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import purine as pu
from purine.errors import RunError
from purine.graph import Graph
from purine.transports.open_world import LINKS, OpenWorld

SEATS, WORKERS, BATCH, PACE, SEED = 5, 4, 16, 4, 0
RATES = {"downpour": (0.1, 0.0), "easgd": (0.01, 0.9), "local": (0.01, 0.9), "diloco": (0.01, 0.9)}
"""By scheme the rate and the momentum. Sums of stale gradients and momentum diverge together."""
PATIENCE = 300.0
_FORK = multiprocessing.get_context("fork")


@dataclass
class Job:
    """A job: its graph, where its processes meet, and what they tell."""

    net: Graph
    graph: Graph
    data: pu.data.DataSet
    folder: Path
    transport: str
    rounds: int
    port: int = 0
    progress: Any = field(default_factory=lambda: _FORK.Value("l", 0))
    leaving: Any = field(default_factory=lambda: _FORK.Value("l", -1))
    """The seat whose worker is to be told to leave."""

    def run(self, world: OpenWorld) -> pu.Run:
        settings: dict[str, Any] = {"seed": SEED, "threads": 1, "share_cores": True}
        return pu.Run(self.graph, data=self.data, world=world, **settings)


def job_of(options: argparse.Namespace, folder: Path) -> Job:
    data = pu.data.open_data(options.data)
    net = pu.data.prepare(pu.zoo.NETS[options.net](batch=BATCH), data.train)
    rate, momentum = RATES[options.scheme]
    step = pu.solvers.sgd(pu.backward(net), lr=rate, momentum=momentum)
    pace = {"push" if options.scheme == "downpour" else "every": PACE}
    devices = ",".join(f"host{number}:cpu:0" for number in range(SEATS + 1))
    graph = pu.parallel.serve(step, devices, options.scheme, servers=1, **pace)
    rounds = round(options.epochs * len(data.train) / (BATCH * PACE))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Job(net, graph, data, folder, options.transport, rounds, port)


def serve(job: Job) -> None:
    """The process of the server; it writes what it knows at the end."""
    torch.set_num_threads(1)
    world = OpenWorld.serving(port=job.port)
    run = job.run(world)

    def over(run: pu.Run) -> bool:
        job.progress.value = run.rounds
        if job.leaving.value >= 0 and run.greeter is not None:
            run.greeter.dismiss(job.leaving.value)
            job.leaving.value = -1
        return run.rounds >= job.rounds

    run.serve(over, look=0.01)
    world.end()
    greeter = run.greeter
    assert greeter is not None
    run.serve(lambda run: not greeter.present)
    told = {
        "rounds": run.rounds,
        "versions": run.versions,
        "lives": {life.link: greeter.pushes(life) for life in greeter.lives},
        "test": run.evaluate(pu.evaluation(job.net)),
    }
    if "pushes" in run.versions:
        told["counted"] = int(next(v for n, v in run.states().items() if n.endswith("/pushes")))
    (job.folder / "server.json").write_text(json.dumps(told))
    run.close()


def work(job: Job) -> None:
    """The process of a worker; it writes a line for each step: rounds begun, and complete."""
    torch.set_num_threads(1)
    world = OpenWorld.joining("127.0.0.1", job.port, transport=job.transport)
    run = job.run(world)
    log = os.open(job.folder / f"worker{world.number}.log", os.O_WRONLY | os.O_CREAT)
    try:
        while not world.over:
            for _ in run.steps(4):
                complete, begun = run.rounds, run.rounds_begun
                os.write(log, f"{os.getpid()} {begun} {complete}\n".encode())
        run.close()
    except RunError:
        if not world.over:
            raise


class Crew:
    """The processes of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.server = self._start(serve)
        self.workers: list[multiprocessing.process.BaseProcess] = []
        for _ in range(WORKERS):
            self.join()

    def _start(self, main: Callable[[Job], None]) -> multiprocessing.process.BaseProcess:
        process = _FORK.Process(target=main, args=(self.job,), daemon=True)
        process.start()
        return process

    def join(self) -> None:
        self.workers.append(self._start(work))

    def alive(self) -> list[multiprocessing.process.BaseProcess]:
        self.workers = [process for process in self.workers if process.is_alive()]
        return self.workers

    def training(self) -> list[multiprocessing.process.BaseProcess]:
        """Those that have made a step."""
        logs = (path.read_text().split() for path in self.job.folder.glob("worker*.log"))
        known = {int(words[0]) for words in logs if words}
        return [process for process in self.alive() if process.pid in known]

    def end(self) -> None:
        for process in (self.server, *self.workers):
            if process.is_alive():
                process.kill()
            process.join()


def campaign(job: Job, options: argparse.Namespace, chance: random.Random) -> dict[str, Any]:
    """Run a job with faults, and return what was wrong and what its server told."""
    events = ["death"] * options.deaths + ["join"] * options.joins
    chance.shuffle(events)
    moments = sorted(chance.uniform(0.02, 0.9) * job.rounds for _ in events)
    crew, restarts, ends = Crew(job), 0, time.monotonic() + options.patience
    killed = 0
    try:
        while crew.server.is_alive() and time.monotonic() < ends:
            time.sleep(0.01)
            over = job.progress.value >= job.rounds
            if not over and len(crew.alive()) < options.least:
                crew.join()
                restarts += 1
            if not events or job.progress.value < moments[0]:
                continue
            event = events[0]
            if event == "death" and not _kill(crew, chance):
                continue
            if event == "join":
                if len(crew.alive()) >= SEATS:
                    job.leaving.value = chance.randrange(SEATS)
                crew.join()
            events.pop(0)
            moments.pop(0)
            killed += event == "death"
            print(f"round {job.progress.value:>5}: {event}, {len(crew.alive())} workers")
            sys.stdout.flush()
        wrong = [] if not crew.server.is_alive() else ["the job does not end"]
        for process in crew.alive():
            process.join(max(0.0, ends - time.monotonic()))
            if process.is_alive():
                wrong.append(f"process {process.pid} is left")
        wrong += [f"{len(events)} events did not come to pass"] if events else []
    finally:
        crew.end()
    path = job.folder / "server.json"
    if not path.exists():
        return {"wrong": [*wrong, f"the server ended with code {crew.server.exitcode}"]}
    told: dict[str, Any] = json.loads(path.read_text())
    wrong += _miscounted(told, job.folder)
    return {**told, "wrong": wrong, "restarts": restarts, "deaths": killed}


def _kill(crew: Crew, chance: random.Random) -> bool:
    """Kill a worker that trains, if there is one."""
    training = crew.training()
    if not training:
        return False
    process = chance.choice(training)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


def _miscounted(told: dict[str, Any], folder: Path) -> list[str]:
    """What is wrong with the counts of pushes."""
    wrong = []
    for name, version in told["versions"].items():
        total = sum(pushes.get(name, 0) for pushes in told["lives"].values())
        if total != version:
            wrong.append(f"{name} has version {version}, and workers pushed {total}")
    if told.get("counted", told["versions"].get("pushes")) != told["versions"].get("pushes"):
        wrong.append(f"pushes were counted to {told['counted']}")
    for path in folder.glob("worker*.log"):
        lines = path.read_text().splitlines()
        if not lines:
            continue
        _, begun, complete = map(int, lines[-1].split())
        pushes = told["lives"].get(path.stem.removeprefix("worker"))
        if pushes is None:
            wrong.append(f"{path.stem} has trained, and the server does not know it")
            continue
        for name, count in pushes.items():
            if not complete <= count <= begun + 1:  # one may have begun behind the last line
                what = f"{path.stem} completed {complete} and began {begun} rounds"
                wrong.append(f"{what}, and {name} had {count} pushes of it")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--joins", type=int, default=10)
    parser.add_argument("--scheme", choices=sorted(RATES), default="downpour")
    parser.add_argument("--transport", choices=LINKS, default="shm")
    parser.add_argument("--net", default="lenet", choices=sorted(pu.zoo.NETS))
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--epochs", type=float, default=5.0, help="how often images are seen")
    parser.add_argument("--least", type=int, default=3, help="workers that are kept alive")
    parser.add_argument("--band", type=float, default=1.5, help="points of accuracy; 0: any")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for a job")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="worker-faults-") as name:
        folder = Path(name)
        (folder / "faults").mkdir()
        job = job_of(options, folder / "faults")
        result = campaign(job, options, random.Random(options.seed))
        wrong = result["wrong"]
        accuracy = result.get("test", {}).get("accuracy")
        base = None
        if options.band and not wrong:
            (folder / "whole").mkdir()
            whole = job_of(options, folder / "whole")
            quiet = argparse.Namespace(**{**vars(options), "deaths": 0, "joins": 0, "least": 0})
            other = campaign(whole, quiet, random.Random(0))
            wrong += [f"without faults: {one}" for one in other["wrong"]]
            base = other.get("test", {}).get("accuracy")
            if base is not None and 100 * (base - accuracy) > options.band:
                wrong.append(f"the accuracy is {accuracy}, and {base} without faults")
    keys = ("rounds", "restarts", "deaths")
    summary = {key: result.get(key) for key in keys} | {"joins": options.joins}
    summary |= {"lives": len(result.get("lives", ())), "scheme": options.scheme}
    summary |= {"transport": options.transport, "accuracy": accuracy, "without_faults": base}
    print(json.dumps({**summary, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
