"""Sums of rows with the same index on GPUs, in a fixed order: the gradient of an embedding.

Rows are sorted by index. Rows with the same index are a *run*. A program owns one row, and adds up
from there to the end of the run or of a chunk of rows, whichever comes first. It has nothing to do
if the row before is in the same chunk and run. A second kernel adds up the sums of runs that cross
chunks, many at once: a frequent word of a text is in hundreds of chunks.

Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["sums_of_rows"]

_CHUNK, _TILE = 16, 1024
"""Rows of a chunk, and columns of a tile at most."""
_AT_ONCE = tl.constexpr(32)
"""Chunks of a long run that are added up at once."""
_SHORT, _OWN, _OTHERS = 16384, 16, 256
"""Up to `_SHORT` indices are sorted by comparing all pairs, in tiles of `_OWN` by `_OTHERS`."""


@triton.jit
def _rank(index, places, order, COUNT: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr):
    """Put places in order: each goes behind those that are smaller, or equal and in front."""
    start = tl.program_id(0) * OWN
    own = start + tl.arange(0, OWN)
    place = tl.load(index + own, own < COUNT, 0).to(tl.int32)
    smaller = tl.zeros((OWN, OTHERS), tl.int32)
    for block in range(0, COUNT, OTHERS):
        other = block + tl.arange(0, OTHERS)
        value = tl.load(index + other, other < COUNT, 2147483647).to(tl.int32)
        limit = place + (block + OTHERS <= start).to(tl.int32)
        smaller += (value[None, :] < limit[:, None]).to(tl.int32)
    rank = tl.sum(smaller, 1)
    other = start // OTHERS * OTHERS + tl.arange(0, OTHERS)  # those around: some are in front
    value = tl.load(index + other, other < COUNT, 2147483647).to(tl.int32)
    equal = (value[None, :] == place[:, None]) & (other[None, :] < own[:, None])
    rank += tl.sum(equal.to(tl.int32), 1)
    tl.store(places + rank, place, own < COUNT)
    tl.store(order + rank, own, own < COUNT)


@triton.jit
def _sum_chunks(
    rows,
    places,
    order,
    sums,
    slots,
    count,
    height,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    k, tile = tl.program_id(0), tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    if k == 0:
        none = tl.zeros((TILE,), tl.float32)
        tl.store(sums + (k + count).to(tl.int64) * COLUMNS + column, none, inside)
    place = tl.load(places + k)
    tl.device_assert((place >= 0) & (place < height), "an index of a sum of rows is out of range")
    goes_on = place == tl.load(places + k - 1, k > 0, -1)
    if (k % CHUNK == 0) | (not goes_on):
        step = k + tl.arange(0, CHUNK)
        known = (step < count) & (step < (k // CHUNK + 1) * CHUNK)
        same = known & (tl.load(places + step, known, -1) == place)
        stop = k + tl.sum(same.to(tl.int32), 0)
        total = tl.zeros((TILE,), tl.float32)
        at = k
        while at < stop:
            row = tl.load(order + at).to(tl.int64)
            total += tl.load(rows + row * COLUMNS + column, inside, 0.0).to(tl.float32)
            at += 1
        tl.store(sums + k.to(tl.int64) * COLUMNS + column, total, inside)
        if (tile == 0) & (not goes_on) & (place >= 0) & (place < height):
            tl.store(slots + place, k)


@triton.jit
def _join_chunks(
    places,
    sums,
    count,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    chunk = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    start, stop = chunk * CHUNK, (chunk + 1) * CHUNK
    place = tl.load(places + stop - 1, stop < count, -1)
    after = tl.load(places + stop, stop < count, -2)
    before = tl.load(places + start - 1, start > 0, -1)
    if (place == after) & (place != before):  # a run that begins here and goes on
        own = tl.load(places + start + tl.arange(0, CHUNK)) == place
        first = (stop - tl.sum(own.to(tl.int32), 0)).to(tl.int64)
        total = tl.load(sums + first * COLUMNS + column, inside)
        then = chunk + 1
        more = then > 0
        while more:
            those = then + tl.arange(0, _AT_ONCE)
            known = those * CHUNK < count
            same = known & (tl.load(places + those * CHUNK, known, -1) == place)
            partial = tl.load(
                sums + (those * CHUNK).to(tl.int64)[:, None] * COLUMNS + column[None, :],
                same[:, None] & inside[None, :],
                0.0,
            )
            total += tl.sum(partial, 0)
            then += _AT_ONCE
            more = tl.sum(same.to(tl.int32), 0) == _AT_ONCE
        tl.store(sums + first * COLUMNS + column, total, inside)


def sums_of_rows(index: Tensor, rows: Tensor, sums: Tensor, slots: Tensor) -> None:
    """Write the sums of rows in float32, and to `slots` the position of the sum of each index.

    The last of the sums is a row of zeros. Rows of `sums` that no slot names are undefined.
    """
    count, columns = index.numel(), rows[:1].numel()
    if not count or not columns:
        sums.zero_()
        return
    with torch.cuda.device(rows.get_device()):
        places, order = _in_order(index.reshape(-1))
        tile = min(triton.next_power_of_2(columns), _TILE)
        tiles = triton.cdiv(columns, tile)
        sizes: dict[str, int] = {"COLUMNS": columns, "CHUNK": _CHUNK}
        _sum_chunks[count, tiles](
            *(rows.contiguous(), places, order, sums, slots, count, slots.numel()),
            **sizes,
            TILE=tile,
            num_warps=max(1, min(4, tile // 256)),
            debug=True,  # a wrong place is an error in any run
            sanitize_overflow=False,
        )
        tile = min(tile, 128)
        _join_chunks[triton.cdiv(count, _CHUNK), triton.cdiv(columns, tile)](
            *(places, sums, count), **sizes, TILE=tile
        )


def _in_order(index: Tensor) -> tuple[Tensor, Tensor]:
    """The sorted indices, and the row that each comes from."""
    count = index.numel()
    if count > _SHORT:
        places, order = torch.sort(index.to(torch.int32), stable=True)
        return places, order
    places = torch.empty(count, dtype=torch.int32, device=index.device)
    order = torch.empty_like(places)
    grid = (triton.cdiv(count, _OWN),)
    _rank[grid](index.contiguous(), places, order, COUNT=count, OWN=_OWN, OTHERS=_OTHERS)
    return places, order
