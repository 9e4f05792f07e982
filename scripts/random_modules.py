"""Imports random modules and compares them with plain PyTorch in float64.

    python scripts/random_modules.py --count 2000 --seed 0 --jobs 2

Each module is trained for a few steps at two batch sizes and under each scheme, and its test graph
is measured. A module that differs is printed, shrunk, with its seed. `--log FILE` keeps the outcome
of each module, and a run with the same file goes on where the last one ended. The last line is a
JSON object of counts; the exit code is 1 where something differs.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.importers.random_campaign import SCHEMES, compare
from tests.importers.random_modules import Draft, draw, shrink

_NAMES = re.compile(r"'[^']*'|\[[^]]*\]|\d+")


def main() -> int:
    options = _options()
    names = tuple(SCHEMES) if options.schemes == "all" else tuple(options.schemes.split(","))
    seeds = range(options.seed, options.seed + options.count)
    known = _known(options.log)
    done = [known[seed] for seed in seeds if seed in known]
    left = [seed for seed in seeds if seed not in known]
    started = time.perf_counter()
    with open(options.log or os.devnull, "a", encoding="utf-8") as log:
        for row in _rows([(seed, names, not options.whole) for seed in left], options.jobs):
            done.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()
            if row["bugs"]:
                print(f"seed {row['seed']}:\n{row['source']}", *row["bugs"], sep="\n", flush=True)
            if len(done) % 20 == 0:
                took = (time.perf_counter() - started) / (len(done) - len(known) or 1)
                print(f"{len(done)} of {options.count}, {took:.2f} s each", flush=True)
    summary = _summary(done, time.perf_counter() - started)
    print(json.dumps(summary))
    return 1 if summary["different"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="number of modules")
    parser.add_argument("--seed", type=int, default=0, help="that of the first module")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--schemes", default="all", help=f"all, or some of {','.join(SCHEMES)}")
    parser.add_argument("--whole", action="store_true", help="do not shrink what differs")
    parser.add_argument("--log", type=Path, help="file of outcomes, to go on from")
    return parser.parse_args()


def _known(log: Path | None) -> dict[int, dict[str, Any]]:
    if log is None or not log.exists():
        return {}
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {row["seed"]: row for row in rows}


def _rows(tasks: list[tuple[int, tuple[str, ...], bool]], jobs: int) -> Iterator[dict[str, Any]]:
    """The outcomes of the tasks, as they come."""
    if jobs == 1:
        yield from map(_row, tasks)
        return
    # Processes are replaced now and then: torch remembers every graph that it traced.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        yield from pool.imap_unordered(_row, tasks)


def _row(task: tuple[int, tuple[str, ...], bool]) -> dict[str, Any]:
    """What one seed gives, as it is logged."""
    seed, schemes, shrinks = task
    started = time.perf_counter()
    draft = draw(seed)
    outcomes = compare(draft, schemes)
    bugs = {name: outcome for name, outcome in outcomes.items() if outcome.is_bug}
    if bugs and shrinks:
        draft = shrink(draft, lambda other: _fails_alike(other, bugs))
        outcomes |= compare(draft, [name for name in bugs if name in SCHEMES])
    return {
        "seed": seed,
        "sorts": {name: outcome.sort for name, outcome in outcomes.items()},
        "refusals": {n: o.reason for n, o in outcomes.items() if o.sort == "refused"},
        "bugs": [f"{name}: {outcomes[name].sort}: {outcomes[name].reason}" for name in bugs],
        "source": draft.source() if bugs else "",
        "seconds": time.perf_counter() - started,
    }


def _fails_alike(draft: Draft, bugs: Mapping[str, Any]) -> bool:
    """Whether a module fails in one of the ways that another did; one scheme is enough to see."""
    first = next(iter(bugs))
    found = compare(draft, [first] if first in SCHEMES else [])
    return first in found and found[first].is_bug


def _summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    ways: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: collections.Counter[str] = collections.Counter()
    modules: collections.Counter[str] = collections.Counter()
    for row in rows:
        for name, sort in row["sorts"].items():
            ways[name][sort] += 1
        modules[
            "different" if row["bugs"] else "refused" if "import" in row["sorts"] else "same"
        ] += 1
        reasons.update({_NAMES.sub("_", text)[:120] for text in row["refusals"].values()})
    return {
        "modules": len(rows),
        **{sort: modules[sort] for sort in ("same", "refused", "different")},
        "ways": {name: dict(counts) for name, counts in ways.items()},
        "reasons": dict(reasons.most_common()),
        "seeds": sorted(row["seed"] for row in rows if row["bugs"]),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
