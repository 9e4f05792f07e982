"""Does a GPU compute what the CPU does, and does low precision train as float32 does?

For each net: the losses of 100 steps in float32 on the CPU and on the GPU, where the step is one
compiled and captured op, and the largest relative difference of the two; then 300 steps on the GPU
in float32 and in low precision, and the mean losses of the last 20. All with the same seed, data
and random masks. Float32 is run several times, from first weights that differ by 1e-7: what these
runs are apart (`fp32_spread`) no other precision can be held to. The last line is JSON.

    python benchmarks/precision.py --nets lenet gpt2 --workers 4
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import purine as pu
from purine.data.synthetic import synthetic_images, synthetic_tokens
from purine.graph import Graph
from purine.solvers import adamw, sgd


@dataclass(frozen=True)
class Case:
    """A net, what it learns, and the solver.

    `calm` are net and solver for the comparison with the CPU: rates at which what rounding does
    is not made larger from step to step, as batch norm and large steps make it on one device too.
    """

    net: Callable[[], Graph]
    data: Callable[[], pu.data.DataSet]
    solver: Callable[[Graph], Graph]
    calm: tuple[Callable[[], Graph], Callable[[Graph], Graph]]


def images() -> pu.data.DataSet:
    """So many classes that learning them takes most of the steps."""
    return synthetic_images((3, 64, 64), classes=100, count=4096)


def lenet() -> Graph:
    return pu.zoo.lenet(batch=64)


def nin() -> Graph:
    return pu.zoo.nin(batch=64, image=(1, 28, 28))


def googlenet(*, batch_norm: bool = False) -> Graph:
    return pu.zoo.googlenet(
        batch=16, image=(3, 64, 64), classes=100, batch_norm=batch_norm, auxiliary=False
    )


def gpt2() -> Graph:
    return pu.zoo.gpt2(batch=16, context=64, layers=4, width=128, heads=4, vocabulary=257)


def tokens() -> pu.data.DataSet:
    return synthetic_tokens(64, vocabulary=257, count=4096)


SLOW, ADAM = partial(sgd, lr=0.001), partial(adamw, lr=1e-3)
CASES = {
    "lenet": Case(
        lenet, pu.data.fashion_mini, partial(sgd, lr=0.01, momentum=0.9), calm=(lenet, SLOW)
    ),
    "nin": Case(nin, pu.data.fashion_mini, partial(adamw, lr=1e-4), calm=(nin, SLOW)),
    "googlenet": Case(
        partial(googlenet, batch_norm=True),
        images,
        partial(sgd, lr=0.005, momentum=0.9),
        calm=(googlenet, SLOW),
    ),
    "gpt2": Case(gpt2, tokens, ADAM, calm=(gpt2, ADAM)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--steps", type=int, default=100, help="steps on CPU and GPU")
    parser.add_argument("--more", type=int, default=300, help="steps in each precision")
    parser.add_argument("--low", nargs="+", choices=("bf16", "fp16"), default=["bf16"])
    parser.add_argument(
        "--starts",
        type=int,
        default=3,
        help="float32 runs to compare with, whose first weights differ by 1e-7",
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    runs = [
        (name, *run)
        for name in options.nets
        for run in (
            ("cpu:0", None, True, options.steps, 0),
            (options.device, None, True, options.steps, 0),
            *((options.device, low, False, options.more, 0) for low in options.low),
            *((options.device, None, False, options.more, k) for k in range(options.starts)),
        )
    ]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        begun = {run: pool.submit(losses, *run) for run in runs}
        found = {name: compare(name, options, begun) for name in options.nets}
    print(json.dumps({"steps": options.steps, "more": options.more, "nets": found}))


def compare(
    name: str, options: argparse.Namespace, begun: Mapping[Any, Future[list[float]]]
) -> dict[str, float]:
    def result(device: str, low: str | None, calm: bool, count: int, start: int = 0) -> list[float]:
        return begun[name, device, low, calm, count, start].result()

    cpu, gpu = (result(place, None, True, options.steps) for place in ("cpu:0", options.device))
    starts = range(options.starts)
    wide = [last(result(options.device, None, False, options.more, k)) for k in starts]
    assert all(map(math.isfinite, (*cpu, *gpu)))
    row = {
        "first_loss": round(cpu[0], 5),
        "cpu_loss": round(cpu[-1], 5),
        "gpu_loss": round(gpu[-1], 5),
        "difference": max(abs(a - b) / abs(a) for a, b in zip(cpu, gpu, strict=True)),
        "fp32": round(sum(wide) / len(wide), 5),
        "fp32_spread": (max(wide) - min(wide)) / min(wide),
    }
    for low in options.low:
        row[low] = round(last(result(options.device, low, False, options.more)), 5)
        row[f"{low}_difference"] = abs(row[low] - row["fp32"]) / row["fp32"]
    print(name, json.dumps(row), flush=True)
    return row


def last(values: list[float]) -> float:
    return sum(values[-20:]) / len(values[-20:])


def losses(
    name: str, device: str, precision: str | None, calm: bool, count: int, start: int
) -> list[float]:
    """The losses of so many steps, as a job on the device runs them.

    First weights are shaken by 1e-7, each `start` but 0 in its own way.
    """
    case = CASES[name]
    make, solver = case.calm if calm else (case.net, case.solver)
    data = case.data()
    net = pu.data.prepare(make(), data.train)
    if device.startswith("cuda"):
        net = pu.join(net)
    if precision is not None:
        net = pu.mixed(net, precision)
    step = pu.prune(solver(pu.backward(net)), ["loss"])
    if device.startswith("cuda"):
        step = pu.fuse(pu.to_device(step, device), devices=[device])
    threads = 1 if device.startswith("cpu") else None  # many would wait for those of other runs
    with pu.Run(step, data=data, seed=0, share_cores=True, threads=threads) as run:
        noise = torch.Generator().manual_seed(start)
        shaken = {
            name: value.cpu() * (1 + 1e-7 * torch.randn(value.shape, generator=noise))
            for name, value in run.states().items()
            if start and step.states[name].trainable
        }
        run.set_states(shaken)
        found = [result.loss for result in run.steps(count)]
    what = f"{name}, {device}, {precision or 'float32'}"
    print(f"{what}: {found[0]:.4f} to {found[-1]:.4f}", flush=True)
    return found


if __name__ == "__main__":
    main()
