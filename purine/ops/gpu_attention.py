"""Gradients of attention on GPUs as one matrix with the sums of its columns, by one kernel.

Where one linear layer makes queries, keys and values, its gradients need theirs side by side in one
matrix, and the sums of its columns. Kernels of libraries write three matrices, and add up those of
the queries in memory, in float32 and in any order. Ours makes the scores twice instead: a program
has a block of positions of one head, finds the gradients of its keys and values over all queries
that see them, then that of its queries over all keys that they see, and writes all three where they
belong. Causal or not, all programs have the same work, and bits are the same from run to run.

Importing this module needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["LAUNCH", "Launch", "attention_gradient"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the work is divided: positions of a program, and queries and keys at a time.

    `ahead` lets a small kernel find the inner products of results and gradients first; else they
    are found where they are needed. `shared` lets a causal block that both passes work on be made
    once, where blocks have as many queries at a time as positions. `early` puts products of values
    and gradients in front of exponentials. `longest` starts the programs of all heads that have
    most work first, where a pass is a kernel of its own; else those of a head start together.
    """

    block: int
    queries: int
    keys: int
    warps: int
    stages: int
    ahead: bool
    shared: bool
    early: bool = False
    longest: bool = False
    registers: int | None = None


LAUNCH = Launch(
    block=64, queries=64, keys=64, warps=4, stages=2, ahead=True, shared=True, longest=True
)
FIRST: Launch | None = LAUNCH
"""The launch of a kernel for the queries' gradients and the inner products; None lets one do all.

Blocks are those of `LAUNCH`, which is for keys and values then.
"""
_ROWS = 64
"""Positions of a program that finds inner products ahead."""


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    pointer, start, STRIDE: tl.constexpr, T: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Rows of a matrix with D columns; zeros behind its end."""
    row = tl.arange(0, ROWS)[:, None]
    place = pointer + start * STRIDE + (row * STRIDE + tl.arange(0, D)[None, :])
    return tl.load(place) if T % ROWS == 0 else tl.load(place, start + row < T, 0.0)


@triton.jit
def _line(pointer, start, T: tl.constexpr, ROWS: tl.constexpr, OTHER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of rows; behind the end `OTHER`."""
    row = tl.arange(0, ROWS)
    if T % ROWS == 0:
        found = tl.load(pointer + start + row)
    else:
        found = tl.load(pointer + start + row, start + row < T, OTHER)
    return found


@triton.jit
def _along(dy, y):  # type: ignore[no-untyped-def]
    """The inner products of the rows of two matrices."""
    return tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)


@triton.jit
def _inner(  # type: ignore[no-untyped-def]
    dy,
    y,
    found,
    dy_strides,
    y_strides,
    DY: tl.constexpr,
    Y: tl.constexpr,
    HEADS: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    start, which = tl.program_id(0) * ROWS, tl.program_id(1)
    batch, head = (which // HEADS).to(tl.int64), which % HEADS
    dy += batch * dy_strides[0] + head * dy_strides[1]
    y += batch * y_strides[0] + head * y_strides[1]
    row = start + tl.arange(0, ROWS)
    total = _along(_tile(dy, start, DY, T, D, ROWS), _tile(y, start, Y, T, D, ROWS))
    tl.store(found + which.to(tl.int64) * T + row, total, row < T)


@triton.jit
def _for_keys(  # type: ignore[no-untyped-def]
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
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Add what comes from queries from `at` on; these lie along the second axis."""
    query = _tile(tensors[1], at, STRIDES[1], T, D, ROWS)
    pulled = _tile(tensors[0], at, STRIDES[0], T, D, ROWS)
    scores = tl.dot(k, tl.trans(query))
    if EARLY:
        slope = tl.dot(v, tl.trans(pulled))
    level = _line(tensors[5], at, T, ROWS, float("inf")) * 1.4426950408889634
    weights = tl.math.exp2(scores * factor - level[None, :])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    dv = tl.dot(weights.to(v.dtype), pulled, dv)
    if not EARLY:
        slope = tl.dot(v, tl.trans(pulled))
    if AHEAD:
        along = _line(tensors[6], at, T, ROWS, 0.0)
    else:
        along = _along(pulled, _tile(tensors[4], at, STRIDES[4], T, D, ROWS))
    change = (weights * (slope - along[None, :])).to(k.dtype)
    dk = tl.dot(change, query, dk)
    return dk, dv, change


@triton.jit
def _for_queries(  # type: ignore[no-untyped-def]
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
    EARLY: tl.constexpr,
):
    """Add what comes from keys from `at` on; these lie along the second axis."""
    key = _tile(tensors[2], at, STRIDES[2], T, D, ROWS)
    value = _tile(tensors[3], at, STRIDES[3], T, D, ROWS)
    scores = tl.dot(q, tl.trans(key))
    if EARLY:
        slope = tl.dot(dy, tl.trans(value))
    weights = tl.math.exp2(scores * factor - level[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    if not EARLY:
        slope = tl.dot(dy, tl.trans(value))
    change = (weights * (slope - along[:, None])).to(q.dtype)
    return tl.dot(change, key, dq)


@triton.jit
def _keep(  # type: ignore[no-untyped-def]
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
    place = whole + (batch * T + block * BLOCK) * WIDTH + (row * WIDTH + at[None, :])
    summed = low.to(tl.float32)
    if T % BLOCK == 0:
        tl.store(place, low)
    else:
        known = block * BLOCK + row < T
        tl.store(place, low, known)
        summed = tl.where(known, summed, 0.0)
    blocks: tl.constexpr = (T + BLOCK - 1) // BLOCK
    tl.store(parts + (batch * blocks + block) * WIDTH + at, tl.sum(summed, 0))


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
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
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    SHARED: tl.constexpr,
    EARLY: tl.constexpr,
    LONGEST: tl.constexpr,
    PASS: tl.constexpr,
):
    tl.static_assert(BLOCK % QUERIES == 0)
    tl.static_assert(BLOCK % KEYS == 0)
    if LONGEST:
        block, which = tl.program_id(1), tl.program_id(0)
    else:
        block, which = tl.program_id(0), tl.program_id(1)
    if PASS == 1 and CAUSAL:
        block = (T + BLOCK - 1) // BLOCK - 1 - block
    batch, head = (which // HEADS).to(tl.int64), which % HEADS
    dy = tensors[0] + batch * strides[0][0] + head * strides[0][1]
    q = tensors[1] + batch * strides[1][0] + head * strides[1][1]
    k = tensors[2] + batch * strides[2][0] + head * strides[2][1]
    v = tensors[3] + batch * strides[3][0] + head * strides[3][1]
    y = tensors[4] + batch * strides[4][0] + head * strides[4][1]
    log += which.to(tl.int64) * T
    inner += which.to(tl.int64) * T
    start = block * BLOCK
    row = tl.arange(0, BLOCK)[:, None]
    column = head * D
    factor = scale * 1.4426950408889634
    width: tl.constexpr = HEADS * D

    given = (dy, q, k, v, y, log, inner)

    if PASS != 1:
        own_key = _tile(k, start, STRIDES[2], T, D, BLOCK)
        own_value = _tile(v, start, STRIDES[3], T, D, BLOCK)
        dk = tl.zeros((BLOCK, D), tl.float32)
        dv = tl.zeros((BLOCK, D), tl.float32)
        if CAUSAL:
            for i in tl.static_range(BLOCK // QUERIES):
                seen_by = row <= i * QUERIES + tl.arange(0, QUERIES)[None, :]
                dk, dv, change = _for_keys(
                    *(dk, dv, own_key, own_value, given, start + i * QUERIES, factor, seen_by),
                    *(True, STRIDES, T, D, QUERIES, AHEAD, EARLY),
                )
        for at in tl.range(start + BLOCK if CAUSAL else 0, T, QUERIES, num_stages=STAGES):
            dk, dv, _ = _for_keys(
                *(dk, dv, own_key, own_value, given, at, factor, None),
                *(False, STRIDES, T, D, QUERIES, AHEAD, EARLY),
            )
        _keep(dk * scale, whole, parts, batch, block, width + column, T, 3 * width, D, BLOCK)
        _keep(dv, whole, parts, batch, block, 2 * width + column, T, 3 * width, D, BLOCK)

    if PASS != 2:
        own_query = _tile(q, start, STRIDES[1], T, D, BLOCK)
        own_pulled = _tile(dy, start, STRIDES[0], T, D, BLOCK)
        level = _line(log, start, T, BLOCK, float("inf")) * 1.4426950408889634
        if AHEAD and PASS != 1:
            along = _line(inner, start, T, BLOCK, 0.0)
        else:
            along = _along(own_pulled, _tile(y, start, STRIDES[4], T, D, BLOCK))
            if PASS == 1:
                tl.store(
                    inner + start + tl.arange(0, BLOCK), along, start + tl.arange(0, BLOCK) < T
                )
        dq = tl.zeros((BLOCK, D), tl.float32)
        if CAUSAL:
            if SHARED and QUERIES == BLOCK and PASS == 0:
                dq = tl.dot(tl.trans(change), own_key)
            else:
                for i in tl.static_range(BLOCK // KEYS):
                    sees = row >= i * KEYS + tl.arange(0, KEYS)[None, :]
                    dq = _for_queries(
                        *(dq, own_query, own_pulled, given, start + i * KEYS, level, along),
                        *(factor, sees, True, STRIDES, T, D, KEYS, EARLY),
                    )
        for at in tl.range(0, start if CAUSAL else T, KEYS, num_stages=STAGES):
            inside = at + tl.arange(0, KEYS)[None, :] < T
            dq = _for_queries(
                *(dq, own_query, own_pulled, given, at, level, along, factor),
                *(inside, not CAUSAL and T % KEYS != 0, STRIDES, T, D, KEYS, EARLY),
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
    """Gradients of attention [N, heads, T, D] by queries, keys and values as one matrix, and sums.

    `log` has the logarithms of the sums of exponentials [N, heads, T]. The matrix has N * T rows,
    and the columns of all heads' queries, then keys, then values; the sums are of blocks of rows.
    """
    near = [_near(item) for item in (gradient, query, key, value, out)]
    strides = [item.stride()[:3] for item in near]
    batch, heads, length, size = query.shape
    log = log.contiguous()
    inner = torch.empty_like(log)
    whole, parts = _results(query, LAUNCH)
    if FIRST is None and LAUNCH.ahead:
        _inner[(triton.cdiv(length, _ROWS), batch * heads)](
            *(near[0], near[4], inner, strides[0][:2], strides[4][:2]),
            DY=strides[0][2],
            Y=strides[4][2],
            HEADS=heads,
            T=length,
            D=size,
            ROWS=_ROWS,
            num_warps=4,
        )
    passes = [(LAUNCH, 0)] if FIRST is None else [(FIRST, 1), (LAUNCH, 2)]
    for launch, number in passes:
        grid = (triton.cdiv(length, launch.block), batch * heads)
        _gradients[grid[::-1] if launch.longest else grid](
            *(tuple(near), tuple(item[:2] for item in strides), log, inner, whole, parts, scale),
            STRIDES=tuple(item[2] for item in strides),
            HEADS=heads,
            T=length,
            D=size,
            CAUSAL=causal,
            PASS=number,
            **settings(launch),
        )
    return whole, parts


@attention_gradient.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return _results(query, LAUNCH)


def settings(launch: Launch) -> dict[str, int | bool | None]:
    """What the kernel is compiled with."""
    return {
        "BLOCK": launch.block,
        "QUERIES": launch.queries,
        "KEYS": launch.keys,
        "STAGES": launch.stages,
        "AHEAD": launch.ahead,
        "SHARED": launch.shared,
        "EARLY": launch.early,
        "LONGEST": launch.longest,
        "num_warps": launch.warps,
        "maxnreg": launch.registers,
    }


def _near(value: Tensor) -> Tensor:
    return value if value.stride(3) == 1 else value.contiguous()


def _results(like: Tensor, launch: Launch) -> tuple[Tensor, Tensor]:
    batch, heads, length, size = like.shape
    columns = 3 * heads * size
    blocks = batch * triton.cdiv(length, launch.block)
    parts = like.new_empty((blocks, columns), dtype=torch.float32)
    return like.new_empty((batch * length, columns)), parts
