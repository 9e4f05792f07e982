"""What does `join` do for an imported GoogLeNet on a GPU?

torchvision's GoogLeNet is imported and trained in bf16 on images stored as bytes, once with its
convolutions of one input joined into one and once as it was imported. Both steps are in one process
and take turns. Reported are the convolutions of the net and milliseconds of a step, medians over
turns with their range.

    python benchmarks/join.py --batch 128
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import purine as pu

CONVOLUTION = "aten.conv2d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="steps of a turn")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--image", type=int, default=224)
    options = parser.parse_args()
    data = images(4 * options.batch, options.image)
    net = pu.data.prepare(imported(options.batch, options.image), data.train)
    joined = pu.join(net)
    runs = {"as imported": start(net, data, options), "joined": start(joined, data, options)}
    convolutions = {
        name: sum(op.kind == CONVOLUTION for op in graph.ops.values())
        for name, graph in (("as imported", net), ("joined", joined))
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(options.turns + 1):
        for name, run in runs.items():
            seconds = timed(run, options.steps)
            if turn:  # the first turn warms up
                times[name].append(seconds * 1e3)
    for name, values in times.items():
        print(
            f"{name:12}{convolutions[name]:4} convolutions{statistics.median(values):9.3f} ms"
            f"  ({min(values):.3f} to {max(values):.3f})"
        )
    pairs = zip(*times.values(), strict=True)
    ratio = statistics.median(before / after for before, after in pairs)
    print(json.dumps({"convolutions": convolutions, "times_as_fast": round(ratio, 4)}))


def imported(batch: int, image: int) -> pu.Graph:
    import torchvision

    torch.manual_seed(0)
    module = torchvision.models.googlenet(
        weights=None, aux_logits=False, init_weights=False, dropout=0.0
    )
    example = torch.randn(batch, 3, image, image), torch.randint(1000, (batch,))
    return pu.from_torch(module, torch.nn.functional.cross_entropy, example).net


def images(count: int, size: int) -> pu.data.DataSet:
    """Images made up, one byte for each value, with labels."""
    values = np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    source = pu.data.ArraySource(
        values, np.arange(count) % 1000, names=("data", "label"), classes=1000
    )
    return pu.data.DataSet("memory", source)


def start(net: pu.Graph, data: pu.data.DataSet, options: argparse.Namespace) -> pu.Run:
    """A run of the step as a job on one device composes it."""
    step = pu.solvers.sgd(pu.backward(pu.mixed(net, "bf16")), lr=0.01, momentum=0.9)
    step = pu.to_device(pu.prune(step, ["loss"]), options.device)
    step = pu.fuse(pu.layout(step, "channels-last"), devices=[options.device])
    return pu.Run(step, data=data, seed=0)


def timed(run: pu.Run, steps: int) -> float:
    """Seconds of a step."""
    begin = time.perf_counter()
    for result in run.steps(steps):
        assert result.loss == result.loss
    return (time.perf_counter() - begin) / steps


if __name__ == "__main__":
    main()
