"""Gradients of layer norms on GPUs, with all their sums, by one kernel.

The gradients of a norm's weight and bias are sums over all rows, and so is that of the bias in
front of a residual sum. A compiler computes them in separate passes over values that the kernel of
the rows had in its registers. Our kernel accumulates the three sums of its rows and writes them at
its end; `totals` adds up the partial sums of all programs. The order is fixed, so the bits are the
same from run to run.

Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["layer_norm_gradient"]

_PROGRAMS = 264
"""At most so many programs."""


@triton.jit
def _pull(
    gradient,
    x,
    mean,
    scale,
    weight,
    more,
    result,
    parts,
    rows,
    columns,
    TURNS: tl.constexpr,
    MORE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, COLUMNS)
    known = column < columns
    factor = tl.load(weight + column, known, 0.0).to(result.dtype.element_ty).to(tl.float32)
    of_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    of_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    of_result = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in tl.range(0, TURNS, num_stages=3):
        row = (turn * programs + program) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        offset = row.to(tl.int64)[:, None] * columns + column[None, :]
        slope = tl.load(scale + row, row < rows, 0.0)[:, None]
        centre = tl.load(mean + row, row < rows, 0.0)[:, None]
        pulled = tl.load(gradient + offset, inside, 0.0).to(tl.float32)
        normed = (tl.load(x + offset, inside, 0.0).to(tl.float32) - centre) * slope
        normed = tl.where(inside, normed, 0.0)
        scaled = pulled * factor[None, :]
        along = tl.sum(scaled * normed, 1)[:, None] / columns
        level = tl.sum(scaled, 1)[:, None] / columns
        total = (scaled - level - normed * along) * slope
        if MORE:
            total += tl.load(more + offset, inside, 0.0).to(tl.float32)
        low = total.to(result.dtype.element_ty)
        tl.store(result + offset, low, inside)
        of_weight += pulled * normed
        of_bias += pulled
        of_result += tl.where(inside, low.to(tl.float32), 0.0)
    to = parts + program * columns + column
    tl.store(to, tl.sum(of_weight, 0), known)
    tl.store(to + programs * columns, tl.sum(of_bias, 0), known)
    tl.store(to + 2 * programs * columns, tl.sum(of_result, 0), known)


@torch.library.custom_op("purine::layer_norm_gradient", mutates_args=())
def layer_norm_gradient(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, more: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient of a layer norm over the last axis with respect to x, plus `more`, and sums.

    The weight is rounded to the precision of x first. The sums are [3, parts, columns] in float32:
    partial sums of the gradients of weight and bias, and of the rows of the first result.
    """
    given = (gradient.contiguous(), x.contiguous(), mean.contiguous(), scale.contiguous())
    result, parts = _results(x)
    columns, programs = x.shape[-1], parts.shape[1]
    rows, (each, warps) = x.numel() // columns, _tile(columns)
    _pull[(programs,)](
        *given,
        weight.contiguous(),
        x if more is None else more.contiguous(),
        *(result, parts, rows, columns),
        TURNS=triton.cdiv(rows, programs * each),
        MORE=more is not None,
        ROWS=each,
        COLUMNS=triton.next_power_of_2(columns),
        num_warps=warps,
    )
    return result, parts


layer_norm_gradient.register_fake(lambda gradient, x, *rest: _results(x))


def _tile(columns: int) -> tuple[int, int]:
    """The rows that a program reads at once, and its warps, so that the sums fit in registers."""
    wide = triton.next_power_of_2(columns)
    return (4 if wide <= 1024 else 1), max(4, min(16, wide // 256))


def _results(x: Tensor) -> tuple[Tensor, Tensor]:
    columns = x.shape[-1]
    rows, _ = _tile(columns)
    programs = min(triton.cdiv(x.numel() // columns, rows), _PROGRAMS)
    parts = torch.empty((3, programs, columns), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), parts
