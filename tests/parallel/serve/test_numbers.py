"""The numbers of each scheme against plain PyTorch, where reads and writes have a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import purine as pu
from purine.data import Reader
from purine.graph import Graph
from purine.kinds import Net, inner_product, softmax_loss
from purine.parallel import serve
from purine.parallel.serve.gossip import partners_of
from tests.parallel.nets import float64, images, lenet, trained
from tests.parallel.serve.serial import Serial

DATA = images((1, 4, 4))
BATCH, RATE, MOMENTUM, SEED = 6, 0.4, 0.5, 3
ALTERNATING = (0, 1) * 6
LOPSIDED = (0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1)


def step(momentum: float = MOMENTUM) -> Graph:
    net = Net()
    x, label = net.data((BATCH, 1, 4, 4))
    net.output(softmax_loss(inner_product(x, 10, bias=False, name="fc"), label, name="loss"))
    graph = float64(net.graph())
    return pu.solvers.sgd(pu.backward(graph), lr=RATE, momentum=momentum)


def gradient(weight: Tensor, ticket: int) -> Tensor:
    """The gradient of the loss of a ticket's batch."""
    reader = Reader(DATA.train, batch=BATCH, seed=SEED, shuffle=True, offset=0, whole=None)
    x, label = reader.read(ticket)
    weight = weight.clone().requires_grad_()
    loss = cross_entropy(x.flatten(1) @ weight.t(), label.long())
    return torch.autograd.grad(loss, weight)[0]


def first() -> Tensor:
    return Serial(step(), DATA, seed=SEED).states["fc/weight"]


def found(
    scheme: str, order: Sequence[int], *, momentum: float = MOMENTUM, **settings: Any
) -> Serial:
    run = Serial(serve(step(momentum), "cpu:0-1", scheme, **settings), DATA, seed=SEED)
    run.run(order)
    return run


class Sgd:
    """Momentum as a solver of one parameter keeps it."""

    def __init__(self, momentum: float = MOMENTUM) -> None:
        self.momentum, self.velocity = momentum, torch.tensor(0.0)

    def __call__(self, weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
        self.velocity = self.momentum * self.velocity + gradient
        return weight - rate * self.velocity


@pytest.mark.parametrize("scheme", ["ssp", "hogwild", "downpour", "gossip"])
def test_one_worker_trains_as_without_workers(scheme: str) -> None:
    expected = trained(lenet(6))
    run = Serial(serve(lenet(6), "cpu:0", scheme), images())
    losses = [float(values["worker0/loss"]) for values in run.run([0] * 5)]
    assert losses == pytest.approx(expected.losses)
    for name, value in expected.states.items():
        if name.startswith(("conv", "fc")):
            key = name if name in run.states else f"worker0/{name}"
            torch.testing.assert_close(run.states[key], value)


def test_one_worker_of_local_sgd_trains_as_without_workers() -> None:
    expected = trained(lenet(6), steps=6)
    run = Serial(serve(lenet(6), "cpu:0", "local", every=3), images())
    run.run([0] * 6)
    for name in ("conv1/weight", "fc2/bias"):
        torch.testing.assert_close(run.states[name], expected.states[name])


@pytest.mark.parametrize("order", [ALTERNATING, LOPSIDED])
def test_ssp_in_turns_is_plain_sgd_with_a_share_of_the_rate(order: Sequence[int]) -> None:
    weight, solver = first(), Sgd()
    for ticket in range(len(order)):
        weight = solver(weight, gradient(weight, ticket), RATE / 2)
    torch.testing.assert_close(found("ssp", order).states["fc/weight"], weight)


def test_a_worker_that_is_late_updates_with_what_it_read() -> None:
    run = Serial(serve(step(), "cpu:0-1", "ssp"), DATA, seed=SEED)
    weight, solver = first(), Sgd()
    for ticket in range(0, 8, 2):
        run.begin(0)
        run.begin(1)
        run.end(1)
        run.end(0)
        read = weight
        weight = solver(weight, gradient(read, ticket + 1), RATE / 2)
        weight = solver(weight, gradient(read, ticket), RATE / 2)
    torch.testing.assert_close(run.states["fc/weight"], weight)


def test_the_rate_of_a_late_update_is_divided_by_its_staleness() -> None:
    run = Serial(serve(step(), "cpu:0-1", "ssp", stale_rate=True), DATA, seed=SEED)
    weight, solver = first(), Sgd()
    for ticket in range(0, 8, 2):
        run.begin(0)
        run.begin(1)
        run.end(1)
        run.end(0)
        read = weight
        weight = solver(weight, gradient(read, ticket + 1), RATE)
        weight = solver(weight, gradient(read, ticket), RATE / 2)
    torch.testing.assert_close(run.states["fc/weight"], weight)


def test_hogwild_keeps_a_velocity_for_each_worker() -> None:
    weight, solvers = first(), [Sgd(), Sgd()]
    for ticket, worker in enumerate(LOPSIDED):
        weight = solvers[worker](weight, gradient(weight, ticket), RATE / 2)
    torch.testing.assert_close(found("hogwild", LOPSIDED).states["fc/weight"], weight)


def test_downpour_sends_sums_and_reads_now_and_then() -> None:
    push, fetch = 2, 3
    weight, solver = first(), Sgd()
    own, sums, counts = [weight, weight], [torch.zeros(()), torch.zeros(())], [0, 0]
    for ticket, worker in enumerate(LOPSIDED):
        count = counts[worker]
        if count % fetch == 0:
            own[worker] = weight
        slope = gradient(own[worker], ticket)
        own[worker] = own[worker] - RATE / 2 * slope
        sums[worker] = sums[worker] + slope
        if count % push == push - 1:
            weight = solver(weight, sums[worker], RATE / 2)
            sums[worker] = torch.zeros(())
        counts[worker] += 1
    run = found("downpour", LOPSIDED, push=push, fetch=fetch)
    torch.testing.assert_close(run.states["fc/weight"], weight)
    torch.testing.assert_close(run.states["worker0/fc/weight/local"], own[0])


def test_easgd_moves_workers_and_center() -> None:
    every, alpha = 2, 0.3
    center, own, solvers, counts = first(), [first(), first()], [Sgd(), Sgd()], [0, 0]
    for ticket, worker in enumerate(LOPSIDED):
        own[worker] = solvers[worker](own[worker], gradient(own[worker], ticket), RATE)
        counts[worker] += 1
        if counts[worker] % every == 0:
            way = alpha * (own[worker] - center)
            center, own[worker] = center + way, own[worker] - way
    run = found("easgd", LOPSIDED, every=every, alpha=alpha)
    torch.testing.assert_close(run.states["fc/weight"], center)
    torch.testing.assert_close(run.states["worker1/fc/weight"], own[1])


def test_gossip_averages_by_weights_that_add_up_to_one() -> None:
    count, every, order = 3, 2, (0, 1, 2, 2, 0, 0, 1, 0, 2, 0, 1, 1, 0, 2, 0)
    own, solvers = [first()] * count, [Sgd() for _ in range(count)]
    weights, turns = [1 / count] * count, [0] * count
    mail = [(0.0, torch.zeros_like(own[0])) for _ in range(count)]
    for ticket, worker in enumerate(order):
        own[worker] = solvers[worker](own[worker], gradient(own[worker], ticket), RATE)
        turns[worker] += 1
        weight, total = mail[worker]
        own[worker] = (weights[worker] * own[worker] + total) / (weights[worker] + weight)
        weights[worker], mail[worker] = weights[worker] + weight, (0.0, torch.zeros_like(total))
        if turns[worker] % every:
            continue
        partners = partners_of(worker, count, seed=5)
        partner = partners[(turns[worker] // every - 1) % len(partners)]
        half, (weight, total) = weights[worker] / 2, mail[partner]
        weights[worker], mail[partner] = half, (weight + half, total + half * own[worker])
    graph = serve(step(), "cpu:0-2", "gossip", every=every, partners=5)
    run = Serial(graph, DATA, seed=SEED)
    run.run(order)
    for worker in range(count):
        torch.testing.assert_close(run.states[f"worker{worker}/fc/weight"], own[worker])
    total = sum(float(value) for name, value in run.states.items() if "gossip0/weight" in name)
    assert total == pytest.approx(1.0)


def test_partners_come_equally_often() -> None:
    for worker in range(5):
        assert sorted(partners_of(worker, 5, seed=1)) == [k for k in range(5) if k != worker]


@pytest.mark.parametrize("scheme", ["local", "diloco"])
def test_local_steps_end_in_an_outer_step(scheme: str) -> None:
    every, rate, beta = 3, (1.0, 0.5)[scheme == "diloco"], (0.0, 0.5)[scheme == "diloco"]
    weight, velocity = first(), torch.zeros_like(first())
    own, start, solvers, counts = [weight] * 2, [weight] * 2, [Sgd(), Sgd()], [0, 0]
    for ticket, worker in enumerate(LOPSIDED):
        if counts[worker] % every == 0:
            own[worker] = start[worker] = weight
        own[worker] = solvers[worker](own[worker], gradient(own[worker], ticket), RATE)
        counts[worker] += 1
        if counts[worker] % every == 0:
            way = start[worker] - own[worker]
            velocity = beta * velocity + way
            weight = weight - rate / 2 * (way + beta * velocity)
    run = found(scheme, LOPSIDED, every=every)
    torch.testing.assert_close(run.states["fc/weight"], weight)


def policy(rates: str) -> Callable[[Graph], Graph]:
    rate = pu.solvers.Step(1.0, step=2, gamma=0.5)
    return lambda graph: serve(pu.solvers.sgd(graph, lr=rate), "cpu:0-1", "easgd", rates=rates)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [("tickets", [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]), ("steps", [1.0, 1.0, 0.5, 1.0, 0.5, 1.0])],
)
def test_policies_count_batches_of_all_workers_or_steps(rates: str, expected: list[float]) -> None:
    net = float64(pu.zoo.mlp(batch=4))
    run = Serial(policy(rates)(pu.backward(net)), images())
    order = (0, 0, 0, 1, 0, 1) if rates == "steps" else (0, 1, 0, 1, 0, 1)
    values = run.run(order)
    found = [float(v[f"worker{worker}/lr"]) for v, worker in zip(values, order, strict=True)]
    assert found == expected
