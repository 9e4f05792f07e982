"""How well do workers train that do not wait for each other, for equal images seen?

Every scheme trains the net on as many images, on devices that are equally fast, and takes turns
with the others. Reported are means over seeds of the test accuracy, the points by which it differs
from that of synchronous training, the median over turns of images/s, the mean and the largest
staleness of what workers read, in iterations, and the median over seeds of the seconds of training
(without tests) until the test accuracy was `--target`. Each turn ends with a test. The last line is
JSON.

    python benchmarks/asynchronous.py --net lenet --epochs 5 --seeds 3
    python benchmarks/asynchronous.py --data /usr/share/datasets/fashion-mnist --epochs 2 --seeds 1
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
    parser.add_argument("--turns", type=int, default=4, help="turns, and tests, in an epoch")
    parser.add_argument("--target", type=float, default=0.85, help="test accuracy to reach")
    options = parser.parse_args()
    names = tuple(dict.fromkeys((SYNCHRONOUS, *options.contenders)))
    accuracies: dict[str, list[float]] = {name: [] for name in names}
    reached: dict[str, list[float | None]] = {name: [] for name in names}
    totals: dict[str, Contender] = {}
    first = options.seed
    for seed in range(first, first + options.seeds):
        options.seed = seed
        contenders, times = trained(names, options)
        for contender in contenders:
            accuracies[contender.name].append(contender.accuracy())
            reached[contender.name].append(times.get(contender.name))
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
            "seconds_to_target": median_of(reached[name]),
        }
    report(found, options)


def median_of(times: list[float | None]) -> float | None:
    """The median of times; None if one of them is missing."""
    known = [time for time in times if time is not None]
    return statistics.median(known) if len(known) == len(times) else None


def trained(
    names: tuple[str, ...], options: argparse.Namespace
) -> tuple[list[Contender], dict[str, float]]:
    """All contenders, trained in turns, and the seconds that each took to reach the target."""
    size = len(pu.data.open_data(options.data).train)
    contenders = [build(name, options) for name in names]
    turns = max(1, round(options.turns * options.epochs))
    spent, times = dict.fromkeys(names, 0.0), dict[str, float]()
    for turn in range(turns):
        for contender in contenders:
            name, images = contender.name, round(options.epochs * size / turns)
            seconds = contender.train(images)
            contender.speeds.append(images / seconds)
            spent[name] += seconds
            if name not in times and contender.accuracy() >= options.target:
                times[name] = spent[name]
        print(f"seed {options.seed}, turn {turn + 1}/{turns}", file=sys.stderr, flush=True)
    return contenders, times


if __name__ == "__main__":
    main()
