"""Does a GPU compute what the CPU does, and does low precision train as float32 does?

For each net: the losses of 100 steps in float32 on the CPU and on the GPU, where the step is one
compiled and captured op, and the largest relative difference of the two; then 300 steps on the GPU
in float32 and in low precision, and the mean losses of the last 20. All with the same seed, data
and random masks. The last line is JSON.

    python benchmarks/precision.py --nets lenet gpt2
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
    return synthetic_images((3, 64, 64), classes=10, count=4096)


def lenet() -> Graph:
    return pu.zoo.lenet(batch=64)


def nin() -> Graph:
    return pu.zoo.nin(batch=64, image=(1, 28, 28))


def googlenet(*, batch_norm: bool = False) -> Graph:
    return pu.zoo.googlenet(
        batch=16, image=(3, 64, 64), classes=10, batch_norm=batch_norm, auxiliary=False
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
    "nin": Case(nin, pu.data.fashion_mini, partial(adamw, lr=3e-4), calm=(nin, SLOW)),
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
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    found = {name: compare(CASES[name], name, options) for name in options.nets}
    print(json.dumps({"steps": options.steps, "more": options.more, "nets": found}))


def compare(case: Case, name: str, options: argparse.Namespace) -> dict[str, float]:
    calm = replace(case, net=case.calm[0], solver=case.calm[1])
    cpu, gpu = (losses(calm, device, None, options.steps) for device in ("cpu:0", options.device))
    assert all(map(math.isfinite, (*cpu, *gpu)))
    row = {
        "first_loss": round(cpu[0], 5),
        "cpu_loss": round(cpu[-1], 5),
        "gpu_loss": round(gpu[-1], 5),
        "difference": max(abs(a - b) / abs(a) for a, b in zip(cpu, gpu, strict=True)),
    }
    print(name, json.dumps(row), flush=True)
    row["fp32"] = round(last(losses(case, options.device, None, options.more)), 5)
    for low in options.low:
        row[low] = round(last(losses(case, options.device, low, options.more)), 5)
        row[f"{low}_difference"] = abs(row[low] - row["fp32"]) / row["fp32"]
    print(name, json.dumps(row), flush=True)
    return row


def last(values: list[float]) -> float:
    return sum(values[-20:]) / len(values[-20:])


def losses(case: Case, device: str, precision: str | None, count: int) -> list[float]:
    """The losses of so many steps, as a job on the device runs them."""
    data = case.data()
    net = pu.data.prepare(case.net(), data.train)
    if device.startswith("cuda"):
        net = pu.join(net)
    if precision is not None:
        net = pu.mixed(net, precision)
    step = pu.prune(case.solver(pu.backward(net)), ["loss"])
    if device.startswith("cuda"):
        step = pu.fuse(pu.to_device(step, device), devices=[device])
    with pu.Run(step, data=data, seed=0) as run:
        return [result.loss for result in run.steps(count)]


if __name__ == "__main__":
    main()
