"""Rows added up by index on GPUs, in a fixed order: the gradient of an embedding.

Rows are taken in the order of where they go, and those that go to one place are a *run*. A program
has a chunk of so many rows, and one tile of columns. A run that lies in one chunk is added to its
place at once. One that goes over a border leaves a sum in each chunk, and a second kernel adds up
these, many at once: a frequent word of a text is in hundreds of chunks.

Importing this module needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["sum_rows"]

_CHUNK, _TILE = 16, 128
"""Rows of a chunk and columns of a tile."""
_AT_ONCE = tl.constexpr(32)
"""Chunks of a long run that are added up at once."""


@triton.jit
def _add(total, place, height, column, inside, value, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to a part of a row; no other program has the same."""
    if (place >= 0) & (place < height):
        there = total + place.to(tl.int64) * COLUMNS + column
        found = tl.load(there, mask=inside, other=0.0).to(tl.float32)
        tl.store(there, (found + value).to(total.dtype.element_ty), mask=inside)


@triton.jit
def _sum_chunks(  # type: ignore[no-untyped-def]
    total,
    rows,
    places,
    order,
    parts,
    count,
    height,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    tiles: tl.constexpr = (COLUMNS + TILE - 1) // TILE
    chunk = tl.program_id(0) // tiles
    column = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    start = chunk * CHUNK
    step = start + tl.arange(0, CHUNK)
    mine = tl.load(places + step, mask=step < count, other=-1)
    source = tl.load(order + step, mask=step < count, other=0).to(tl.int64)
    block = tl.load(
        rows + source[:, None] * COLUMNS + column[None, :],
        mask=(step < count)[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    before = tl.load(places + start - 1, mask=start > 0, other=-1)
    for number in range(CHUNK):
        k = start + number
        place = tl.load(places + k, mask=k < count, other=-1)
        after = tl.load(places + k + 1, mask=k + 1 < count, other=-1)
        if (k < count) & ((place != after) | (number + 1 == CHUNK)):
            value = tl.sum(tl.where((mine == place)[:, None], block, 0.0), 0)
            part = parts + chunk.to(tl.int64) * 2 * COLUMNS + column
            if place == before:  # goes on from the chunk before
                tl.store(part, value, mask=inside)
            elif place == after:  # goes on in the next chunk
                tl.store(part + COLUMNS, value, mask=inside)
            else:
                _add(total, place, height, column, inside, value, COLUMNS)


@triton.jit
def _join_chunks(  # type: ignore[no-untyped-def]
    total,
    places,
    parts,
    count,
    height,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    tiles: tl.constexpr = (COLUMNS + TILE - 1) // TILE
    chunk = tl.program_id(0) // tiles
    column = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    start = chunk * CHUNK
    stop = start + CHUNK
    place = tl.load(places + stop - 1, mask=stop < count, other=-1)
    after = tl.load(places + stop, mask=stop < count, other=-2)
    before = tl.load(places + start - 1, mask=start > 0, other=-1)
    if (place == after) & (place != before):  # a run that begins here and goes on
        value = tl.load(parts + (2 * chunk + 1).to(tl.int64) * COLUMNS + column, mask=inside)
        first = chunk + 1
        more = first > 0
        while more:
            those = first + tl.arange(0, _AT_ONCE)
            known = those * CHUNK < count
            same = known & (tl.load(places + those * CHUNK, mask=known, other=-1) == place)
            value += tl.sum(
                tl.load(
                    parts + those.to(tl.int64)[:, None] * 2 * COLUMNS + column[None, :],
                    mask=same[:, None] & inside[None, :],
                    other=0.0,
                ),
                0,
            )
            first += _AT_ONCE
            more = tl.sum(same.to(tl.int32), 0) == _AT_ONCE
        _add(total, place, height, column, inside, value, COLUMNS)


def sum_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows to those of a contiguous tensor that `index` names, in place; sums are float32."""
    count, height = index.numel(), total.shape[0]
    columns = total[:1].numel()
    if not count or not columns:
        return
    with torch.cuda.device_of(total):
        places, order = torch.sort(index.reshape(-1).to(torch.int32), stable=True)
        torch._assert_async(
            (places[0] >= 0) & (places[-1] < height), "an index of a sum of rows is out of range"
        )
        chunks = triton.cdiv(count, _CHUNK)
        parts = torch.empty((chunks, 2, columns), dtype=torch.float32, device=total.device)
        grid = (chunks * triton.cdiv(columns, _TILE),)
        sizes: dict[str, Any] = {"COLUMNS": columns, "CHUNK": _CHUNK, "TILE": _TILE}
        near = rows.contiguous()
        _sum_chunks[grid](total, near, places, order, parts, count, height, **sizes)
        _join_chunks[grid](total, places, parts, count, height, **sizes)
