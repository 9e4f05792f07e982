"""How long does it take to predict and to plan for thousands of devices, and how good is it?

Hosts that do the same are simulated once. First, where both are possible, this is compared with the
simulation of all hosts: seconds of a step, on links that matter and links that do not. Then one
scheme is predicted for many devices, and a plan is made for them. Each case is a process of its
own, so that its peak of memory is known. Times of ops are those of the cost model. The last line is
JSON.

    python benchmarks/on_paper.py
    python benchmarks/on_paper.py --devices 10000 --agree 16 64 256
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

IMAGES = "synthetic:image=1x28x28,classes=10,count=4000000"
TOKENS = "synthetic-tokens:length=128,vocabulary=1024,count=4000000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--agree", type=int, nargs="*", default=[16, 32, 64, 128, 256])
    parser.add_argument("--net", default="gpt2", help="the net for many devices")
    parser.add_argument("--seconds", type=float, default=420.0, help="of the search at most")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(WORKERS[options.worker.split(" ")[0]](options)))
        return
    agreed = []
    for count in options.agree:
        for scheme, link in ((1, "1gbit"), (1, "25gbit"), (2, "1gbit")):
            row = worker(options, f"agree {count} {scheme} {link}")
            agreed.append(row)
            print(
                f"{row['scheme']}, {row['link']}: all {row['full'] * 1e3:.2f} ms "
                f"({row['full_took']:.1f} s), folded {row['folded'] * 1e3:.2f} ms "
                f"({row['folded_took']:.1f} s): {row['difference']:+.2%}",
                flush=True,
            )
    predicted = worker(options, "predict")
    print(f"predicted: {predicted}", flush=True)
    planned = worker(options, "plan")
    print(f"planned: {planned}", flush=True)
    result = {
        "devices": options.devices,
        "worst_difference": max((abs(row["difference"]) for row in agreed), default=None),
        "compared": len(agreed),
        "predict_seconds": predicted["took"],
        "predict_megabytes": predicted["megabytes"],
        "plan_seconds": planned["took"],
        "plan_megabytes": planned["megabytes"],
        "plan": planned["best"],
        "simulated": planned["simulated"],
    }
    print(json.dumps(result))


def worker(options: argparse.Namespace, what: str) -> dict:
    command = [sys.executable, __file__, "--worker", what, "--net", options.net]
    command += ["--devices", str(options.devices), "--seconds", str(options.seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def agree(options: argparse.Namespace) -> dict[str, object]:
    """One scheme with all hosts, and with those that stand for all."""
    from purine.job.candidates import Candidate
    from purine.job.foresee import foresee
    from purine.job.on_paper import fold_of, foresee_folded
    from purine.job.search import with_candidate
    from purine.job.what_if import parse_what_if
    from purine.parallel import Scheme
    from purine.placement.devices import parse_devices

    _, count, pipeline, link = options.worker.split(" ")
    number, stages = int(count), int(pipeline)
    devices = f"host0-{number // stages - 1}:cpu:0" + (f"-{stages - 1}" if stages > 1 else "")
    scheme = Scheme(data=number // stages, pipeline=stages, micro=2 * stages if stages > 1 else 1)
    base = base_of("lenet", devices, 16 * number)
    one = Candidate(parse_devices(devices), scheme)
    what_if, _ = parse_what_if([f"link={link}"])

    def seconds(plan, shape=None):
        return foresee(plan, what_if=what_if, iterations=8, shape=shape, memory=False)

    start = time.perf_counter()
    folded = foresee_folded(base, one, with_candidate, seconds).seconds
    between = time.perf_counter()
    full = seconds(with_candidate(base, one)).seconds
    return {
        "scheme": f"{scheme} on {number} devices",
        "link": link,
        "folds": fold_of(one) is not None,
        "full": full,
        "folded": folded,
        "difference": folded / full - 1,
        "folded_took": between - start,
        "full_took": time.perf_counter() - between,
    }


def predict(options: argparse.Namespace) -> dict[str, object]:
    """A data x pipeline x model scheme on many devices."""
    from purine.job.candidates import Candidate
    from purine.job.foresee import foresee
    from purine.job.on_paper import foresee_folded
    from purine.job.search import with_candidate
    from purine.job.what_if import parse_what_if
    from purine.parallel import Scheme
    from purine.placement.devices import parse_devices

    what_if, _ = parse_what_if(["link=100gbit"])
    start = time.perf_counter()
    scheme = Scheme(data=options.devices // 8, pipeline=4, model=2, micro=8)
    devices = devices_of(options.devices)
    base = base_of(options.net, devices, 8 * scheme.data)
    one = Candidate(parse_devices(devices), scheme)
    found = foresee_folded(
        base,
        one,
        with_candidate,
        lambda plan, shape=None: foresee(plan, what_if=what_if, iterations=8, shape=shape),
    )
    return {
        "scheme": str(scheme),
        "step_seconds": found.seconds,
        "peak": max(found.memory.values()),
        **spent(start),
    }


def plan(options: argparse.Namespace) -> dict[str, object]:
    """A plan for many devices."""
    from purine.job.search import Search, search
    from purine.job.what_if import parse_what_if

    what_if, _ = parse_what_if(["link=100gbit"])
    start = time.perf_counter()
    base = base_of(options.net, devices_of(options.devices), options.devices)
    told = Search(what_if=what_if, memory=80 * 10**9, seconds=options.seconds, measuring=0.0)
    found = search(base, told)
    return {
        "best": str(found.best.candidate),
        "step_seconds": found.best.seconds,
        "simulated": len(found.plans),
        "out": len(found.out),
        **spent(start),
    }


def base_of(net: str, devices: str, batch: int):
    from purine.job.automatic import base_plan
    from purine.job.config import merge

    data = TOKENS if net == "gpt2" else IMAGES
    given = {"net": net, "devices": devices, "batch": batch, "data": data, "iters": 10}
    return base_plan(merge({**given, "threads": 1}))


def devices_of(count: int) -> str:
    return f"host0-{count // 8 - 1}:cpu:0-7"


def spent(start: float) -> dict[str, object]:
    """Seconds since the start, and the peak of memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"took": round(time.perf_counter() - start, 1), "megabytes": round(peak)}


WORKERS: dict[str, Callable[[argparse.Namespace], dict[str, object]]] = {
    "agree": agree,
    "predict": predict,
    "plan": plan,
}


if __name__ == "__main__":
    main()
