"""Means over replicas of gradients, statistics and losses. They have no gradient.

`Average` reads blobs at its own location. `Reduce` is the collective: it reads the parts where they
are, and the run chooses how to bring them together.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from purine.graph import Op
from purine.kinds.data import brought
from purine.registry.aten import device_of
from purine.registry.kind import Kernel, PerOp, Variants, kind, register
from purine.registry.lookup import kinds

__all__ = ["Average", "Reduce", "is_flat"]

_PIECE = 1 << 15
"""Long sums are made in pieces of this many elements, so that each stays in the cache."""

_COMPILING = threading.Lock()
"""Without it, lanes that compile at the same time would undo each other's warning filters."""


def _averages(
    *columns: Sequence[Tensor], weights: tuple[float, ...] | None = None, groups: int = 1
) -> list[list[Tensor]]:
    """Several ops at once, in one call of compiled code."""
    parts: list[list[Tensor]] = []
    for row in zip(*columns, strict=True):
        parts += [list(row[group::groups]) for group in range(groups)]
    count = len(parts[0])
    shares = [1.0 / count] if weights is None else list(weights)
    flat = [all(is_flat(part, group[0]) for part in group) for group in parts]
    with _COMPILING:
        add_all = _compiled()
    means = add_all(parts, shares, flat, _PIECE)
    return [means[group::groups] for group in range(groups)]


@kind(variants=Variants(many=_averages))
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
    shares = [1.0 / count] if weights is None else list(weights)
    means = tuple(
        _add_up(list(parts[group::groups]), shares, torch.empty_like(parts[group]))
        for group in range(groups)
    )
    return means[0] if groups == 1 else means


def _reduce(op: Op) -> Kernel:
    """The parts brought to the device of the op and added up there, in their order."""
    device = device_of(op.location)
    average = kinds()["Average"].bind(op)

    def reduce(*parts: Tensor) -> tuple[Tensor, ...] | Tensor:
        return average(*(brought(part, device) for part in parts))

    return reduce


Reduce = register(
    replace(kinds()["Average"], name="Reduce", variants=Variants(), per_op=PerOp(bind=_reduce))
)
"""The mean, at the location of the op, of parts that are at several locations."""


def _add_up(parts: list[Tensor], shares: list[float], result: Tensor) -> Tensor:
    """The sum of the parts: with a share for each, or one for their sum."""
    if len(shares) == 1:
        if len(parts) == 1:
            return result.copy_(parts[0]).mul_(shares[0])
        torch.add(parts[0], parts[1], out=result)
        for part in parts[2:]:
            result.add_(part)
        return result.mul_(shares[0])
    torch.mul(parts[0], shares[0], out=result)
    for k in range(1, len(parts)):
        result.add_(parts[k], alpha=shares[k])
    return result


def _add_all(
    groups: list[list[Tensor]], shares: list[float], flat: list[bool], piece: int
) -> list[Tensor]:
    results: list[Tensor] = []
    for number in range(len(groups)):
        parts = groups[number]
        result = torch.empty_like(parts[0])
        results.append(result)
        length = result.numel()
        if flat[number] and length > piece:
            for start in range(0, length, piece):
                size = min(piece, length - start)
                pieces = [
                    torch.as_strided(part, [size], [1], part.storage_offset() + start)
                    for part in parts
                ]
                target = torch.as_strided(result, [size], [1], result.storage_offset() + start)
                _add_up(pieces, shares, target)
        else:
            _add_up(parts, shares, result)
    return results


@cache
def _compiled() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, about its future
        return torch.jit.script(_add_all)


def is_flat(part: Tensor, like: Tensor) -> bool:
    """Whether the elements lie in memory in the order of `like`, without gaps."""
    if part.stride() != like.stride() or part.dtype != like.dtype:
        return False
    images = part.dim() == 4 and part.is_contiguous(memory_format=torch.channels_last)
    return images or bool(part.is_contiguous())
