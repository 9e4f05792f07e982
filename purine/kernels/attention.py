"""Gradients of attention on GPUs as one matrix with its column sums, by one kernel.

Where one linear layer computes queries, keys and values, its own gradients need theirs side by side
in one matrix, and the column sums of this matrix. Kernels of libraries write three matrices, and
accumulate the gradient of the queries in memory with atomic additions in float32, whose order
varies. Our kernel computes the scores twice instead. A program owns a block of positions of one
head. It accumulates the gradients of its keys and values over all queries that attend to them, then
the gradient of its queries over all keys that they attend to, and writes all three into the matrix.
All programs have the same work, causal or not, and the bits are the same from run to run. A small
kernel before it computes the inner products of results and their gradients.

Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["BLOCK", "attention_gradient"]


BLOCK = 64
"""Positions of a program, and queries or keys that it reads at a time."""
_WARPS, _STAGES = 4, 3
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(
    pointer, start, STRIDE: tl.constexpr, T: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Rows of a matrix with D columns; zeros behind its end."""
    row = tl.arange(0, ROWS)[:, None]
    address = pointer + start * STRIDE + (row * STRIDE + tl.arange(0, D)[None, :])
    return tl.load(address) if T % ROWS == 0 else tl.load(address, start + row < T, 0.0)


@triton.jit
def _line(pointer, start, T: tl.constexpr, ROWS: tl.constexpr, OTHER: tl.constexpr):
    """Numbers of rows; behind the end `OTHER`."""
    row = tl.arange(0, ROWS)
    if T % ROWS == 0:
        numbers = tl.load(pointer + start + row)
    else:
        numbers = tl.load(pointer + start + row, start + row < T, OTHER)
    return numbers


@triton.jit
def _inner(
    dy,
    y,
    inner,
    dy_strides,
    y_strides,
    DY: tl.constexpr,
    Y: tl.constexpr,
    HEADS: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The inner products of gradients and results of all positions."""
    start, which = tl.program_id(0) * ROWS, tl.program_id(1)
    batch, head = (which // HEADS).to(tl.int64), which % HEADS
    dy += batch * dy_strides[0] + head * dy_strides[1]
    y += batch * y_strides[0] + head * y_strides[1]
    row = start + tl.arange(0, ROWS)
    left = _tile(dy, start, DY, T, D, ROWS).to(tl.float32)
    right = _tile(y, start, Y, T, D, ROWS).to(tl.float32)
    tl.store(inner + which.to(tl.int64) * T + row, tl.sum(left * right, 1), row < T)


@triton.jit
def _for_keys(
    dk,
    dv,
    k,
    v,
    tensors,
    at,
    factor,
    seen,
    MASKED: tl.constexpr,
    STRIDES: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Add what comes from queries from `at` on; these lie along the second axis."""
    query = _tile(tensors[1], at, STRIDES[1], T, D, ROWS)
    pulled = _tile(tensors[0], at, STRIDES[0], T, D, ROWS)
    scores = tl.dot(k, tl.trans(query))
    slope = tl.dot(v, tl.trans(pulled))
    level = _line(tensors[4], at, T, ROWS, float("inf")) * _LOG2E
    weights = tl.math.exp2(scores * factor - level[None, :])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    dv = tl.dot(weights.to(v.dtype), pulled, dv)
    along = _line(tensors[5], at, T, ROWS, 0.0)
    change = (weights * (slope - along[None, :])).to(k.dtype)
    dk = tl.dot(change, query, dk)
    return dk, dv, change


@triton.jit
def _for_queries(
    dq,
    q,
    dy,
    tensors,
    at,
    level,
    along,
    factor,
    seen,
    MASKED: tl.constexpr,
    STRIDES: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Add what comes from keys from `at` on; these lie along the second axis."""
    key = _tile(tensors[2], at, STRIDES[2], T, D, ROWS)
    value = _tile(tensors[3], at, STRIDES[3], T, D, ROWS)
    scores = tl.dot(q, tl.trans(key))
    slope = tl.dot(dy, tl.trans(value))
    weights = tl.math.exp2(scores * factor - level[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    change = (weights * (slope - along[:, None])).to(q.dtype)
    return tl.dot(change, key, dq)


@triton.jit
def _keep(
    result,
    whole,
    parts,
    batch,
    block,
    column,
    T: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store a block of rows behind `column` columns of the whole, and their sums."""
    low = result.to(whole.dtype.element_ty)
    at = column + tl.arange(0, D)
    row = tl.arange(0, BLOCK)[:, None]
    address = whole + (batch * T + block * BLOCK) * WIDTH + (row * WIDTH + at[None, :])
    summed = low.to(tl.float32)
    if T % BLOCK == 0:
        tl.store(address, low)
    else:
        known = block * BLOCK + row < T
        tl.store(address, low, known)
        summed = tl.where(known, summed, 0.0)
    blocks: tl.constexpr = (T + BLOCK - 1) // BLOCK
    tl.store(parts + (batch * blocks + block) * WIDTH + at, tl.sum(summed, 0))


@triton.jit
def _gradients(
    tensors,
    strides,
    log,
    inner,
    whole,
    parts,
    scale,
    STRIDES: tl.constexpr,
    HEADS: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    block, which = tl.program_id(0), tl.program_id(1)
    batch, head = (which // HEADS).to(tl.int64), which % HEADS
    dy = tensors[0] + batch * strides[0][0] + head * strides[0][1]
    q = tensors[1] + batch * strides[1][0] + head * strides[1][1]
    k = tensors[2] + batch * strides[2][0] + head * strides[2][1]
    v = tensors[3] + batch * strides[3][0] + head * strides[3][1]
    log += which.to(tl.int64) * T
    inner += which.to(tl.int64) * T
    given = (dy, q, k, v, log, inner)
    start, factor = block * BLOCK, scale * _LOG2E
    width: tl.constexpr = HEADS * D
    column = head * D

    key = _tile(k, start, STRIDES[2], T, D, BLOCK)
    value = _tile(v, start, STRIDES[3], T, D, BLOCK)
    dk = tl.zeros((BLOCK, D), tl.float32)
    dv = tl.zeros((BLOCK, D), tl.float32)
    dq = tl.zeros((BLOCK, D), tl.float32)
    if CAUSAL:
        seen = tl.arange(0, BLOCK)[:, None] <= tl.arange(0, BLOCK)[None, :]
        dk, dv, change = _for_keys(
            *(dk, dv, key, value, given, start, factor, seen, True, STRIDES, T, D, BLOCK)
        )
        dq = tl.dot(tl.trans(change), key)
    for at in tl.range(start + BLOCK if CAUSAL else 0, T, BLOCK, num_stages=STAGES):
        dk, dv, _ = _for_keys(
            *(dk, dv, key, value, given, at, factor, None, False, STRIDES, T, D, BLOCK)
        )
    _keep(dk * scale, whole, parts, batch, block, width + column, T, 3 * width, D, BLOCK)
    _keep(dv, whole, parts, batch, block, 2 * width + column, T, 3 * width, D, BLOCK)

    query = _tile(q, start, STRIDES[1], T, D, BLOCK)
    pulled = _tile(dy, start, STRIDES[0], T, D, BLOCK)
    level = _line(log, start, T, BLOCK, float("inf")) * _LOG2E
    along = _line(inner, start, T, BLOCK, 0.0)
    for at in tl.range(0, start if CAUSAL else T, BLOCK, num_stages=STAGES):
        inside = at + tl.arange(0, BLOCK)[None, :] < T
        dq = _for_queries(
            *(dq, query, pulled, given, at, level, along, factor, inside),
            *(not CAUSAL and T % BLOCK != 0, STRIDES, T, D, BLOCK),
        )
    _keep(dq * scale, whole, parts, batch, block, column, T, 3 * width, D, BLOCK)


@torch.library.custom_op("purine::attention_gradient", mutates_args=())
def attention_gradient(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of attention [N, heads, T, D] as one matrix, and its partial column sums.

    `log` is the log-sum-exp of the scores [N, heads, T]. The matrix has N * T rows; its columns are
    the queries of all heads, then their keys, then their values.
    """
    near = [_near(item) for item in (gradient, query, key, value, out)]
    strides = [item.stride()[:3] for item in near]
    batch, heads, length, size = query.shape
    log = log.contiguous()
    inner = torch.empty_like(log)
    whole, parts = _results(query)
    grid = (triton.cdiv(length, BLOCK), batch * heads)
    sizes = {"HEADS": heads, "T": length, "D": size, "num_warps": _WARPS}
    _inner[grid](
        *(near[0], near[4], inner, strides[0][:2], strides[4][:2]),
        DY=strides[0][2],
        Y=strides[4][2],
        ROWS=BLOCK,
        **sizes,
    )
    _gradients[grid](
        *(tuple(near[:4]), tuple(item[:2] for item in strides[:4])),
        *(log, inner, whole, parts, scale),
        STRIDES=tuple(item[2] for item in strides[:4]),
        CAUSAL=causal,
        BLOCK=BLOCK,
        STAGES=_STAGES,
        **sizes,
    )
    return whole, parts


attention_gradient.register_fake(lambda gradient, query, *rest: _results(query))


def _near(value: Tensor) -> Tensor:
    return value if value.stride(3) == 1 else value.contiguous()


def _results(like: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, length, size = like.shape
    columns = 3 * heads * size
    blocks = batch * triton.cdiv(length, BLOCK)
    parts = like.new_empty((blocks, columns), dtype=torch.float32)
    return like.new_empty((batch * length, columns)), parts
