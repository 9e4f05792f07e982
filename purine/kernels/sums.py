"""Kernels for GPUs that write a matrix and, in the same pass, its column sums.

The gradient of a bias is the sum over all rows of a matrix that another kernel has just written. A
separate sum would read the matrix again; the kernel that writes it has the numbers in registers.
Each program works on a tile of columns and a block of rows, and accumulates the sums of its
columns. The sums of all blocks, `parts`, are a small matrix; `totals` adds up those of a whole step
in one launch. The sums are of the numbers as they are stored, in float32, in an order that is the
same from run to run.

Importing this module needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["GELU", "JOINED", "Tiling", "gelu_gradient", "joined", "totals"]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a matrix is tiled: columns of a tile, rows at a time, about how many programs."""

    columns: int
    step: int
    programs: int
    warps: int

    def rows(self, shape: Sequence[int]) -> int:
        """The rows of a block of a matrix [rows, columns]."""
        tiles = -(-shape[1] // self.columns)
        blocks = max(1, self.programs // tiles)
        return -(-shape[0] // (blocks * self.step)) * self.step


GELU = Tiling(columns=64, step=16, programs=1056, warps=4)
JOINED = Tiling(columns=64, step=64, programs=528, warps=8)
_STEP, _TILE = 32, 64
"""Rows and columns of partial sums that a program adds up at a time."""


@triton.jit
def _tanh_slope(x):
    """The derivative of x * (1 + tanh(y)) / 2, which is x * sigmoid(2 * y)."""
    square = x * x
    twice = 1.5957691216057308 * x * (1.0 + 0.044715 * square)
    share = 1.0 / (1.0 + tl.exp(-twice))
    return share + x * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * square)


@triton.jit
def _erf_slope(x):
    """The derivative of x times the normal distribution up to x."""
    share = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
    return share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _pull(
    dy,
    x,
    dx,
    parts,
    rows,
    COLUMNS: tl.constexpr,
    TANH: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    block = tl.program_id(1)
    total = tl.zeros((STEP, TILE), tl.float32)
    for start in tl.range(0, ROWS, STEP, num_stages=3):
        row = block * ROWS + start + tl.arange(0, STEP)
        known = (row < rows)[:, None] & (column < COLUMNS)[None, :]
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        value = tl.load(x + offset, known, 0.0).to(tl.float32)
        pulled = tl.load(dy + offset, known, 0.0).to(tl.float32)
        slope = _tanh_slope(value) if TANH else _erf_slope(value)
        result = (pulled * slope).to(dx.dtype.element_ty)
        tl.store(dx + offset, result, known)
        total += result.to(tl.float32)
    tl.store(parts + block * COLUMNS + column, tl.sum(total, 0), column < COLUMNS)


@triton.jit
def _join(
    pieces,
    strides,
    whole,
    parts,
    rows,
    SIZES: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    tile = tl.program_id(0)
    to = 0
    for i in tl.static_range(len(SIZES)):
        tiles = (SIZES[i] + TILE - 1) // TILE
        if (tile >= 0) & (tile < tiles):
            _copy(
                *(pieces[i], strides[i], whole, parts, rows, tile, to),
                *(SIZES[i], COLUMNS, ROWS, STEP, TILE),
            )
        tile -= tiles
        to += SIZES[i]


@triton.jit
def _copy(
    piece,
    stride,
    whole,
    parts,
    rows,
    tile,
    to,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy a tile of columns of a piece to behind `to` columns of the whole."""
    column = tile * TILE + tl.arange(0, TILE)
    block = tl.program_id(1)
    total = tl.zeros((STEP, TILE), tl.float32)
    for start in range(0, ROWS, STEP):
        row = block * ROWS + start + tl.arange(0, STEP)
        known = (row < rows)[:, None] & (column < SIZE)[None, :]
        row = row.to(tl.int64)[:, None]
        value = tl.load(piece + row * stride + column[None, :], known, 0.0)
        tl.store(whole + row * COLUMNS + to + column[None, :], value, known)
        total += value.to(tl.float32)
    tl.store(parts + block * COLUMNS + to + column, tl.sum(total, 0), column < SIZE)


@triton.jit
def _total(
    matrices,
    results,
    rows,
    columns,
    planes,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    plane = tl.program_id(1)
    known = (column < columns)[None, :]
    source = matrices[0]
    for i in tl.static_range(1, len(matrices)):
        source = tl.where(plane // planes == i, matrices[i], source)
    source += (plane % planes) * rows * columns
    total = tl.zeros((STEP, TILE), tl.float32)
    for start in range(0, rows, STEP):
        row = (start + tl.arange(0, STEP))[:, None]
        total += tl.load(source + row * columns + column[None, :], (row < rows) & known, 0.0)
    sums = tl.sum(total, 0).to(results.dtype.element_ty)
    tl.store(results + plane * columns + column, sums, column < columns)


@torch.library.custom_op("purine::gelu_gradient", mutates_args=())
def gelu_gradient(dy: Tensor, x: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """The gradient of a GELU of a matrix, and its partial column sums."""
    dy, x = dy.contiguous(), x.contiguous()
    dx, parts = _results(x, x.shape, GELU)
    rows, columns = x.shape
    _pull[(triton.cdiv(columns, GELU.columns), parts.shape[0])](
        *(dy, x, dx, parts, rows),
        COLUMNS=columns,
        TANH=approximate == "tanh",
        ROWS=GELU.rows(x.shape),
        STEP=GELU.step,
        TILE=GELU.columns,
        num_warps=GELU.warps,
    )
    return dx, parts


gelu_gradient.register_fake(lambda dy, x, approximate: _results(x, x.shape, GELU))


@torch.library.custom_op("purine::joined", mutates_args=())
def joined(pieces: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A few matrices side by side as one, and its partial column sums."""
    near = [piece if piece.stride(1) == 1 else piece.contiguous() for piece in pieces]
    shape = _joined_shape(near)
    whole, parts = _results(near[0], shape, JOINED)
    sizes = tuple(piece.shape[1] for piece in near)
    tiles = sum(triton.cdiv(size, JOINED.columns) for size in sizes)
    _join[(tiles, parts.shape[0])](
        *(tuple(near), tuple(piece.stride(0) for piece in near), whole, parts, shape[0]),
        SIZES=sizes,
        COLUMNS=shape[1],
        ROWS=JOINED.rows(shape),
        STEP=JOINED.step,
        TILE=JOINED.columns,
        num_warps=JOINED.warps,
    )
    return whole, parts


@joined.register_fake
def _(pieces: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return _results(pieces[0], _joined_shape(pieces), JOINED)


@torch.library.custom_op("purine::totals", mutates_args=())
def totals(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The column sums of tensors [..., rows, columns] of one shape: [tensors, ..., columns]."""
    near = [part.contiguous() for part in parts]
    results: Tensor = _totals(near, dtype)
    rows, columns = near[0].shape[-2:]
    planes = near[0].numel() // (rows * columns)
    _total[(triton.cdiv(columns, _TILE), planes * len(near))](
        *(tuple(near), results, rows, columns, planes), STEP=_STEP, TILE=_TILE, num_warps=4
    )
    return results


@totals.register_fake
def _totals(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    *front, _, columns = parts[0].shape
    return parts[0].new_empty((len(parts), *front, columns), dtype=dtype)


def _joined_shape(pieces: Sequence[Tensor]) -> tuple[int, int]:
    return pieces[0].shape[0], sum(piece.shape[1] for piece in pieces)


def _results(like: Tensor, shape: Sequence[int], tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Memory for a matrix and its partial column sums."""
    blocks = triton.cdiv(shape[0], tiling.rows(shape))
    parts = like.new_empty((blocks, shape[1]), dtype=torch.float32)
    return like.new_empty(shape), parts
