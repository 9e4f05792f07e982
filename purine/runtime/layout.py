"""How four-dimensional values lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["laid_out"]


def laid_out(value: Tensor, layout: torch.memory_format) -> Tensor:
    """The value itself, or a copy of it in the layout wanted if it has four dimensions.

    A value with one channel lies alike in both layouts; its strides decide which one kernels
    choose, so they are set in any case.
    """
    if value.dim() != 4 or layout is torch.contiguous_format:
        return value
    return torch.empty_like(value, memory_format=layout).copy_(value)
