"""What does model parallelism of the inner products save: hybrid AlexNet against data parallel?

Contenders, both Purine in one process whose devices are cores, with the same batch on each device:
`hybrid`, whose convolutions are data parallel and whose inner products are cut over the devices,
and `replicate`, which is data parallel throughout and moves the gradients of all parameters. Both
are started first and then take turns. Reported are the bytes that go from device to device in a
step, were memory not shared, and the medians over turns of the time of a step. The last line is
JSON.

    python benchmarks/hybrid.py --devices 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from scaling import NETS
from step import DECAY, LR, MOMENTUM, ask, samples

if TYPE_CHECKING:
    from purine.graph import Graph

SETTING, BATCH = NETS["alexnet"]
CONTENDERS = ("hybrid", "replicate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--batch", type=int, default=BATCH, help="samples for each device")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn, about")
    parser.add_argument("--topology", default="sharded", help="of replicate")
    parser.add_argument("--share-cores", action="store_true", help="more devices than cores")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    cores = len(os.sched_getaffinity(0))
    if options.devices < 2:
        sys.exit(f"{options.devices} devices asked for: a net is hybrid over 2 or more")
    if options.devices > cores and not options.share_cores:
        sys.exit(
            f"{options.devices} devices asked for, and there are {cores} cores: "
            "use fewer, or --share-cores"
        )
    compare(options)


def compare(options: argparse.Namespace) -> None:
    """Start a worker for each contender, let them take turns, and report."""
    workers = {}
    moved: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    try:
        steps = {}
        for name in CONTENDERS:
            workers[name] = start(name, options)
            moved[name] = int(ask(workers[name], "bytes"))
            ask(workers[name], "1")
            steps[name] = max(2, round(options.seconds / ask(workers[name], "1")))
        for turn in range(options.turns + 1):
            for name, worker in workers.items():
                found = ask(worker, str(steps[name]))
                if turn:
                    times[name].append(found)
            print(f"turn {turn}/{options.turns}", file=sys.stderr, flush=True)
    finally:
        for worker in workers.values():
            worker.kill()
    report(options, moved, times)


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", name, "--devices", str(options.devices)]
    command += ["--batch", str(options.batch), "--topology", options.topology]
    command += ["--share-cores"] if options.share_cores else []
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def work(options: argparse.Namespace) -> None:
    """Answer questions: a number asks for that many steps, `bytes` for what a step moves."""
    import torch

    import purine as pu

    torch.set_num_threads(1)
    graph = step_of(options)
    rows = [part.numpy() for part in samples(SETTING)]
    source = pu.data.ArraySource(*rows, classes=SETTING.classes)
    data = pu.data.DataSet("memory", source)
    graph = pu.layout(graph, "channels-last")
    run = pu.Run(graph, data=data, seed=0, threads=1, share_cores=options.share_cores)

    def steps(count: int) -> None:
        for result in run.steps(count):
            assert result.loss == result.loss

    for line in sys.stdin:
        if line.strip() == "bytes":
            print(pu.parallel.bytes_moved(graph), flush=True)
            continue
        count = int(line)
        steps(1)
        begin = time.perf_counter()
        steps(count)
        print((time.perf_counter() - begin) / count, flush=True)


def step_of(options: argparse.Namespace) -> Graph:
    import purine as pu

    devices = f"cpu:0-{options.devices - 1}"
    net = pu.zoo.NETS["alexnet"](batch=options.batch, classes=SETTING.classes, **SETTING.arguments)
    if options.worker == "hybrid":
        net = pu.parallel.hybrid(net, devices)
    step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step = pu.prune(step, ["loss"])
    if options.worker == "replicate":
        step = pu.parallel.replicate(step, devices, topology=options.topology)
    return step


def report(
    options: argparse.Namespace, moved: dict[str, int], times: dict[str, list[float]]
) -> None:
    print(f"alexnet on {options.devices} devices, batch {options.batch} for each")
    print(f"{'':12}{'MB moved':>10}{'ms/step':>10}{'spread':>22}{'images/s':>10}")
    medians = {}
    for name, found in times.items():
        medians[name] = statistics.median(found)
        print(
            f"{name:12}{moved[name] / 1e6:10.1f}{medians[name] * 1e3:10.1f}{spread(found):>22}"
            f"{options.devices * options.batch / medians[name]:10.1f}"
        )
    turns = zip(times["replicate"], times["hybrid"], strict=True)
    result = {
        "net": "alexnet",
        "devices": options.devices,
        "batch": options.batch,
        "share_cores": options.share_cores,
        "bytes_moved": moved,
        "bytes_ratio": round(moved["replicate"] / moved["hybrid"], 4),
        "ms": {name: round(value * 1e3, 3) for name, value in medians.items()},
        "replicate_ratio": round(statistics.median(a / b for a, b in turns), 4),
    }
    print(json.dumps(result))


def spread(found: Sequence[float]) -> str:
    return f"{min(found) * 1e3:.1f} to {max(found) * 1e3:.1f}"


if __name__ == "__main__":
    main()
