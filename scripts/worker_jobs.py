"""Jobs of asynchronous workers on two hosts: `purine train` by each scheme over each transport.

    python scripts/worker_jobs.py
    PURINE_GPI2=/path/to/libGPI2.so python scripts/worker_jobs.py --transport gaspi mpi

Each job trains a small net in processes of this machine, which are forked from one that has
imported everything. Checked are: the exit codes; each iteration is trained by some worker; the
accuracy; a checkpoint that `purine test` measures alike; no process is left. A line for each job,
and one JSON object as the last line. The exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from host_jobs import Job, left_over
from warm import Warm

import purine.cli.progress  # noqa: F401  (which the command imports when it is called)
from purine.transports.processes import TRANSPORTS
from tests.command import call

SCHEMES = ("downpour,push=4,fetch=4", "easgd,every=4", "local,every=4,servers=1", "diloco,every=4")
ITERATIONS = 200


def options(scheme: str, out: Path) -> list[object]:
    """A job for which both hosts have a worker, or one of them the parameters alone."""
    words = [
        "--net",
        "mlp",
        "--data",
        "fashion-mini",
        "--momentum",
        "0",
        "--lr",
        "0.05",
        "--seed",
        "0",
        "--share-cores",
    ]
    words += ["--threads", "1", "--devices", "host0-1:cpu:0", "--iters", str(ITERATIONS)]
    return [*words, "--parallel", f"asynchronous={scheme}", "--out", out]


def wrong_with(job: Job, out: Path, scheme: str, hosts: list[int]) -> list[str]:
    """What is wrong with a job that has ended."""
    code = job.wait()
    if code or not (out / "summary.json").is_file():
        return [f"exit code {code}: {job.text()[-600:]}"]
    workers = 1 if "servers=1" in scheme else 2
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = sum(own["iterations"] for row in rows for own in row.get("workers", ()))
    summary = json.loads((out / "summary.json").read_text())
    measured = json.loads(call("test", out, "--json").out)
    wrong = left_over(hosts)
    if trained != workers * ITERATIONS:
        wrong.append(f"{trained} iterations of workers, and not {workers * ITERATIONS}")
    if summary["test_accuracy"] < 0.5:
        wrong.append(f"the accuracy is {summary['test_accuracy']}")
    if abs(measured["accuracy"] - summary["test_accuracy"]) > 1e-6:
        wrong.append(f"purine test says {measured['accuracy']}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ("shm", "tcp", "torchdist", "mpi")
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, default=known)
    parser.add_argument("--scheme", nargs="+", default=SCHEMES)
    given = parser.parse_args()
    call("train", *map(str, options(SCHEMES[0], Path("dry"))), "--dry-run")  # imports everything
    found: list[dict[str, Any]] = []
    with closing(Warm()) as warm, tempfile.TemporaryDirectory(prefix="worker-jobs-") as name:
        for transport in given.transport:
            for scheme in given.scheme:
                out = Path(name) / f"{transport}-{scheme.partition(',')[0]}"
                begun = time.monotonic()
                job = Job(warm, options(scheme, out), transport, out.with_suffix(".log"))
                hosts = list(job.hosts().values())
                wrong = wrong_with(job, out, scheme, hosts)
                seconds = round(time.monotonic() - begun, 1)
                told = {"transport": transport, "scheme": scheme, "seconds": seconds}
                found.append({**told, "wrong": wrong})
                print(f"{transport:<10} {scheme:<24} {seconds:>6} s  {wrong or 'ok'}", flush=True)
    wrong = [one for one in found if one["wrong"]]
    print(json.dumps({"jobs": len(found), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
