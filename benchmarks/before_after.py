"""Is this checkout as fast as an older one? Training steps of both, in turns, in one run.

Each net is measured by a worker of `benchmarks/step.py` of each tree. The workers take turns, so
whatever else the machine does hits both alike. Everything is started anew for each of `--starts`.
Reported is how many times as fast this tree is: the median over starts, each a median over turns,
and their range.

    python benchmarks/before_after.py --before ../old
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from step import ask

HERE = Path(__file__).resolve().parent.parent
NETS = {"lenet": 24, "mlp": 40, "nin": 10, "googlenet": 5, "resnet50": 5, "gpt2": 5}
"""The turns of each net."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="an older checkout")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    before = options.before.resolve()
    if not (before / "benchmarks" / "step.py").exists():
        parser.error(f"{before} has no benchmarks/step.py")
    print(f"{'':12}{'before':>12}{'now':>12}{'times as fast':>16}{'range':>18}")
    ratios = {}
    for net in options.nets:
        starts = [measure(net, before) for _ in range(options.starts)]
        report(net, starts)
        ratios[net] = round(statistics.median(b / a for b, a in starts), 4)
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


def measure(net: str, before: Path) -> tuple[float, float]:
    """The seconds of a step in both trees, medians over turns."""
    workers = [start(tree, net) for tree in (before, HERE)]
    times: list[tuple[float, ...]] = []
    try:
        for turn in range(NETS[net] + 1):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = {index: ask(workers[index], "3") for index in order}
            if turn:  # the first turn warms up
                times.append((seconds[0], seconds[1]))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    old, new = zip(*times, strict=True)
    return statistics.median(old), statistics.median(new)


def start(tree: Path, net: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(tree / "benchmarks" / "step.py"), "--worker", "purine"]
    worker = subprocess.Popen(
        [*command, "--net", net],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tree,
    )
    ask(worker, "1")
    return worker


if __name__ == "__main__":
    main()
