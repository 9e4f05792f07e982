"""How four-dimensional values lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from purine.graph import CHANNELS_LAST

__all__ = ["laid_out"]


def laid_out(value: Tensor, layout: str) -> Tensor:
    """The value itself, or a copy of it in the layout that its blob has.

    A value with one channel lies alike in both layouts; its strides decide which one kernels
    choose, so they are set in any case.
    """
    if layout != CHANNELS_LAST:
        return value
    return torch.empty_like(value, memory_format=torch.channels_last).copy_(value)
