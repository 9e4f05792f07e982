"""How well do workers train that do not wait for each other, for equal images seen?

For each net and data set every scheme, with its default settings, trains as many images on equally
fast devices. The rate of a net rises during a twentieth of them, and then falls to 0 along a line.
Each turn ends with a test. A row has the mean over seeds of the last test accuracy, the points by
which it differs from that of synchronous training, the median over turns of images/s, the mean and
the largest staleness of what workers read, in iterations, and the medians over seeds of the seconds
of training (without tests) and of the images until the test accuracy was `--target`. The last line
is JSON, with the largest difference in points.

    python benchmarks/asynchronous.py
    python benchmarks/asynchronous.py --data fashion-mini /usr/share/datasets/fashion-mnist
    python benchmarks/asynchronous.py --nets lenet --schemes ssp easgd --epochs 5 --seeds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from straggler import DECAY, MOMENTUM, SYNCHRONOUS, Contender, contender_of, shown, staleness_of
from straggler import SCHEMES as OTHERS

import purine as pu
from purine.graph import Graph

SCHEMES = {**OTHERS, "ssp": "workers=N,asynchronous=ssp"}
RATES = {"lenet": 0.02, "nin": 0.1, "mlp": 0.05}
"""By net the largest rate."""
SMALL = 20_000
"""Data sets below so many images are trained for more epochs, with more seeds."""
COLUMNS = (
    "accuracy",
    "points",
    "images_per_second",
    "mean_staleness",
    "largest_staleness",
    "seconds_to_target",
    "images_to_target",
)
Row = dict[str, float | None]


@dataclass(frozen=True)
class Case:
    """A net and a data set, with the length of its training and the number of its runs."""

    net: str
    data: str
    epochs: float
    seeds: int

    @property
    def name(self) -> str:
        return f"{self.net}, {Path(self.data).name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=tuple(RATES), default=("lenet", "nin"))
    parser.add_argument("--data", nargs="+", default=("fashion-mini",), help="names or folders")
    parser.add_argument("--schemes", nargs="+", choices=tuple(SCHEMES), default=tuple(SCHEMES))
    parser.add_argument("--batch", type=int, default=64, help="images of all devices")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--lr", type=float, help="the largest rate; by default that of the net")
    parser.add_argument("--epochs", type=float, help="by default 8, or 1 for large data")
    parser.add_argument("--seeds", type=int, help="runs of each scheme: 2, or 1 for large data")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--turns", type=int, default=6, help="turns, and tests, of a run")
    parser.add_argument("--target", type=float, default=0.85, help="test accuracy to reach")
    options = parser.parse_args()
    tables = {}
    for data in options.data:
        small = len(pu.data.open_data(data).train) < SMALL
        epochs = options.epochs or (8.0 if small else 1.0)
        for net in options.nets:
            case = Case(net, data, epochs, options.seeds or (2 if small else 1))
            tables[case.name] = table_of(case, options)
    rows = [row for table in tables.values() for row in table.values()]
    largest = max((row["points"] or 0.0 for row in rows if "points" in row), key=abs, default=0.0)
    facts = {"torch": torch.__version__, **vars(options)}
    print(json.dumps({"largest_difference": largest, "tables": tables, "options": facts}))


def table_of(case: Case, options: argparse.Namespace) -> dict[str, Row]:
    """The rows of all schemes, each printed when it is there."""
    print(f"\n{case.name}: {case.epochs:g} epochs, {case.seeds} seeds\n")
    print(f"| scheme | {' | '.join(column.replace('_', ' ') for column in COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|", flush=True)
    rows: dict[str, Row] = {}
    for name in dict.fromkeys((SYNCHRONOUS, *options.schemes)):
        row = row_of(name, case, options)
        if rows:
            row["points"] = 100 * (
                (row["accuracy"] or 0.0) - (rows[SYNCHRONOUS]["accuracy"] or 0.0)
            )
        rows[name] = row
        print(f"| {name} | {' | '.join(shown(row.get(c)) for c in COLUMNS)} |", flush=True)
    return rows


def row_of(name: str, case: Case, options: argparse.Namespace) -> Row:
    """What was measured of a scheme over all seeds."""
    accuracies, speeds, staleness = list[float](), list[float](), list[int]()
    seconds, images = list[float | None](), list[float | None]()
    for seed in range(options.seed, options.seed + case.seeds):
        settings = argparse.Namespace(**{**vars(options), "net": case.net, "seed": seed})
        contender = started(name, case, settings)
        with contender.run:
            accuracy, reached = trained(contender, case, settings)
        accuracies.append(accuracy)
        seconds.append(reached and reached[0])
        images.append(reached and reached[1])
        speeds += contender.speeds
        staleness += contender.staleness
    contender.staleness = staleness
    return {
        "accuracy": statistics.mean(accuracies),
        "images_per_second": statistics.median(speeds),
        **staleness_of(contender),
        "seconds_to_target": median_of(seconds),
        "images_to_target": median_of(images),
    }


def started(name: str, case: Case, options: argparse.Namespace) -> Contender:
    """A contender that has not trained yet, and whose rate ends at 0."""
    data = pu.data.open_data(case.data)
    count = max(1, round(case.epochs * len(data.train) / options.batch))
    falling = pu.solvers.Poly(options.lr or RATES[case.net], max_iterations=count)
    rate = pu.solvers.Warmup(falling, iterations=max(1, count // 20))

    def solver(graph: Graph) -> Graph:
        return pu.solvers.sgd(graph, lr=rate, momentum=MOMENTUM, weight_decay=DECAY)

    return contender_of(name, SCHEMES[name], data, solver, options)


def trained(
    contender: Contender, case: Case, options: argparse.Namespace
) -> tuple[float, tuple[float, int] | None]:
    """The last test accuracy, and the seconds and images of training until the target."""
    size = len(pu.data.open_data(case.data).train)
    spent, seen, accuracy, reached = 0.0, 0, 0.0, None
    for turn in range(1, options.turns + 1):
        images = round(case.epochs * size * turn / options.turns) - seen
        seconds = contender.train(images)
        contender.speeds.append(images / seconds)
        spent, seen = spent + seconds, seen + images
        accuracy = contender.accuracy()
        if reached is None and accuracy >= options.target:
            reached = (spent, seen)
    return accuracy, reached


def median_of(values: list[float | None]) -> float | None:
    """The median of values; None if one of them is missing."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


if __name__ == "__main__":
    main()
