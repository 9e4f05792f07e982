"""Feeds damaged definitions to the readers: each must give a graph or an error of ours.

    python scripts/fuzz_parsers.py [count]

Anything else that is raised is printed with the seed that makes it, and the exit code is 1.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from purine.analysis.infer import check
from purine.errors import PurineError
from purine.graph import from_yaml, to_yaml
from purine.importers.caffe import from_caffe
from purine.importers.caffe.schema import read
from purine.importers.caffe.solver import solver_of
from purine.zoo import lenet
from tests.importers.mutations import mutated, nets, solvers


def main(count: int) -> int:
    """Run all readers over `count` texts each; return how many raised something else."""
    net = to_yaml(lenet(batch=2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.prototxt"

        def read_net(seed: int) -> None:
            text, sizes = nets()[seed % len(nets())]
            path.write_text(mutated(text, seed), encoding="utf-8")
            from_caffe(path, **sizes)

        readers: dict[str, Callable[[int], object]] = {
            "caffe net": read_net,
            "caffe solver": lambda seed: solver_of(
                read(mutated(solvers()[seed % len(solvers())], seed), "SolverParameter")
            ),
            "yaml": lambda seed: check(from_yaml(mutated(net, seed))),
        }
        return sum(_run(name, reader, count) for name, reader in readers.items())


def _run(name: str, reader: Callable[[int], object], count: int) -> int:
    good = refused = wrong = 0
    for seed in range(count):
        try:
            reader(seed)
            good += 1
        except PurineError:
            refused += 1
        except Exception:
            wrong += 1
            print(f"{name}, seed {seed}:", file=sys.stderr)
            traceback.print_exc()
        if (seed + 1) % 1000 == 0:
            print(f"{name}: {seed + 1} of {count}", file=sys.stderr, flush=True)
    print(f"{name}: {count} texts, {good} read, {refused} refused, {wrong} wrong", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000) > 0)
