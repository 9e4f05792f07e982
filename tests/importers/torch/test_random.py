"""Random numbers in a forward are drawn by our streams, with the distributions of torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.data import ArraySource, DataSet
from purine.errors import GraphError
from purine.importers.torch import Imported, from_torch

WIDE = 4000


class Drawing(nn.Module):
    """A function of the rows of a batch that draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.draw(x)


def drawn(imported: Imported, x: Tensor, *, seed: int = 0, steps: int = 1) -> list[Tensor]:
    """What the module gives in training."""
    (name,) = imported.outputs
    data = DataSet("d", ArraySource(x, names=("data",)))
    with pu.Run(pu.prune(imported.net, [name]), data=data, seed=seed) as run:
        run.set_states({k: v for k, v in imported.values.items() if k in run.graph.states})
        return [result.outputs[name].clone() for result in run.steps(steps)]


def imported_from(draw: Callable[[Tensor], Tensor], x: Tensor) -> Imported:
    return from_torch(Drawing(draw), lambda y: y.mean(), x, targets=())


# For each draw of a row of zeros the mean and the variance that it has.
DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(x.shape), 0.0, 1.0),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1.0, 3.0), 1.0, 16 / 12),
    "normal_": (lambda x: torch.empty_like(x).normal_(2.0, 3.0), 2.0, 9.0),
    "normal": (lambda x: torch.normal(x + 1, 0.5), 1.0, 0.25),
    "normal of a deviation": (lambda x: torch.normal(3.0, x + 2), 3.0, 4.0),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.9), 0.9, 0.09),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "randint": (lambda x: torch.randint(2, 6, x.shape).float(), 3.5, 15 / 12),
    "randint_like": (lambda x: torch.randint_like(x, 3), 1.0, 8 / 12),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_their_distribution_and_follow_seed_and_iteration(name: str) -> None:
    draw, mean, variance = DRAWS[name]
    x = torch.zeros(2, WIDE)
    imported = imported_from(draw, x)
    first, second = drawn(imported, x, steps=2)
    again, _ = drawn(imported, x, steps=2)
    (other,) = drawn(imported, x, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    far = 5 * math.sqrt(variance / first.numel())
    assert abs(first.mean().item() - mean) < far
    assert first.var().item() == pytest.approx(variance, rel=0.15)


def test_a_permutation_has_every_place_once() -> None:
    imported = imported_from(lambda x: torch.randperm(x.shape[1]).float() + x, torch.zeros(2, 50))
    (first,) = drawn(imported, torch.zeros(2, 50))
    assert first[0].sort()[0].tolist() == list(range(50))
    assert first[0].tolist() != list(range(50))
    assert torch.equal(first[0], first[1])


CUT: dict[str, Callable[[Tensor], Tensor]] = {
    "by sample": lambda x: x + torch.randn_like(x),
    "batch second": lambda x: x + torch.rand(3, x.shape[0]).t(),
    "for all samples": lambda x: x + torch.randn(3),
    "rows joined": lambda x: x + torch.randn(x.numel()).view_as(x),
    "weights dropped": lambda x: x * F.dropout(torch.ones(3), 0.5),
}


@pytest.mark.parametrize("name", CUT)
def test_parts_of_a_batch_draw_what_the_whole_batch_draws(name: str) -> None:
    x = torch.randn(8, 3, dtype=torch.float64)
    module = nn.Sequential(nn.Linear(3, 3), Drawing(CUT[name])).double()
    imported = from_torch(module, lambda y: y.square().mean(), x, targets=())
    data = DataSet("d", ArraySource(x, names=("data",)))

    def solver(net: pu.Graph) -> pu.Graph:
        return pu.solvers.sgd(net, lr=0.1)

    losses = []
    for scheme in ({}, {"data": 2}, {"data": 4}):
        devices = f"cpu:0-{scheme.get('data', 1) - 1}"
        step = pu.compose(imported.net, solver=solver, devices=devices, **scheme)
        with pu.Run(step, data=data, threads=1, share_cores=True) as run:
            run.set_states(imported.values)
            losses.append([result.loss for result in run.steps(3)])
    torch.testing.assert_close(losses[1:], [losses[0]] * 2, rtol=1e-12, atol=1e-12)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log).exp()
        return self.decode(z), mean, log


def vae_loss(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    y, mean, log = outputs
    return F.mse_loss(y, x) + (mean.square() + log.exp() - log - 1).mean()


def test_gradients_pass_a_reparametrisation() -> None:
    torch.manual_seed(0)
    module = Vae().double()
    x = torch.randn(6, 4, dtype=torch.float64)
    imported = from_torch(module, vae_loss, (x, x + 0), targets=("answer",))
    step = pu.backward(imported.net)
    (noise,) = [op.outputs[0] for op in step.ops.values() if "RandomNormal" in op.kind]
    data = DataSet("d", ArraySource(x, x, names=("data", "answer")))
    wanted = ["loss", "grad/encode.weight", "data", noise]
    with pu.Run(pu.prune(step, wanted), data=data) as run:
        run.set_states(imported.values)
        (result,) = run.steps(1)
    found = {name: result.outputs[name] for name in wanted}
    mean, log = module.encode(found["data"]).chunk(2, 1)
    y = module.decode(mean + found[noise] * (0.5 * log).exp())
    loss = vae_loss((y, mean, log), found["data"])
    loss.backward()
    torch.testing.assert_close(found["loss"], loss.detach())
    torch.testing.assert_close(found["grad/encode.weight"], module.encode.weight.grad)
    assert with_batch(imported.test, 3).blobs["data"].shape == (3, 4)


def test_samples_of_distributions_are_draws() -> None:
    imported = imported_from(
        lambda x: torch.distributions.Normal(x, 2.0).rsample(), torch.ones(4, 3)
    )
    assert "sized.RandomNormal" in {op.kind for op in imported.net.ops.values()}


def test_draws_for_pairs_of_samples_keep_the_batch_size() -> None:
    imported = imported_from(lambda x: torch.rand(x.shape[0], x.shape[0]) @ x, torch.ones(4, 3))
    with pytest.raises(GraphError, match="random numbers for pairs of samples"):
        with_batch(imported.net, 2)


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (lambda x: x + torch.poisson(x), "aten.poisson"),
        (lambda x: x + torch.multinomial(x, 1), "aten.multinomial"),
        (lambda x: x + torch.randn(3, generator=torch.Generator()), "Generator"),
    ],
    ids=["poisson", "multinomial", "generator"],
)
def test_draws_that_we_cannot_make_are_refused(
    draw: Callable[[Tensor], Tensor], found: str
) -> None:
    with pytest.raises(GraphError) as caught:
        imported_from(draw, torch.ones(2, 3))
    assert "test_random.py:" in str(caught.value.where)
    assert found in str(caught.value.found)
    assert caught.value.remedy
