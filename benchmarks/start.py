"""How long does one wait: for an import, for help, for a check, for the first step of a module?

Every figure is the time of a process of its own, from its start to its end; those of the imported
module (GPT-2 small, 12 layers of 768) are taken inside of one, from the module at hand to what is
named, with the peak memory of the process. All figures and, with `--before`, another worktree take
turns, so that whatever else the machine does hits all of them alike. Reported are medians and their
spread; what is `over torch` has the median of `import torch` taken off.

    python benchmarks/start.py --turns 7
    git worktree add ../old 1a8eba3 && python benchmarks/start.py --before ../old
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = Path(__file__).resolve().parent.parent

NET = """
- {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label], thread: io}
- {type: blob, name: data, size: [64, 1, 28, 28]}
- {type: blob, name: label, size: [64], dtype: int64}
- {type: blob, name: conv1/weight, size: [20, 1, 5, 5]}
- {type: state, blob: conv1/weight, filler: {type: xavier}, trainable: true}
- {type: op, op_type: Conv, name: conv1, inputs: [data, conv1/weight], outputs: [conv1]}
- {type: op, op_type: Pool, name: pool1, inputs: [conv1], outputs: [pool1], kernel: 2, stride: 2}
- {type: op, op_type: Relu, name: relu1, inputs: [pool1], outputs: [relu1]}
- {type: blob, name: fc/weight, size: [10, 2880]}
- {type: state, blob: fc/weight, filler: {type: xavier}, trainable: true}
- {type: op, op_type: InnerProduct, name: fc, inputs: [relu1, fc/weight], outputs: [fc]}
- {type: op, op_type: SoftmaxLoss, name: loss, inputs: [fc, label], outputs: [loss]}
- {type: op, op_type: Accuracy, name: accuracy, inputs: [fc, label], outputs: [accuracy]}
"""
"""The small net that is checked."""

TORCH = "import torch"
MODULE = ("from_torch", "first step", "peak MB")
OVER_TORCH = ("import both", "check")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--module-turns", type=int, default=3, help="turns of the GPT-2 module")
    parser.add_argument("--before", metavar="PATH", help="another worktree, as a second contender")
    parser.add_argument("--layers", type=int, default=12, help="of the GPT-2 module")
    parser.add_argument("--width", type=int, default=768, help="of the GPT-2 module")
    parser.add_argument("--vocabulary", type=int, default=50257, help="of the GPT-2 module")
    parser.add_argument("--module", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module:
        module_to_first_step(options)
        return
    trees = {"now": OWN}
    if options.before:
        trees["before"] = Path(options.before).resolve()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    with small_net() as net:
        measured = measure(trees, net, options)
    report(measured, list(trees))


@contextmanager
def small_net() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.yaml"
        path.write_text(NET)
        yield path


def commands(net: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What is run for each figure, and the variables of its environment."""
    purine = ["-m", "purine"]
    words = {"COMP_WORDS": "purine train --net ", "COMP_CWORD": "3"}
    return {
        TORCH: (["-c", TORCH], {}),
        "import purine": (["-c", "import purine"], {}),
        "import both": (["-c", "import torch, purine"], {}),
        "help": ([*purine, "--help"], {}),
        "help of train": ([*purine, "train", "--help"], {}),
        "completion": (purine, {"_PURINE_COMPLETE": "complete_bash", **words}),
        "check": ([*purine, "check", str(net)], {}),
    }


Figures = dict[str, dict[str, list[float]]]


def measure(trees: dict[str, Path], net: Path, options: argparse.Namespace) -> Figures:
    """The values of each figure by worktree; one turn more than asked for warms the caches."""
    found: Figures = {}

    def note(figure: str, tree: str, value: float) -> None:
        found.setdefault(figure, {}).setdefault(tree, []).append(value)

    for turn in range(-1, options.turns):
        for figure, (arguments, variables) in commands(net).items():
            for tree, path in trees.items():
                began = time.perf_counter()
                ran(arguments, path, variables)
                if turn >= 0:
                    note(figure, tree, time.perf_counter() - began)
    sizes = ["--layers", options.layers, "--width", options.width]
    sizes += ["--vocabulary", options.vocabulary]
    for _ in range(options.module_turns):
        for tree, path in trees.items():
            output = ran([str(Path(__file__).resolve()), "--module", *map(str, sizes)], path, {})
            for figure, value in json.loads(output.splitlines()[-1]).items():
                note(figure, tree, value)
    return found


def ran(arguments: list[str], tree: Path, variables: dict[str, str]) -> str:
    """What a Python process of a worktree prints. Completion is not in every one: codes differ."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(tree)}
    command = [sys.executable, *arguments]
    done = subprocess.run(  # in the worktree, for the current folder comes before the path
        command, env=environment, cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode and "_PURINE_COMPLETE" not in variables:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def report(measured: Figures, trees: list[str]) -> None:
    medians = {
        figure: {tree: statistics.median(values) for tree, values in by_tree.items()}
        for figure, by_tree in measured.items()
    }
    print(f"{'seconds':<16}" + "".join(f"{tree:>10}{'spread':>18}" for tree in trees))
    for figure, by_tree in medians.items():
        digits = 0 if figure == MODULE[-1] else 2
        cells = ""
        for tree in trees:
            values = measured[figure][tree]
            spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
            cells += f"{by_tree[tree]:>10.{digits}f}{spread:>18}"
        print(f"{figure:<16}{cells}")
    over = {
        figure: {tree: medians[figure][tree] - medians[TORCH][tree] for tree in trees}
        for figure in OVER_TORCH
    }
    for figure, by_tree in over.items():
        values = ", ".join(f"{tree} {value:.2f}" for tree, value in by_tree.items())
        print(f"{figure}, over torch: {values}")
    print(json.dumps({"medians": medians, "over_torch": over, "turns": measured}))


def module_to_first_step(options: argparse.Namespace) -> None:
    """Print the seconds from a module to its net and to its first step, and the peak memory."""
    import torch
    from rivals import GPT2
    from torch import Tensor
    from torch.nn import functional

    length = 128
    module = GPT2(length, options.vocabulary, options.width, options.layers)
    tokens = torch.randint(0, options.vocabulary, (4, length))

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    began = time.perf_counter()
    import purine as pu

    imported = pu.from_torch(module, loss, (tokens, tokens.clone()))
    at_net = time.perf_counter() - began
    step = pu.solvers.adamw(pu.backward(imported.net), lr=1e-4)
    data = pu.data.synthetic_tokens(length=length, vocabulary=options.vocabulary, count=16)
    with pu.Run(step, data=data) as run:
        run.set_states(imported.values)
        first = next(iter(run.steps(1)))
        at_step = time.perf_counter() - began
        assert first.loss > 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps(dict(zip(MODULE, (at_net, at_step, peak), strict=True))))


if __name__ == "__main__":
    main()
