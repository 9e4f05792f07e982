"""Iterations of workers as those of a job, whose batch is that of all devices.

An iteration of a worker trains its share of the batch. With n workers, n iterations of any workers
count as one iteration of the job. So its options mean the same with workers as with replicas:
numbers of iterations, rates, tests and saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from purine.runtime.result import Result

__all__ = ["rounds_of"]


def rounds_of(results: Iterator[Result], workers: int) -> Iterator[Result]:
    """A result for every `workers` results: means of numbers, and the last of everything else.

    >>> found = (Result(k, {"loss": torch.tensor(float(k))}) for k in range(4))
    >>> [(result.iteration, result["loss"]) for result in rounds_of(found, 2)]
    [(0, 0.5), (1, 2.5)]
    """
    group: list[Result] = []
    for result in results:
        group.append(result)
        if len(group) == workers:
            yield _merged(group)
            group = []


def _merged(group: list[Result]) -> Result:
    last = group[-1]
    outputs = {
        name: _mean([result.outputs[name] for result in group if name in result.outputs])
        for name in last.outputs
    }
    return replace(last, iteration=last.iteration // len(group), outputs=outputs)


def _mean(values: list[Tensor]) -> Tensor:
    last = values[-1]
    numbers = last.numel() == 1 and last.is_floating_point()
    return torch.stack(values).mean(dim=0) if numbers else last
