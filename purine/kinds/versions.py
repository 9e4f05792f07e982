"""Kinds for states that have several versions: reading the newest, and taking a number."""

from __future__ import annotations

from torch import Tensor

from purine.registry.facts import Facts, Precision, Role, SampleRule
from purine.registry.kind import kind

__all__ = ["Fetch", "Last", "Take"]


@kind(view=True, facts=Facts(Precision.FOLLOW, samples=SampleRule.IDENTITY, role=Role.COPY))
def Fetch(state: Tensor) -> Tensor:
    """The newest version of a state. It stays the same for all ops that read the result."""
    return state.view_as(state)


@kind
def Take(count: Tensor) -> tuple[Tensor, Tensor]:
    """A number that nobody else takes, and the count behind it: the tickets of shared iterations.

    >>> import torch
    >>> Take(torch.tensor(7))
    (tensor(7), tensor(8))
    """
    return count.clone(), count + 1


@kind(view=True)
def Last(value: Tensor, *others: Tensor) -> Tensor:
    """The last of its inputs that is there: those behind the first may be missing at times.

    Use it to go on with a value that an op which does not run in every iteration has changed.
    """
    present = [other for other in (value, *others) if other is not None]
    return present[-1].view_as(value)
