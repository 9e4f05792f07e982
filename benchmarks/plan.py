"""Does `purine plan` choose the scheme that is fastest when all are measured?

A case is a net, a batch, devices and, for two hosts, the rate of the link between them:
`lenet:64:cpu:0-1` or `nin:16:host0-1:cpu:0@200mbit`. Such hosts are network namespaces with a core
each and a shaped link (`ip netns`, `tc tbf`: needs root, else they are left out). The plan is made
first. Then all candidates that it simulated are built and run in turns of about `--seconds`: those
of one host in one process, those of two hosts in two processes for each. Seconds of a step are
medians over turns. Reported are the chosen scheme, the best measured one, and plain data parallel.
A case counts as right if the chosen scheme takes at most 5 % longer than the best. The last line is
JSON.

    python benchmarks/plan.py
    python benchmarks/plan.py --cases lenet:64:cpu:0-1 nin:16:host0-1:cpu:0@1gbit
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from foreseen import SKIPPED, Case, Options, Team, plan_of
from forked import apart
from network import ADDRESSES, SPACES, hosts

CASES = (
    *("mlp:64:cpu:0-1", "mlp:512:cpu:0-1", "lenet:32:cpu:0-1", "lenet:256:cpu:0-1"),
    *("nin:16:cpu:0-1", "googlenet:8:cpu:0-1", "gpt2:8:cpu:0-1"),
    *("mlp:256:host0-1:cpu:0@1gbit", "mlp:256:host0-1:cpu:0@200mbit"),
    *("lenet:128:host0-1:cpu:0@1gbit", "lenet:64:host0-1:cpu:0@200mbit"),
    *("nin:16:host0-1:cpu:0@1gbit", "nin:16:host0-1:cpu:0@200mbit"),
    *("alexnet:8:host0-1:cpu:0@1gbit", "gpt2:8:host0-1:cpu:0@200mbit"),
)
SHAPES = {"nin": "3x32x32", "googlenet": "3x96x96", "alexnet": "3x128x128", "resnet50": "3x64x64"}
CLOSE = 1.05


@dataclass(frozen=True)
class Row:
    """A candidate: its job, and the seconds of a step that were predicted, if it was simulated."""

    name: str
    job: Options
    predicted: float | None
    plain: bool
    hosts: int


@dataclass(frozen=True)
class Planned:
    """The plan of a case: its candidates, the chosen one first, and how long it took."""

    rows: tuple[Row, ...]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="NET:BATCH:DEVICES[@RATE]")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--most", type=int, default=10, help="candidates of a case")
    parser.add_argument("--seconds", type=float, default=0.35, help="of a turn of a candidate")
    parser.add_argument("--measure", type=float, default=6.0, help="seconds to measure a net")
    parser.add_argument("--trial", type=float, default=4.0, help="seconds that likely plans run")
    parser.add_argument("--patience", type=int, default=150, help="seconds of a case at most")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    prepare()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes namespaces too
    rows, start = [], time.monotonic()
    for number, case in enumerate(options.cases, 1):
        begin = time.monotonic()
        print(f"case {number}/{len(options.cases)}: {case}", flush=True)
        if "@" in case and os.geteuid() != 0:
            print("  left out: network namespaces need root", flush=True)
            continue
        try:
            signal.alarm(options.patience)
            rows.append(measured_case(case, options))
        except (Exception, SystemExit) as error:
            print(f"  {case} failed: {str(error).splitlines()[:1]}", flush=True)
        finally:
            signal.alarm(0)
        print(f"  {time.monotonic() - begin:.0f} s", flush=True)
    report(rows, time.monotonic() - start)


def out_of_time(*_: object) -> None:
    raise TimeoutError("no time is left for this case")


def prepare() -> None:
    """Import and build what all processes have in common, before they are forked."""
    import torch

    import purine.job.automatic
    import purine.runtime.run
    import purine.transports.processes  # noqa: F401

    torch.set_num_threads(1)
    plan_of({"net": "mlp", "batch": 1, "iters": 1})  # what building a graph imports


def measured_case(case: str, options: argparse.Namespace) -> dict[str, object]:
    """The plan of a case, and what its candidates take when they run."""
    plan = apart(partial(limited, options.patience, partial(planned, case, options)))
    _, _, rate = case.partition("@")
    if rate:
        times = on_hosts(plan.rows, rate, options)
    else:
        times = apart(partial(limited, options.patience, partial(in_turns, plan.rows, options)))
    return compared(case, plan, times)


def limited(seconds: int, make: partial):
    """What `make` returns, in a process that ends when it takes longer."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    return make()


def planned(case: str, options: argparse.Namespace) -> Planned:
    """The plan of a case."""
    from purine.job.automatic import base_plan
    from purine.job.config import merge
    from purine.job.search import Search, search, with_candidate
    from purine.job.what_if import parse_what_if

    where, _, rate = case.partition("@")
    net, batch, devices = where.split(":", 2)
    given = {"net": net, "batch": int(batch), "iters": 1000, **data_of(net)}
    base = base_plan(merge({**given, "devices": devices}))
    what_if, _ = parse_what_if([f"link={rate}"] if rate else [])
    start = time.perf_counter()
    told = Search(
        most=options.most, what_if=what_if, measuring=options.measure, trial=options.trial
    )
    found = search(base, told)
    spent = time.perf_counter() - start

    def row(one, seconds: float | None = None) -> Row:
        job = with_candidate(base, one).job
        own = {"devices": job.devices, "parallel": job.parallel, "threads": job.threads}
        return Row(str(one), {**given, **own}, seconds, one.plain, len(one.hosts))

    rows = [row(one.candidate, one.seconds) for one in found.plans]
    rows += [row(one) for one, why in found.out if "compute alone" in why][:3]
    return Planned(tuple(rows), spent)


def data_of(net: str) -> dict[str, object]:
    if net == "gpt2":
        return {"data": "synthetic-tokens:length=64,vocabulary=512,count=2048"}
    if net in SHAPES:
        return {"data": f"synthetic:image={SHAPES[net]},classes=10,count=2048"}
    return {"data": "synthetic:image=1x28x28,classes=10,count=2048"}


def in_turns(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step of each candidate; all of them take turns in this process."""
    from purine.runtime.run import Run

    with ExitStack() as stack:
        runs, steps = {}, {}
        for row in rows:
            plan = plan_of(row.job)
            run = Run(plan.step, data=plan.data, threads=plan.job.threads, compiled=False)
            runs[row.name] = stack.enter_context(run)
            timed(run, 3)
        for name, run in runs.items():
            steps[name] = max(2, min(400, round(options.seconds / timed(run, 3))))
        spent: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.turns):
            for name, run in runs.items():
                spent[name].append(timed(run, steps[name]))
    return {name: statistics.median(found) for name, found in spent.items()}


def timed(run, steps: int) -> float:
    """Seconds of a step."""
    start = time.perf_counter()
    for _ in run.steps(steps):
        pass
    return (time.perf_counter() - start) / steps


def on_hosts(rows: Sequence[Row], rate: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step of each candidate over two namespaces; all of them take turns."""
    spent: dict[str, list[float]] = {row.name: [] for row in rows}
    teams: dict[str, Team] = {}
    with ExitStack() as stack:
        stack.enter_context(hosts(rate))
        for row in rows:
            case = Case(row.name, row.job, rate=rate, hosts=row.hosts)
            team = teams[row.name] = Team(case, SPACES, ADDRESSES)
            stack.callback(team.end)
            team.start()
            team.send(f"run {SKIPPED + 2}")  # builds beside the others
        for team in teams.values():
            team.answers()
        for team in teams.values():
            team.warm_up(options.seconds)
        for _ in range(options.turns):
            for name, team in teams.items():
                spent[name].append(team.turn())
    return {name: statistics.median(found) for name, found in spent.items()}


def compared(case: str, plan: Planned, times: Mapping[str, float]) -> dict[str, object]:
    """The chosen, the best, and the plain candidate of a case."""
    chosen, best = plan.rows[0].name, min(times, key=times.__getitem__)
    plain = next((row.name for row in plan.rows if row.plain), chosen)
    simulated = [row for row in plan.rows if row.predicted is not None]
    first = min(simulated, key=lambda row: row.predicted or 0.0).name
    for row in plan.rows:
        said = "not simulated" if row.predicted is None else f"predicted {row.predicted * 1e3:.1f}"
        mark = "*" if row.name == chosen else " "
        print(f" {mark} {row.name}: {said}, measured {times[row.name] * 1e3:.1f} ms", flush=True)
    print(
        f"  chosen over best {times[chosen] / times[best]:.3f}, "
        f"plain {times[plain] / times[best]:.3f}, best: {best}",
        flush=True,
    )
    return {
        "case": case,
        "chosen": chosen,
        "best": best,
        "ratio": round(times[chosen] / times[best], 4),
        "plain": round(times[plain] / times[best], 4),
        "candidates": len(times),
        "plan_seconds": round(plan.seconds, 1),
        "simulated_best": round(times[first] / times[best], 4),
        "errors": [abs(row.predicted / times[row.name] - 1) for row in simulated if row.predicted],
    }


def report(rows: Sequence[Mapping[str, object]], seconds: float) -> None:
    print("\n| case | chosen | over the best | plain over the best | candidates | plan |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['case']} | {row['chosen']} | {row['ratio']:.3f} | {row['plain']:.3f} | "
            f"{row['candidates']} | {row['plan_seconds']:.0f} s |"
        )

    def close(key: str) -> int:
        return sum(float(str(row[key])) <= CLOSE for row in rows)

    errors = [error for row in rows for error in row["errors"]]  # type: ignore[attr-defined]
    result = {
        "cases": len(rows),
        "within_5_percent": close("ratio"),
        "plain_within_5_percent": close("plain"),
        "without_trial": close("simulated_best"),
        "worst": max((float(str(row["ratio"])) for row in rows), default=None),
        "median_error": round(statistics.median(errors), 4) if errors else None,
        "seconds": round(seconds),
        "rows": [{k: v for k, v in row.items() if k != "errors"} for row in rows],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
