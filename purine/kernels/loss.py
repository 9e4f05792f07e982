"""The softmax loss of many classes on GPUs, with its gradient, by one kernel.

A row of scores is read from memory once and its gradient is written once. The second read of a row,
when its maximum and sum are known, comes from the cache or from registers. The scale of the
gradient has to be known beforehand, so the loss is computed together with its gradient.

Importing this module needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["LAUNCH", "Launch", "softmax_loss"]

_WIDEST = 65536
"""The widest row that registers hold."""
_GROUP = 8
"""Neighbouring numbers that one thread reads at once. Each thread has its own maximum and sum, so
that threads do not wait for each other before the end of a row."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the kernel reads a row: in blocks, or `whole` and held in registers.

    `hints` asks the cache to hold scores until they are read a second time, and nothing else.
    """

    block: int
    warps: int
    whole: bool
    hints: bool

    def block_of(self, width: int) -> int:
        """How many numbers of a row of this width are read at a time."""
        row = 1 << (width - 1).bit_length()
        return row if self.whole and row <= _WIDEST else min(self.block, row)


LAUNCH = Launch(block=4096, warps=16, whole=False, hints=True)

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _loss(
    scores,
    labels,
    scale,
    losses,
    gradient,
    classes,
    ignored,
    stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    counts = label != ignored
    own = tl.load(scores + row * stride + label, counts, 0.0).to(tl.float32)
    factor = tl.where(counts, tl.load(scale), 0.0)
    scores += row * stride
    gradient += row * WIDTH
    lane, item = tl.arange(0, BLOCK // GROUP), tl.arange(0, GROUP)
    within = lane[:, None] * GROUP + item[None, :]
    if BLOCK >= WIDTH:
        kept = tl.load(scores + within, within < WIDTH, float("-inf"), eviction_policy=LAST)
        value = _binary(kept, within, classes)
        most = _finite(tl.max(value))
        log = most + tl.log2(tl.sum(tl.exp2(value - most)))
        _store(gradient, kept, within, classes, log, label, factor, WIDTH, LAST)
    else:
        highest = tl.full((BLOCK // GROUP,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK // GROUP,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            column = start + within
            kept = tl.load(scores + column, column < WIDTH, float("-inf"), eviction_policy=FIRST)
            value = _binary(kept, column, classes)
            higher = tl.maximum(highest, tl.max(value, 1))
            most = _finite(higher)
            total = total * tl.exp2(highest - most) + tl.sum(tl.exp2(value - most[:, None]), 1)
            highest = higher
        most = _finite(tl.max(highest))
        log = most + tl.log2(tl.sum(total * tl.exp2(highest - most)))
        for start in range(0, WIDTH, BLOCK):
            column = start + within
            kept = tl.load(scores + column, column < WIDTH, float("-inf"), eviction_policy=LAST)
            _store(gradient, kept, column, classes, log, label, factor, WIDTH, LAST)
    tl.store(losses + row, tl.where(counts, log * _LN2 - own, 0.0))


@triton.jit
def _binary(kept, column, classes):
    """Scores as exponents of two."""
    return tl.where(column < classes, kept.to(tl.float32) * _LOG2E, float("-inf"))


@triton.jit
def _finite(most):
    """A finite maximum to subtract, also where all numbers are minus infinity."""
    return tl.where(most == float("-inf"), 0.0, most)


@triton.jit
def _store(
    gradient,
    kept,
    column,
    classes,
    log,
    label,
    factor,
    WIDTH: tl.constexpr,
    POLICY: tl.constexpr,
):
    share = tl.exp2(_binary(kept, column, classes) - log)
    pulled = (share - tl.where(column == label, 1.0, 0.0)) * factor
    pulled = pulled.to(gradient.dtype.element_ty)
    tl.store(gradient + column, pulled, column < WIDTH, eviction_policy=POLICY)


@torch.library.custom_op("purine::softmax_loss", mutates_args=())
def softmax_loss(
    scores: Tensor, labels: Tensor, scale: Tensor, classes: int, ignored: int
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and `scale` times the gradient of their sum.

    Scores from `classes` on count as minus infinity. Rows with the label `ignored` have no loss.
    """
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    losses, gradient = _results(scores)
    rows, width = scores.shape
    _loss[(rows,)](
        *(scores, labels.contiguous(), scale, losses, gradient),
        *(classes, ignored, scores.stride(0)),
        WIDTH=width,
        BLOCK=LAUNCH.block_of(width),
        GROUP=_GROUP,
        FIRST="evict_last" if LAUNCH.hints else "",
        LAST="evict_first" if LAUNCH.hints else "",
        num_warps=LAUNCH.warps,
    )
    return losses, gradient


softmax_loss.register_fake(lambda scores, *rest: _results(scores))


def _results(scores: Tensor) -> tuple[Tensor, Tensor]:
    gradient = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    return scores.new_empty(scores.shape[0], dtype=torch.float32), gradient
