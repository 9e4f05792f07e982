"""What workers of asynchronous training do with parameters that they share or exchange.

Each is one op, so that all states it updates change together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purine.graph import ROUND
from purine.registry.kind import Attr, Kind, kind, register

__all__ = [
    "Collect",
    "ElasticMeet",
    "ElasticMove",
    "GossipReceive",
    "GossipSend",
    "OuterMomentum",
    "OuterStep",
    "OuterWay",
    "OuterWayMomentum",
    "Rebase",
    "StaleRate",
]


_CALLED = {"of": Attr(int), "pace": Attr(int), "bound": Attr(int | None, None)}
register(Kind(ROUND, None, (), attributes=_CALLED))
"""Says that the worker it belongs to is the courier of worker `of`, beside which it is.

It goes when that one has completed `pace` iterations since it went last. The worker may be `bound`
iterations ahead of what has been carried.
"""


@kind
def StaleRate(rate: Tensor, read: Tensor, written: Tensor) -> Tensor:
    """A rate divided by 1 + staleness: the number of versions between a read and the write.

    >>> StaleRate(torch.tensor(0.6), torch.tensor(5), torch.tensor(7))
    tensor(0.2000)
    """
    return rate / (1 + (written - read).clamp(min=0))


@kind
def ElasticMove(center: Tensor, own: Tensor, *, alpha: float) -> tuple[Tensor, Tensor]:
    """A shared center and a worker's parameter, each moved towards the other.

    >>> ElasticMove(torch.tensor(1.0), torch.tensor(5.0), alpha=0.25)
    (tensor(2.), tensor(4.))
    """
    step = (own - center).mul_(alpha)
    return center + step, own - step


@kind
def GossipSend(weight: Tensor, mailed: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Half of a worker's weight, and its parameters times that, put into a mailbox.

    `tensors` are the parameters and then what the mailbox holds for each. Returns the weight that
    is kept, the weight in the mailbox and what it holds.

    >>> GossipSend(torch.tensor(0.5), torch.tensor(0.0), torch.tensor(8.0), torch.tensor(0.0))
    (tensor(0.2500), tensor(0.2500), tensor(2.))
    """
    half, count = weight / 2, len(tensors) // 2
    sums = (
        mail + half.to(own.dtype) * own
        for own, mail in zip(tensors[:count], tensors[count:], strict=True)
    )
    return half, mailed + half, *sums


@kind
def GossipReceive(weight: Tensor, mailed: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The mean of a worker's parameters and those in its mailbox by their weights.

    `tensors` are the parameters and then what the mailbox holds for each. Returns the sum of the
    weights, the weight of the empty mailbox, the means, and what the empty mailbox holds.

    >>> mail = torch.tensor(0.25), torch.tensor(8.0), torch.tensor(1.0)
    >>> GossipReceive(torch.tensor(0.75), *mail)
    (tensor(1.), tensor(0.), tensor(7.), tensor(0.))
    """
    total, count = weight + mailed, len(tensors) // 2
    own, mails = tensors[:count], tensors[count:]
    means = (
        # An empty mailbox leaves the bits of the parameter alone.
        mine + (mail - mailed.to(mine.dtype) * mine) / total.to(mine.dtype)
        for mine, mail in zip(own, mails, strict=True)
    )
    return total, torch.zeros_like(mailed), *means, *map(torch.zeros_like, mails)


@kind
def OuterStep(weight: Tensor, start: Tensor, end: Tensor, *, rate: float) -> Tensor:
    """A shared parameter moved by the way that a worker went from `start` to `end`.

    >>> OuterStep(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(4.0), rate=0.5)
    tensor(3.)
    """
    return weight.add(end - start, alpha=rate)


@kind
def OuterMomentum(
    weight: Tensor, start: Tensor, end: Tensor, velocity: Tensor, *, rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """As `OuterStep`, with Nesterov momentum.

    >>> ways = torch.tensor(0.0), torch.tensor(4.0), torch.tensor(0.0)
    >>> OuterMomentum(torch.tensor(1.0), *ways, rate=0.5, momentum=0.5)
    (tensor(4.), tensor(-4.))
    """
    way = start - end
    velocity = velocity.mul(momentum).add_(way)
    return weight.sub(way.add_(velocity, alpha=momentum), alpha=rate), velocity


@kind
def Collect(total: Tensor) -> tuple[Tensor, Tensor]:
    """What has been added up so far, to be sent, and the empty sum that follows.

    >>> Collect(torch.tensor(3.0))
    (tensor(3.), tensor(0.))
    """
    return total.clone(), torch.zeros_like(total)


@kind
def Rebase(own: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """A worker's parameter moved as far as a copy of it, from `before` to `after`.

    What the worker has learnt since the copy was made is kept.

    >>> Rebase(torch.tensor(1.5), torch.tensor(1.0), torch.tensor(3.0))
    tensor(3.5000)
    """
    return own + (after - before)


@kind
def ElasticMeet(
    center: Tensor, own: Tensor, rounds: Tensor, *, alpha: float
) -> tuple[Tensor, Tensor]:
    """As `ElasticMove`; in its first round a worker that comes gets the center, which stays.

    >>> ElasticMeet(torch.tensor(1.0), torch.tensor(5.0), torch.tensor(0), alpha=0.25)
    (tensor(1.), tensor(1.))
    >>> ElasticMeet(torch.tensor(1.0), torch.tensor(5.0), torch.tensor(1), alpha=0.25)
    (tensor(2.), tensor(4.))
    """
    way, first = own - center, rounds == 0
    here = torch.where(first, 0.0, alpha).to(own.dtype)
    there = torch.where(first, 1.0, alpha).to(own.dtype)
    return torch.addcmul(center, way, here), torch.addcmul(own, way, there, value=-1)


@kind
def OuterWay(weight: Tensor, way: Tensor, *, rate: float) -> Tensor:
    """A shared parameter moved along the way of a worker.

    >>> OuterWay(torch.tensor(1.0), torch.tensor(4.0), rate=0.5)
    tensor(3.)
    """
    return weight.add(way, alpha=rate)


@kind
def OuterWayMomentum(
    weight: Tensor, way: Tensor, velocity: Tensor, *, rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """As `OuterWay`, with Nesterov momentum.

    >>> ways = torch.tensor(4.0), torch.tensor(0.0)
    >>> OuterWayMomentum(torch.tensor(1.0), *ways, rate=0.5, momentum=0.5)
    (tensor(4.), tensor(-4.))
    """
    velocity = velocity.mul(momentum).sub_(way)
    return weight.sub(velocity.mul(momentum).sub_(way), alpha=rate), velocity
