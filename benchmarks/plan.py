"""Does `purine plan` choose the scheme that is fastest when all are measured?

A case is a net, a batch and devices: `lenet:64:cpu:0-1`, or with hosts that are processes of this
machine `mlp:128:host0-1:cpu:0`. The plan is made first. Then its candidates are built and run:
those on devices of one host in this process, in turns; those on several hosts by `purine launch`
over shm, one after the other. Seconds of a step are medians over turns. Reported are the chosen
scheme, the best measured one, and plain data parallel. A case counts as right if the chosen scheme
takes at most 5 % longer than the best. The last line is JSON.

    python benchmarks/plan.py --limit 480
    python benchmarks/plan.py --cases lenet:64:cpu:0-3 googlenet:64:cpu:0-3
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CASES = (
    *("mlp:64:cpu:0-1", "mlp:512:cpu:0-1", "lenet:32:cpu:0-1", "lenet:128:cpu:0-1"),
    *("lenet:512:cpu:0-1", "nin:16:cpu:0-1", "googlenet:8:cpu:0-1", "alexnet:8:cpu:0-1"),
    *("gpt2:8:cpu:0-1", "resnet50:4:cpu:0-1", "mlp:256:host0-1:cpu:0", "lenet:128:host0-1:cpu:0"),
)
SHAPES = {"nin": "3x32x32", "googlenet": "3x96x96", "alexnet": "3x128x128", "resnet50": "3x64x64"}
CLOSE = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="NET:BATCH:DEVICES")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--most", type=int, default=12, help="candidates of a case")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn of a candidate")
    parser.add_argument("--trial", type=float, default=4.0, help="seconds that ties run")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds in all")
    options = parser.parse_args()
    ends, rows = time.monotonic() + options.limit, []
    for number, case in enumerate(options.cases, 1):
        if time.monotonic() > ends - options.limit / len(options.cases) / 2:
            print(f"no time is left for {case}", flush=True)
            continue
        print(f"case {number}/{len(options.cases)}: {case}", flush=True)
        try:
            rows.append(measured_case(case, options))
        except Exception as error:
            print(f"  {case} failed: {str(error).splitlines()[0]}", flush=True)
    report(rows)


def measured_case(case: str, options: argparse.Namespace) -> dict[str, object]:
    """The plan of a case, and what its candidates take when they run."""
    from purine.job.automatic import base_plan
    from purine.job.config import merge
    from purine.job.search import Search, search

    net, batch, devices = case.split(":", 2)
    base = base_plan(merge({"net": net, "batch": int(batch), "devices": devices, **data_of(net)}))
    what_if = assumed(len({name.rpartition("cpu")[0] for name in devices.split(",")}))
    start = time.perf_counter()
    found = search(
        base, Search(most=options.most, what_if=what_if, measuring=8.0, trial=options.trial)
    )
    spent = time.perf_counter() - start
    candidates = [one.candidate for one in found.plans]
    left = [one for one, why in found.out if "compute alone" in why]
    candidates += left[: max(0, options.most - len(candidates))]
    several = len(candidates[0].hosts) > 1
    times = (on_hosts if several else in_turns)(base, candidates, options)
    chosen = str(found.best.candidate)
    best = min(times, key=times.__getitem__)
    plain = next((str(one) for one in candidates if one.plain), chosen)
    for one in found.plans:
        mark = "*" if str(one.candidate) == chosen else " "
        real = times.get(str(one.candidate), float("nan"))
        print(
            f" {mark} {one.candidate}: predicted {one.seconds * 1e3:.1f} ms, "
            f"measured {real * 1e3:.1f} ms",
            flush=True,
        )
    return {
        "case": case,
        "chosen": chosen,
        "best": best,
        "ratio": times[chosen] / times[best],
        "plain": times[plain] / times[best],
        "candidates": len(times),
        "plan_seconds": spent,
        "simulated_best": times[str(min(found.plans, key=seconds_of).candidate)] / times[best],
        "errors": [abs(p.seconds / times[str(p.candidate)] - 1) for p in found.plans],
    }


def seconds_of(one) -> float:
    """What the simulation says, whatever was tried."""
    return one.seconds


def data_of(net: str) -> dict[str, object]:
    if net == "gpt2":
        return {"data": "synthetic-tokens:length=64,vocabulary=512,count=2048"}
    if net in SHAPES:
        return {"data": f"synthetic:image={SHAPES[net]},classes=10,count=2048"}
    return {"data": "synthetic:image=1x28x28,classes=10,count=2048"}


def assumed(hosts: int):
    from purine.job.foresee import WhatIf
    from purine.simulator.network import Link

    return WhatIf(Link("memory", 4e9, 5e-6), transport="shm")


def in_turns(base, candidates, options) -> dict[str, float]:
    """Seconds of a step of each candidate; all of them take turns in this process."""
    import purine as pu
    from purine.job.search import with_candidate

    runs = {}
    with ExitStack() as stack:
        for one in candidates:
            plan = with_candidate(base, one)
            run = pu.Run(plan.step, data=plan.data, threads=plan.job.threads, compiled=False)
            runs[str(one)] = stack.enter_context(run)
            for _ in run.steps(3):
                pass
        steps = {}
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in run.steps(2):
                pass
            steps[name] = max(2, round(2 * options.seconds / (time.perf_counter() - start)))
        spent: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.turns):
            for name, run in runs.items():
                start = time.perf_counter()
                for _ in run.steps(steps[name]):
                    pass
                spent[name].append((time.perf_counter() - start) / steps[name])
    return {name: statistics.median(found) for name, found in spent.items()}


def on_hosts(base, candidates, options) -> dict[str, float]:
    """Seconds of a step of each candidate over processes of this machine."""
    from purine.job.file import job_text
    from purine.job.search import with_candidate

    times = {}
    for one in candidates:
        plan = with_candidate(base, one)
        with tempfile.TemporaryDirectory() as folder:
            job, run = Path(folder) / "job.yaml", Path(folder) / "run"
            job.write_text(job_text(plan.job))
            command = [sys.executable, "-m", "purine", "launch", "--hosts", str(len(one.hosts))]
            command += ["--", "train", str(job), "--out", str(run), "--iters", "120"]
            command += ["--log-every", "20"]
            subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=ROOT)
            rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        assert plan.job.batch is not None
        rates = [row["images_per_second"] for row in rows if row.get("images_per_second")]
        times[str(one)] = plan.job.batch / statistics.median(rates[1:])
        print(f"   {one}: {times[str(one)] * 1e3:.1f} ms", flush=True)
    return times


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "PURINE_TRANSPORT": "shm"}


def report(rows: list[dict[str, object]]) -> None:
    print("\n| case | chosen | over the best | plain over the best | candidates | plan |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['case']} | {row['chosen']} | {row['ratio']:.3f} | {row['plain']:.3f} | "
            f"{row['candidates']} | {row['plan_seconds']:.0f} s |"
        )
    ratios = [float(str(row["ratio"])) for row in rows]
    errors = [error for row in rows for error in row["errors"]]  # type: ignore[attr-defined]
    print(
        json.dumps(
            {
                "cases": len(rows),
                "within_5_percent": sum(ratio <= CLOSE for ratio in ratios),
                "plain_within_5_percent": sum(float(str(row["plain"])) <= CLOSE for row in rows),
                "without_trial": sum(float(str(row["simulated_best"])) <= CLOSE for row in rows),
                "worst": max(ratios, default=None),
                "median_error": statistics.median(errors) if errors else None,
                "rows": [{k: v for k, v in row.items() if k != "errors"} for row in rows],
            }
        )
    )


if __name__ == "__main__":
    main()
