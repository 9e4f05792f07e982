"""Are schedules that can deadlock refused, and do the others run?

Random schedules over several hosts are drawn: micro-batches through stages with orders and credits,
and replicas with collectives. Half of them are broken on purpose: orders of ops, control edges,
puts or collectives that contradict each other, credits that are too small, no slot. Each broken one
has to be refused with its cycle, before anything starts. Each good one is run over `inproc`, with
a thread for each host and random delays of messages, and has to complete. The last line is JSON.

    python benchmarks/deadlocks.py --count 500
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.lowering.schedules import broken, good, refusal, run_to_end, stalls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="schedules, half of them broken")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    half = options.count // 2
    seeds = range(options.first, options.first + half)
    refused, stalled, checks = refuse(seeds)
    completed = run(seeds, checks)
    sorts = sorted(refused.items())
    result = {
        "broken": half,
        "refused": sum(refused.values()),
        "by_sort": dict(sorts),
        "cores_that_stall": stalled,
        "good": half,
        "accepted_and_completed": completed,
        "check_ms": round(statistics.median(checks) * 1e3, 2),
    }
    print("\n| broken by | refused |\n|---|---|")
    for how, count in sorts:
        print(f"| {how} | {count} |")
    print(json.dumps(result))


def refuse(seeds: range) -> tuple[Counter[str], int, list[float]]:
    """Refused schedules by sort; those whose cores were seen to stall; seconds of each check."""
    refused: Counter[str] = Counter()
    checks, stalled = [], 0
    for number, seed in enumerate(seeds):
        schedule = broken(seed)
        start = time.perf_counter()
        error = refusal(schedule)
        checks.append(time.perf_counter() - start)
        if error is not None and " -> " in error.what:
            refused[schedule.how] += 1
        else:
            print(f"seed {seed}, {schedule.how}: NOT refused", flush=True)
        if schedule.parts is not None or schedule.slots is not None:
            stalled += stalls(schedule)
        if number % 50 == 0:
            print(f"broken {number + 1}/{len(seeds)}: {error and error.what[:100]}", flush=True)
    return refused, stalled, checks


def run(seeds: range, checks: list[float]) -> int:
    """How many good schedules are accepted and run to their end."""
    completed = 0
    for number, seed in enumerate(seeds):
        schedule = good(seed)
        start = time.perf_counter()
        error = refusal(schedule)
        checks.append(time.perf_counter() - start)
        wrong = str(error) if error is not None else run_to_end(schedule, seed=seed)
        completed += not wrong
        if wrong:
            print(f"seed {seed}: {wrong}", flush=True)
        if number % 50 == 0:
            print(f"good {number + 1}/{len(seeds)}: {completed} completed", flush=True)
    return completed


if __name__ == "__main__":
    main()
