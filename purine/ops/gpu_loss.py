"""The softmax loss of many classes on GPUs, with its gradient, by one kernel.

A row of scores is read from memory once and its gradient written once: the second look at it, when
its maximum and sum are known, finds it in the cache. The scale of the gradient has to be known
beforehand, so the loss is computed where its gradient is wanted.

Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["softmax_loss"]

_BLOCK, _WARPS = 8192, 8


@triton.jit
def _loss(  # type: ignore[no-untyped-def]
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
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    counts = label != ignored
    place = tl.arange(0, BLOCK)
    most = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + place
        value = tl.load(scores + row * stride + column, column < WIDTH, float("-inf"))
        value = tl.where(column < classes, value.to(tl.float32), float("-inf"))
        higher = tl.maximum(most, tl.max(value, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(most - base) + tl.sum(tl.exp(value - base), 0)
        most = higher
    log = most + tl.log(total)
    own = tl.load(scores + row * stride + label, counts, 0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log - own, 0.0))
    factor = tl.where(counts, tl.load(scale), 0.0)
    for start in range(0, WIDTH, BLOCK):
        column = start + place
        value = tl.load(scores + row * stride + column, column < WIDTH, float("-inf"))
        value = tl.where(column < classes, value.to(tl.float32), float("-inf"))
        pulled = (tl.exp(value - log) - tl.where(column == label, 1.0, 0.0)) * factor
        pulled = pulled.to(gradient.dtype.element_ty)
        tl.store(gradient + row * WIDTH + column, pulled, column < WIDTH)


@torch.library.custom_op("purine::softmax_loss", mutates_args=())
def softmax_loss(
    scores: Tensor, labels: Tensor, scale: Tensor, classes: int, ignored: int
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and `scale` times the gradient of their sum by the scores.

    Scores from `classes` on count as minus infinity. Rows with the label `ignored` have no loss.
    """
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    losses, gradient = _results(scores)
    rows, width = scores.shape
    _loss[(rows,)](
        *(scores, labels.contiguous(), scale, losses, gradient),
        *(classes, ignored, scores.stride(0)),
        WIDTH=width,
        BLOCK=min(_BLOCK, triton.next_power_of_2(width)),
        num_warps=_WARPS,
    )
    return losses, gradient


@softmax_loss.register_fake
def _(
    scores: Tensor, labels: Tensor, scale: Tensor, classes: int, ignored: int
) -> tuple[Tensor, Tensor]:
    return _results(scores)


def _results(scores: Tensor) -> tuple[Tensor, Tensor]:
    gradient = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    return scores.new_empty(scores.shape[0], dtype=torch.float32), gradient
