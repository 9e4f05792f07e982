"""Is this checkout as fast as an older one? Training steps of both, in turns, in one run.

Each net is measured by a worker of `benchmarks/step.py` of each tree, and each row NET:BATCH of
`--gpu-rows` by one of `benchmarks/gpu.py`. The workers take turns, so whatever else the machine
does hits both alike. Everything is started anew for each of `--starts`.
Reported is how many times as fast this tree is: the median over starts, each a median over turns,
and their range.

    python benchmarks/before_after.py --before ../old
    python benchmarks/before_after.py --before ../old --gpu-rows googlenet:128 gpt2:16
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from step import ask

HERE = Path(__file__).resolve().parent.parent
NETS = {"lenet": 24, "mlp": 40, "nin": 10, "googlenet": 5, "resnet50": 5, "gpt2": 5}
"""The turns of each net."""
GPU_TURNS = 15
Measure = Callable[[str, Path], tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="an older checkout")
    parser.add_argument("--nets", nargs="+", choices=NETS, help="default: all, without --gpu-rows")
    parser.add_argument("--gpu-rows", nargs="+", default=[], metavar="NET:BATCH")
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    before = options.before.resolve()
    if not (before / "benchmarks" / "step.py").exists():
        parser.error(f"{before} has no benchmarks/step.py")
    print(f"{'':12}{'before':>12}{'now':>12}{'times as fast':>16}{'range':>18}")
    nets = options.nets or ([] if options.gpu_rows else list(NETS))
    measures: dict[str, Measure] = dict.fromkeys(nets, on_cpu)
    measures |= dict.fromkeys(options.gpu_rows, on_gpu)
    ratios = {}
    for name, measure in measures.items():
        starts = [measure(name, before) for _ in range(options.starts)]
        report(name, starts)
        ratios[name] = round(statistics.median(b / a for b, a in starts), 4)
    print(json.dumps(ratios))


def report(name: str, starts: list[tuple[float, float]]) -> None:
    """A line for seconds of both trees in each start."""
    ratios = sorted(before / now for before, now in starts)
    middle = [statistics.median(values) * 1e3 for values in zip(*starts, strict=True)]
    print(
        f"{name:12}{middle[0]:9.2f} ms{middle[1]:9.2f} ms{statistics.median(ratios):16.3f}"
        f"{f'{ratios[0]:.3f} to {ratios[-1]:.3f}':>18}",
        flush=True,
    )


def on_cpu(net: str, before: Path) -> tuple[float, float]:
    command = ["step.py", "--worker", "purine", "--net", net]
    workers = [start(tree, command) for tree in (before, HERE)]
    for worker in workers:
        ask(worker, "1")
    return take_turns(workers, NETS[net], lambda worker: ask(worker, "3"))


def on_gpu(row: str, before: Path) -> tuple[float, float]:
    """The workers compile one after the other and say so; a turn is about half a second."""
    net, _, batch = row.partition(":")
    command = ["gpu.py", "--worker", "purine", "--net", net, "--batch", batch]
    workers = []
    for tree in (before, HERE):
        workers.append(worker := start(tree, command))
        answer(worker)
    return take_turns(workers, GPU_TURNS, lambda worker: answer(worker, "30")["seconds"])


def take_turns(
    workers: list[subprocess.Popen[str]],
    turns: int,
    seconds_of: Callable[[subprocess.Popen[str]], float],
) -> tuple[float, float]:
    """The seconds of a step of both workers, medians over turns; ends the workers."""
    times: list[tuple[float, ...]] = []
    try:
        for turn in range(turns + 1):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = {index: seconds_of(workers[index]) for index in order}
            if turn:  # the first turn warms up
                times.append((seconds[0], seconds[1]))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    old, new = zip(*times, strict=True)
    return statistics.median(old), statistics.median(new)


def answer(worker: subprocess.Popen[str], question: str = "") -> dict[str, float]:
    """The next line of a worker of gpu.py, after a question if there is one."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    if question:
        print(question, file=worker.stdin, flush=True)
    line = worker.stdout.readline()
    values: dict[str, float] = json.loads(line) if line else {}
    if "failed" in values or not line:
        raise SystemExit(f"a worker failed: {values.get('failed', 'see above')}")
    return values


def start(tree: Path, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(tree / "benchmarks" / command[0]), *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tree,
    )


if __name__ == "__main__":
    main()
