"""Means over replicas: of gradients, statistics and losses, which no gradient passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purine.ops.registry import kind

__all__ = ["Average"]


@kind
def Average(
    *parts: Tensor, weights: tuple[float, ...] | None = None, groups: int = 1
) -> tuple[Tensor, ...] | Tensor:
    """The mean of all parts, or their sum with `weights`.

    With `groups` several means at once: part k of each contributor stands at k, k + groups, ...

    >>> Average(torch.tensor([1.0]), torch.tensor([5.0]))
    tensor([3.])
    """
    count = len(parts) // groups
    if not count or len(parts) % groups or (weights is not None and len(weights) != count):
        raise ValueError(
            f"{len(parts)} parts cannot be {groups} means"
            + ("" if weights is None else f" with {len(weights)} weights")
        )
    made = tuple(_mean(parts[group::groups], weights) for group in range(groups))
    return made[0] if groups == 1 else made


_PIECE = 1 << 15


def _mean(parts: tuple[Tensor, ...], weights: tuple[float, ...] | None) -> Tensor:
    """Piece by piece where the parts are long, so that each sum stays in the cache."""
    result = torch.empty_like(parts[0])
    flat = [_flat(part, result) for part in (*parts, result)]
    if result.numel() <= _PIECE or any(part is None for part in flat):
        return _sum_into(result, parts, weights)
    pieces = [part.split(_PIECE) for part in flat if part is not None]
    for *sources, target in zip(*pieces, strict=True):
        _sum_into(target, sources, weights)
    return result


def _sum_into(result: Tensor, parts: Sequence[Tensor], weights: tuple[float, ...] | None) -> Tensor:
    if weights is None:
        if len(parts) == 1:
            return result.copy_(parts[0])
        torch.add(parts[0], parts[1], out=result)
        for part in parts[2:]:
            result.add_(part)
        return result.mul_(1.0 / len(parts))
    torch.mul(parts[0], weights[0], out=result)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        result.add_(part, alpha=weight)
    return result


def _flat(part: Tensor, like: Tensor) -> Tensor | None:
    """All elements in the order of memory, where that is the order of `like`, without gaps."""
    if part.stride() != like.stride() or part.dtype != like.dtype:
        return None
    order = sorted(range(part.ndim), key=lambda axis: (part.stride(axis), part.shape[axis]))
    extent = 1
    for axis in order:
        if part.shape[axis] != 1 and part.stride(axis) != extent:
            return None
        extent *= part.shape[axis]
    return part.as_strided((part.numel(),), (1,))
