"""What does dispatching one op cost, in line on a lane and with a hop to another lane?

A chain of 10,000 ops whose kernels do nothing, run by the dispatcher on one lane, then with every
op on the other lane than the one before it, and by `torch.fx.Interpreter`, in turns in one process.

    python benchmarks/dispatch.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from purine.graph import Builder, Graph
from purine.lowering import lower
from purine.registry.kind import kind
from purine.runtime.executor import Executor, Settings
from purine.runtime.program import compile_program


@kind
def Empty(x: torch.Tensor) -> torch.Tensor:
    """Nothing at all."""
    return x


def chain(ops: int, lanes: int) -> Graph:
    """Ops one after the other, dealt out over lanes in turn."""
    b = Builder()
    b.blob("x0", ())
    for index in range(ops):
        lane = f"compute:{index % lanes}" if index % lanes else "compute"
        output = b.blob(f"x{index + 1}", ())
        b.op(f"op{index}", "Empty", [f"x{index}"], [output], lane=lane)
    b.outputs = [f"x{ops}"]
    return b.graph()


def dispatched(ops: int, lanes: int) -> Callable[[], None]:
    executor = Executor(
        compile_program(lower(chain(ops, lanes))),
        states={},
        feeds={"x0": torch.zeros(())},
        settings=Settings(credit=1),
    )
    done = 0

    def run() -> None:
        nonlocal done
        executor.extend(done + 1)
        executor.wait(done)
        done += 1

    return run


def interpreted(ops: int) -> Callable[[], None]:
    graph = torch.fx.Graph()
    value = graph.placeholder("x0")
    for _ in range(ops):
        value = graph.call_function(Empty, (value,))
    graph.output(value)
    interpreter = torch.fx.Interpreter(torch.fx.GraphModule(torch.nn.Module(), graph))
    x = torch.zeros(())

    def run() -> None:
        interpreter.run(x, enable_io_processing=False)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    contenders = {
        "inline_us": dispatched(options.ops, 1),
        "hop_us": dispatched(options.ops, 2),
        "fx_us": interpreted(options.ops),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(options.turns + 1):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            if turn:  # the first turn warms up
                times[name].append((time.perf_counter() - begin) / options.ops * 1e6)
    print(f"{options.ops} ops, torch {torch.__version__}, us per op")
    for name, found in times.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:10}{middle:8.2f}   quartiles {low:.2f} to {high:.2f}")
    print(json.dumps({name: round(statistics.median(found), 3) for name, found in times.items()}))


if __name__ == "__main__":
    main()
