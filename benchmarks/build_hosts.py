"""What does it cost one host to build its own part of a step on many hosts?

The part of one host is built for 4, 64 and 1,024 hosts of one device each, from the net to the
lowered graph, without any process for the others. Every case is a process of its own, so that its
peak of memory is known. Reported are seconds (medians over turns, with their range), the memory
that the process gained while it built, the ops of the host's part, and how much more the most hosts
cost than the fewest. The last line is JSON.

    python benchmarks/build_hosts.py
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TOPOLOGIES = ("sharded", "tree", "ring")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", default="googlenet")
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 64, 1024])
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=TOPOLOGIES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        topology, count = options.worker
        print(json.dumps(build(options.net, topology, int(count))))
        return
    cases = [(topology, count) for topology in options.topologies for count in options.hosts]
    results: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(options.turns):
        for topology, count in cases:
            command = [sys.executable, __file__, "--net", options.net]
            command += ["--worker", topology, str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[topology, count].append(json.loads(done.stdout))
            last = results[topology, count][-1]
            shown = f"{last['seconds']:.2f} s, {last['megabytes']:.0f} MB, {last['ops']:.0f} ops"
            print(
                f"turn {turn + 1}/{options.turns}: {topology}, {count} hosts: {shown}", flush=True
            )
    report(options, results)


def report(
    options: argparse.Namespace, results: dict[tuple[str, int], list[dict[str, float]]]
) -> None:
    summary: dict[str, dict[str, dict[str, float]]] = {}
    growth: dict[str, dict[str, float]] = {}
    for (topology, count), turns in results.items():
        medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        summary.setdefault(topology, {})[str(count)] = medians
        seconds = [turn["seconds"] for turn in turns]
        spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
        print(
            f"{topology:8} {count:5} hosts {medians['seconds']:6.2f} s {spread}, "
            f"{medians['megabytes']:6.1f} MB, {medians['ops']:5.0f} ops"
        )
    few, many = str(min(options.hosts)), str(max(options.hosts))
    for topology, rows in summary.items():
        growth[topology] = {
            key: round(rows[many][key] / max(rows[few][key], 1e-9), 2) for key in rows[few]
        }
    print(json.dumps({"net": options.net, "costs": summary, "growth": growth}))


def build(net: str, topology: str, count: int) -> dict[str, float]:
    """Build the part of one host; a host that owns as much as any other."""
    from functools import partial

    import purine as pu
    from purine.lowering import Options, lower

    solver = partial(pu.solvers.sgd, lr=0.01, momentum=0.9)
    small = pu.compose(pu.zoo.mlp(batch=8), solver=solver, devices="host0-1:cpu:0", host="host1")
    lower(small, Options(host="host1"))  # imports and first calls are not counted
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    step = pu.compose(
        pu.zoo.NETS[net](batch=4 * count),
        solver=solver,
        devices=f"host0-{count - 1}:cpu:0",
        data=count,
        topology=topology,
        host="host1",
    )
    part = lower(step, Options(host="host1")).graph
    seconds = time.process_time() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "megabytes": (after - before) / 1e3, "ops": len(part.ops)}


if __name__ == "__main__":
    main()
