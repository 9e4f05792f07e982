"""Measured times of kernels, and what they say of an op of other sizes.

A point is a kind with the sizes of its blobs and the seconds that it took. The time of an op is its
estimate by flops and bytes, times what the nearest points of its kind took over theirs. Distances
are between logarithms of sizes, so an op of the sizes of a point has exactly its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GPU", "Kernels", "Point"]

GPU = 0
"""Stands for a GPU where CPUs have a number of threads."""
_NEAREST = 4


@dataclass(frozen=True, slots=True)
class Point:
    """The time of a kind: sizes of its inputs, threads of a kernel, flops, bytes, seconds.

    `threads` is `GPU` for a kernel of a GPU.
    """

    kind: str
    sizes: tuple[int, ...]
    threads: int
    flops: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Kernels:
    """The points of a machine.

    >>> kernels = Kernels((Point("Relu", (100,), 1, 0, 800, 2e-6),))
    >>> kernels.seconds("Relu", (100,), 1, 0, 800, lambda flops, moved: moved / 1e9)
    2e-06
    >>> kernels.seconds("Sigmoid", (100,), 1, 0, 800, lambda flops, moved: moved / 1e9) is None
    True
    """

    points: tuple[Point, ...] = ()
    _of: Mapping[tuple[str, int], list[tuple[tuple[float, ...], Point]]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        tables: dict[tuple[str, int], list[tuple[tuple[float, ...], Point]]] = {}
        for point in self.points:
            table = tables.setdefault((point.kind, point.threads), [])
            table.append((_features(point.sizes, point.flops, point.bytes), point))
        object.__setattr__(self, "_of", tables)

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads for which there are points."""
        return tuple(sorted({threads for _, threads in self._of}))

    def seconds(
        self,
        kind: str,
        sizes: Sequence[int],
        threads: int,
        flops: int,
        moved: int,
        estimate: Callable[[int, int], float],
    ) -> float | None:
        """About how long an op takes; None where no point is of its kind.

        `estimate` gives the time of flops and bytes by constant rates.
        """
        measured = [n for n in self.threads if (kind, n) in self._of and (n > 0) == (threads > 0)]
        if not measured:
            return None
        below = max((n for n in measured if n <= threads), default=measured[0])
        above = min((n for n in measured if n >= threads), default=measured[-1])
        first = self._near(self._of[kind, below], sizes, flops, moved, estimate)
        if above == below:
            return first
        last = self._near(self._of[kind, above], sizes, flops, moved, estimate)
        share = math.log(threads / below) / math.log(above / below)
        return float(first ** (1 - share) * last**share)

    def _near(
        self,
        table: Sequence[tuple[tuple[float, ...], Point]],
        sizes: Sequence[int],
        flops: int,
        moved: int,
        estimate: Callable[[int, int], float],
    ) -> float:
        own = _features(sizes, flops, moved)
        nearest = sorted((_distance(own, features), n) for n, (features, _) in enumerate(table))
        total = weight = 0.0
        for distance, number in nearest[:_NEAREST]:
            point = table[number][1]
            ratio = math.log(point.seconds / max(1e-9, estimate(point.flops, point.bytes)))
            if distance < 1e-9:
                return estimate(flops, moved) * math.exp(ratio)
            total += ratio / distance**2
            weight += 1 / distance**2
        return max(1e-9, estimate(flops, moved)) * math.exp(total / weight)


def _features(sizes: Sequence[int], flops: int, moved: int) -> tuple[float, ...]:
    work = (math.log(flops + 1.0), math.log(moved + 1.0))
    return (*work, *(math.log(size + 1.0) for size in sizes))


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The distance of two ops; of those with other numbers of axes only the work counts."""
    width = len(one) if len(one) == len(other) else 2
    far = 0.0 if len(one) == len(other) else 9.0
    return math.sqrt(far + sum((one[k] - other[k]) ** 2 for k in range(width)))
