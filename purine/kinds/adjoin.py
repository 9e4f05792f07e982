"""Joining parts that may lie behind each other in memory already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from purine.graph import Op
from purine.registry.kind import Kind, PerOp, register
from purine.registry.spec import Inferred, Spec

__all__ = ["ADJOIN"]

ADJOIN = "Adjoin"


def _infer(op: Op, parts: Sequence[Spec]) -> Inferred:
    """The parts together; the result may be their memory."""
    first, rows = parts[0], sum(part.shape[0] for part in parts)
    return Inferred((replace(first, shape=(rows, *first.shape[1:])),), (0,), several=False)


def _adjoin(*parts: Tensor) -> Tensor:
    first, behind = parts[0], 0
    for part in parts:
        if not _follows(part, first, behind):
            return torch.cat(parts)
        behind += part.numel()
    rows = sum(part.shape[0] for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


register(Kind(ADJOIN, _adjoin, (), variadic=True, per_op=PerOp(infer=_infer)))
"""The parts along the first axis as one. Those that follow each other in memory are not copied."""


def _follows(part: Tensor, first: Tensor, behind: int) -> bool:
    """Whether a part lies so many elements behind the first one, in the same order."""
    return (
        part.untyped_storage()._cdata == first.untyped_storage()._cdata
        and part.storage_offset() == first.storage_offset() + behind
        and part.stride() == first.stride()
        and part.stride(0) * part.shape[0] == part.numel()
    )
