"""Conditions that a net relies on, as part of its numbers: a GPU does not stop to be asked."""

from __future__ import annotations

import torch
from torch import Tensor

from purine.registry.kind import kind

__all__ = ["Expect"]


@kind
def Expect(x: Tensor, *conditions: Tensor, expected: str) -> Tensor:
    """x where all conditions hold, else not a number, and so are gradients through it.

    `expected` tells which conditions these are: an imported module would go another way than the
    one that was traced.
    """
    holds = torch.stack(conditions).all().to(x.dtype)
    return x * (holds / holds)  # 1 / 1, or 0 / 0
