"""Train a small net on a GPU and print a digest of all its states: for processes to be compared.

python -m tests.gpu.states CASE
"""

from __future__ import annotations

import hashlib
import sys

import torch

import purine as pu
from purine.data.synthetic import synthetic_tokens
from purine.graph import Graph

__all__ = ["CASES", "trained"]


def _lenet() -> tuple[Graph, pu.data.DataSet]:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(32), data.train)
    return pu.solvers.sgd(pu.backward(net), lr=0.005, momentum=0.9), data


def _nin() -> tuple[Graph, pu.data.DataSet]:
    data = pu.data.fashion_mini()
    net = pu.mixed(pu.data.prepare(pu.zoo.nin(32, image=(1, 28, 28)), data.train))
    step = pu.solvers.sgd(pu.backward(net), lr=0.005, momentum=0.9)
    return pu.layout(step, "channels-last"), data


def _gpt2(*, low: bool = True) -> tuple[Graph, pu.data.DataSet]:
    """Sequences that our own kernel for attention takes, in low precision."""
    sizes = {"layers": 2, "width": 64, "heads": 2, "vocabulary": 50, "dropout": 0.0}
    net = pu.zoo.gpt2(batch=4, context=128, **sizes)
    data = synthetic_tokens(128, vocabulary=50, count=16)
    return pu.solvers.adamw(pu.backward(pu.mixed(net) if low else net), lr=1e-3), data


CASES = {"lenet": _lenet, "nin": _nin, "gpt2": _gpt2, "gpt2-float32": lambda: _gpt2(low=False)}


def trained(case: str, *, captured: bool) -> str:
    """The digest of all states after some steps."""
    step, data = CASES[case]()
    step = pu.to_device(step, "cuda:0")
    with pu.Run(pu.fuse(step, devices=["cuda:0"]) if captured else step, data=data, seed=1) as run:
        for _ in run.steps(20):
            pass
        states = run.states()
    digest = hashlib.sha256()
    for name in sorted(states):
        digest.update(states[name].cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(trained(sys.argv[1], captured=True))
