"""Kernels of group norm for inputs that lie in memory in any way.

torch's own kernels take inputs without gaps between their elements: the forward one raises an
error for others, the backward one gives wrong numbers. `torch.group_norm` and autograd copy such
inputs first, which a trace over contiguous tensors does not show.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purine.registry.aten import KERNELS, name_of

__all__: list[str] = []

_aten = torch.ops.aten


def _forward(x: Tensor, *rest: Any, **more: Any) -> Any:
    return _aten.native_group_norm.default(x.contiguous(memory_format=_format_of(x)), *rest, **more)


def _backward(dy: Tensor, x: Tensor, *rest: Any, **more: Any) -> Any:
    wanted = _format_of(x)
    return _aten.native_group_norm_backward.default(
        dy.contiguous(memory_format=wanted), x.contiguous(memory_format=wanted), *rest, **more
    )


def _format_of(x: Tensor) -> torch.memory_format:
    """Images with their channels last stay so on CPUs, whose kernels know them."""
    last = x.dim() == 4 and not x.is_contiguous() and x.device.type == "cpu"
    images = last and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if images else torch.contiguous_format


for _device in ("cpu", "cuda"):
    KERNELS[name_of(_aten.native_group_norm.default), _device] = _forward
    KERNELS[name_of(_aten.native_group_norm_backward.default), _device] = _backward
