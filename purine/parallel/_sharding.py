"""How a blob is sharded: along which axis, and which spans of it each device holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]


class Cannot(Exception):
    """Why an op cannot be sharded as asked; the text completes a sentence of an error."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """The spans of one axis that each device holds, in order, device by device.

    If they only describe reads, they may overlap and leave out parts of the axis.
    """

    axis: int
    parts: tuple[tuple[Span, ...], ...]

    def extent(self, number: int) -> int:
        """The size of the axis in shard `number`."""
        return sum(end - start for start, end in self.parts[number])

    def along(self, axis: int) -> Sharding:
        """The same sharding of another axis of the same size."""
        return Sharding(axis, self.parts)

    def scaled(self, axis: int, factor: int, divisor: int = 1) -> Sharding | None:
        """The cut of an axis that is `factor / divisor` as long, where it falls between places."""
        spans = [span for part in self.parts for span in part]
        if any(end * factor % divisor for span in spans for end in span):
            return None
        parts = (
            tuple((start * factor // divisor, end * factor // divisor) for start, end in part)
            for part in self.parts
        )
        return Sharding(axis, tuple(parts))

    def local(self, shape: Shape, number: int) -> Shape:
        """The shape of shard `number` of a blob of the given shape."""
        return (*shape[: self.axis], self.extent(number), *shape[self.axis + 1 :])


def evenly(
    extent: int, count: int, *, blocks: int = 1, unit: int = 1
) -> tuple[tuple[Span, ...], ...]:
    """The spans of `count` shards of nearly equal size: of each of `blocks`, in whole units.

    >>> evenly(10, 3)
    (((0, 4),), ((4, 7),), ((7, 10),))
    >>> evenly(8, 2, blocks=2)
    (((0, 2), (4, 6)), ((2, 4), (6, 8)))
    """
    size = extent // blocks
    units = size // unit
    if units < count:
        what = "heads" if unit > 1 or blocks > 1 else "places"
        raise Cannot(f"{units} {what} cannot be cut into {count}")
    ends = [0]
    for number in range(count):
        ends.append(ends[-1] + (units // count + (number < units % count)) * unit)
    return tuple(
        tuple((block * size + ends[k], block * size + ends[k + 1]) for block in range(blocks))
        for k in range(count)
    )


def reshaped_axis(before: Shape, axis: int, after: Shape) -> int | None:
    """The axis of a reshaped blob that begins where `axis` begins, or None."""
    outer = math.prod(before[:axis])
    axes = [axis for axis in range(len(after)) if math.prod(after[:axis]) == outer]
    return axes[-1] if axes else None


def reshaped(before: Shape, sharding: Sharding, after: Sequence[int]) -> Sharding | None:
    """The sharding of a reshaped blob if each shard is reshaped alone; None if that is
    impossible."""
    shape = tuple(after)
    axis = reshaped_axis(before, sharding.axis, shape)
    if axis is None:
        return None
    inner = math.prod(before[sharding.axis + 1 :])
    return sharding.scaled(axis, inner, math.prod(shape[axis + 1 :]))
