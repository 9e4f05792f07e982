"""How well do workers train that do not wait for each other, for equal images seen?

Every scheme trains the net on as many images, on devices that are equally fast, and takes turns
with the others. Reported are means over seeds of the test accuracy, the points by which it differs
from that of synchronous training, the median over turns of images/s, and the mean and the largest
staleness of what workers read, in iterations. The last line is JSON.

    python benchmarks/asynchronous.py --net lenet --epochs 5 --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from straggler import SYNCHRONOUS, Contender, add_options, build, report, staleness_of

import purine as pu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3, help="how many runs of each scheme")
    options = parser.parse_args()
    names = tuple(dict.fromkeys((SYNCHRONOUS, *options.contenders)))
    accuracies: dict[str, list[float]] = {name: [] for name in names}
    totals: dict[str, Contender] = {}
    first = options.seed
    for seed in range(first, first + options.seeds):
        options.seed = seed
        for contender in trained(names, options):
            accuracies[contender.name].append(contender.accuracy())
            contender.run.close()
            total = totals.get(contender.name)
            if total is not None:
                contender.speeds += total.speeds
                contender.staleness += total.staleness
            totals[contender.name] = contender
    base = statistics.mean(accuracies[SYNCHRONOUS])
    found: dict[str, dict[str, float | None]] = {}
    for name, total in totals.items():
        accuracy = statistics.mean(accuracies[name])
        found[name] = {
            "accuracy": accuracy,
            "points": 100 * (accuracy - base),
            "images_per_second": statistics.median(total.speeds),
            **staleness_of(total),
        }
    report(found, options)


def trained(names: tuple[str, ...], options: argparse.Namespace) -> list[Contender]:
    """All contenders, trained in turns of a quarter of an epoch."""
    size = len(pu.data.open_data(options.data).train)
    contenders = [build(name, options) for name in names]
    turns = max(1, round(4 * options.epochs))
    for turn in range(turns):
        for contender in contenders:
            images = round(options.epochs * size / turns)
            contender.speeds.append(images / contender.train(images))
        print(f"seed {options.seed}, turn {turn + 1}/{turns}", file=sys.stderr, flush=True)
    return contenders


if __name__ == "__main__":
    main()
