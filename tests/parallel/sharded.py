"""Small nets to cut, and their training in pieces against their training in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

import purine as pu
from purine.graph import Graph
from purine.kinds import (
    Net,
    batch_norm,
    concat,
    conv,
    flatten,
    inner_product,
    pool,
    relu,
    scale,
    softmax_loss,
)
from purine.placement.values import gather_values
from tests.parallel.nets import Trained, agree, float64, images, trained

__all__ = ["CASES", "STEPS", "Case", "serial", "step_of", "trains_as"]

STEPS = 5


@dataclass(frozen=True)
class Case:
    """A net as a function of its batch size, and data for it."""

    name: str
    make: Callable[[int], Graph]
    data: Callable[[], pu.data.DataSet]

    def __str__(self) -> str:
        return self.name

    def net(self, batch: int = 8) -> Graph:
        return float64(self.make(batch))


def tokens() -> pu.data.DataSet:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randint(11, (48, 6), generator=generator).numpy() for _ in range(2)]
    return pu.data.DataSet("tokens", pu.data.ArraySource(*values, names=("tokens", "targets")))


def branches(batch: int) -> Graph:
    """Two branches that are joined, one with a convolution in groups, with batch norm in both."""
    net = Net()
    data, label = net.data((batch, 3, 8, 8))
    x = batch_norm(conv(data, 12, kernel=3, pad=1, name="first"), name="first/bn")
    x = relu(x, name="first/relu")
    left = batch_norm(conv(x, 8, kernel=1, name="left"), name="left/bn")
    right = conv(x, 12, kernel=3, pad=1, groups=12, name="depth")
    right = batch_norm(conv(right, 9, kernel=1, name="right"), name="right/bn")
    right = batch_norm(conv(right, 9, kernel=3, pad=1, groups=3, name="right2"), name="right2/bn")
    left = scale(conv(left, 8, kernel=1, name="left2"), bias=True, name="left2/scale")
    x = concat([left, right], name="join")
    x = pool(relu(x, name="join/relu"), kernel=2, stride=2, method="average", name="pool")
    x = conv(x, 6, kernel=3, name="last")
    x = inner_product(flatten(x, name="flatten"), 10, name="fc")
    net.output(softmax_loss(x, label, name="loss"))
    return net.graph()


CASES = {
    case.name: case
    for case in (
        Case("lenet", lambda b: pu.zoo.lenet(b), images),
        Case(
            "alexnet",
            lambda b: pu.zoo.alexnet(b, image=(3, 67, 67), classes=10, width=12, hidden=26),
            lambda: images((3, 67, 67), 48),
        ),
        Case("nin", lambda b: pu.zoo.nin(b, image=(3, 8, 8)), lambda: images((3, 8, 8), 48)),
        Case(
            "gpt2",
            lambda b: pu.zoo.gpt2(b, context=6, vocabulary=11, layers=2, heads=4, width=16),
            tokens,
        ),
        Case(
            "vit",
            lambda b: pu.zoo.vit(
                b,
                image=(3, 8, 8),
                classes=10,
                patch=4,
                layers=1,
                heads=4,
                width=16,
                hidden=20,
                dropout=0.1,
            ),
            lambda: images((3, 8, 8), 48),
        ),
        Case("branches", branches, lambda: images((3, 8, 8), 48)),
    )
}


def step_of(net: Graph) -> Graph:
    """A step with all that a solver may remember and clip."""
    clipped = pu.solvers.clip_by_norm(pu.backward(net), 0.5)
    return pu.solvers.sgd(clipped, lr=0.05, momentum=0.9, weight_decay=1e-3)


@cache
def serial(name: str, batch: int = 8) -> Trained:
    """What the uncut net gives."""
    case = CASES[name]
    return trained(step_of(case.net(batch)), data=case.data(), steps=STEPS)


def trains_as(step: Graph, name: str, batch: int = 8, tolerance: float = 1e-9) -> None:
    """Assert that a step gives the losses and, gathered, the states of the uncut net."""
    found = trained(step, data=CASES[name].data(), steps=STEPS)
    whole = Trained(found.losses, gather_values(step, found.states))
    agree(whole, serial(name, batch), tolerance=tolerance)
