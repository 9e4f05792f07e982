"""A small net, its twin in plain torch, and the loops that train the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.graph import Builder, Graph
from purine.kinds import Net, dropout, inner_product, softmax_loss, tanh
from tests.reference import following, run, start

NAMES = ("fc1/weight", "fc1/bias", "fc2/weight", "fc2/bias")
ITERATIONS = 20


def small_net(batch: int = 8, *, ratio: float = 0.0, dtype: str = "float64") -> Graph:
    """Two layers on batches of a `Data` op, with dropout between them where `ratio` is not 0."""
    net = Net(dtype=dtype)
    data, label = net.data((batch, 5))
    x = tanh(inner_product(data, 6, name="fc1"), name="tanh1")
    if ratio:
        x = dropout(x, ratio=ratio, name="drop1")
    net.output(softmax_loss(inner_product(x, 3, name="fc2"), label, name="loss"))
    return net.graph()


def with_multipliers(graph: Graph, multipliers: Mapping[str, tuple[float, float]]) -> Graph:
    """The graph with other rate and decay multipliers of some parameters."""
    builder = Builder(graph)
    for name, (lr, decay) in multipliers.items():
        builder.states[name] = replace(builder.states[name], lr_mult=lr, decay_mult=decay)
    return builder.graph()


def batches(batch: int = 8, count: int = ITERATIONS) -> Iterator[tuple[Tensor, Tensor]]:
    """The same random samples whatever the size of a batch."""
    generator = torch.Generator().manual_seed(7)
    data = torch.randn(160, 5, generator=generator, dtype=torch.float64)
    label = torch.randint(3, (160,), generator=generator)
    for first in range(0, count * batch, batch):
        yield data[first : first + batch], label[first : first + batch]


def train(
    step: Graph, feeds: Callable[[int], dict[str, Tensor]] | None = None, count: int = ITERATIONS
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The states after training, and the values of the graph's outputs in each iteration."""
    states, reports = start(step, seed=3), []
    samples = list(batches(count=count))
    for number in range(count):
        data, label = samples[number]
        fed = {"data": data, "label": label} if feeds is None else feeds(number)
        values = run(step, fed, states)
        reports.append({name: values[name] for name in step.outputs})
        states = following(step, values)
    return states, reports


def train_torch(
    step: Graph,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    *,
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
    max_norm: float | None = None,
) -> dict[str, Tensor]:
    """The parameters after the same training in plain torch, from the same first values."""
    first = start(step, seed=3)
    leaves = [first[name].clone().requires_grad_() for name in NAMES]
    optimizer = make(leaves)
    scheduler = schedule(optimizer) if schedule else None
    for data, label in batches():
        optimizer.zero_grad()
        hidden = torch.tanh(F.linear(data, leaves[0], leaves[1]))
        F.cross_entropy(F.linear(hidden, leaves[2], leaves[3]), label).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(leaves, max_norm)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return {name: leaf.detach() for name, leaf in zip(NAMES, leaves, strict=True)}


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal parameters, to the rounding of float64."""
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12, msg=name)
