"""The figures of each worker of a job since the metrics were last written."""

from __future__ import annotations

from dataclasses import dataclass

from purine.runtime.result import Result

__all__ = ["WorkerFigures"]


@dataclass
class _Counts:
    iterations: int = 0
    staleness: int = 0
    largest: int = 0
    missed: int = 0


class WorkerFigures:
    """Speed and staleness of each of `workers` workers; an iteration trains `samples`.

    >>> figures = WorkerFigures(2, 8)
    >>> figures.add(Result(0, {}, worker=1, staleness=3, missed=1))
    >>> figures.staleness
    (3.0, 3)
    >>> figures.totals
    ((0, 0), (1, 3))
    >>> figures.rows(seconds=2.0)[1]["images_per_second"]
    4.0
    """

    def __init__(self, workers: int, samples: int) -> None:
        self._samples = samples
        self._counts = [_Counts() for _ in range(workers)]
        self._totals = [(0, 0)] * workers

    def add(self, result: Result) -> None:
        """Count an iteration of a worker."""
        counts = self._counts[result.worker]
        counts.iterations += 1
        counts.staleness += result.staleness
        counts.missed += result.missed
        counts.largest = max(counts.largest, result.staleness)
        iterations, staleness = self._totals[result.worker]
        self._totals[result.worker] = iterations + 1, staleness + result.staleness

    @property
    def totals(self) -> tuple[tuple[int, int], ...]:
        """By worker the number of its iterations so far, and the sum of their staleness."""
        return tuple(self._totals)

    @property
    def staleness(self) -> tuple[float, int]:
        """The mean and the largest staleness of all."""
        total = sum(counts.staleness for counts in self._counts)
        count = sum(counts.iterations for counts in self._counts)
        return total / max(count, 1), max(counts.largest for counts in self._counts)

    def rows(self, seconds: float) -> list[dict[str, object]]:
        """The figures of each worker; starts counting anew."""
        rows: list[dict[str, object]] = [
            {
                "worker": worker,
                "iterations": one.iterations,
                "images_per_second": one.iterations * self._samples / seconds if seconds else None,
                "staleness": one.staleness / max(one.iterations, 1),
                "largest_staleness": one.largest,
                "missed_updates": one.missed / max(one.iterations, 1),
            }
            for worker, one in enumerate(self._counts)
        ]
        self._counts = [_Counts() for _ in self._counts]
        return rows
