"""Imported modules against plain PyTorch: a few steps in float64, states, and the test graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.data import ArraySource, DataSet, Reader
from purine.importers.torch import Imported, from_torch

__all__ = ["BATCH", "Base", "compared", "features"]

BATCH, STEPS = 4, 3
Batches = Callable[[torch.Generator, int], tuple[Tensor, ...]]


def features(generator: torch.Generator, count: int) -> tuple[Tensor, ...]:
    """Six features and one of three classes for each sample."""
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=generator)


class Base(nn.Module):
    """Two layers, with something of a test's own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.between(self.fc1(x))))

    def between(self, x: Tensor) -> Tensor:
        return x


def compared(
    module: nn.Module,
    *,
    loss: Callable[..., Tensor] = F.cross_entropy,
    data: Batches = features,
    example: tuple[Tensor, ...] | None = None,
) -> Imported:
    """Train a module in a run and in PyTorch: losses, state dicts and test losses must agree."""
    module = module.double()
    generator = torch.Generator().manual_seed(1)
    given = data(generator, BATCH) if example is None else example
    names = [*(f"x{place}" for place in range(len(given) - 1)), "target"]
    parts = [ArraySource(*data(generator, n * BATCH), names=names) for n in (STEPS, 2)]
    source = DataSet("d", *parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = from_torch(module, loss, given, inputs=names[:-1], targets=("target",))
    assert pu.graph.from_yaml(pu.graph.to_yaml(imported.net)) == imported.net
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1, momentum=0.9)
    with pu.Run(step, data=source, seed=0) as run:
        run.set_states(imported.values)
        losses = [result.loss for result in run.steps(STEPS)]
        tested = run.evaluate(imported.test)["loss"]
        trained = imported.state_dict(run)
    _close(losses, _torch_losses(module, loss, source))
    _close(trained, dict(module.state_dict()))
    assert source.test is not None
    reader = Reader(source.test, batch=BATCH, seed=0, shuffle=False)
    module.eval()
    with torch.no_grad():
        batches = [reader.read(number) for number in range(2)]
        expected = sum(loss(module(*batch[:-1]), batch[-1]).item() for batch in batches) / 2
    _close(tested, expected)
    return imported


def _torch_losses(module: nn.Module, loss: Callable[..., Tensor], source: DataSet) -> list[float]:
    reader = Reader(source.train, batch=BATCH, seed=0, shuffle=True)
    solver = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module.train()
    losses = []
    for step in range(STEPS):
        *inputs, target = reader.read(step)
        value = loss(module(*inputs), target)
        solver.zero_grad()
        value.backward()
        solver.step()
        losses.append(value.item())
    return losses


def _close(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
