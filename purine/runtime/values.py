"""Values that enter a run: the first values of states, and tensors that a caller passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from purine.arguments import shown
from purine.errors import RunError, in_a_line
from purine.graph import CHANNELS_LAST, Graph
from purine.registry.aten import device_of, dtype_name, dtype_of
from purine.registry.clock import SEED
from purine.registry.fillers import drawn_as, fill, filler_of_whole, shard_of

__all__ = [
    "LARGEST_SEED",
    "Values",
    "as_tensor",
    "at_home",
    "check_value",
    "initial_states",
    "laid_out",
]

Values: TypeAlias = Mapping[str, object]
"""Tensors by the names of their blobs; numpy arrays, lists and numbers are converted."""

LARGEST_SEED = 2**63 - 1
"""The seed is a blob of int64."""


def initial_states(
    graph: Graph, seed: int, given: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The first values of all states: the `given` ones, and the others from their fillers.

    A filler draws from a generator that is keyed by seed and state name. The whole of consecutive
    shards is drawn once.
    """
    values = {}
    whole, drawn = "", torch.empty(0)
    for name, state in graph.states.items():
        blob = graph.blobs[name]
        assert blob.shape is not None
        shard = shard_of(state.filler)
        if given and name in given:
            values[name] = given[name]
        elif SEED in (name, state.shared, drawn_as(state.filler)):
            values[name] = torch.tensor(seed, dtype=dtype_of(blob.dtype))
        elif shard is not None:
            if whole != shard.of:
                filler, whole = filler_of_whole(state.filler), shard.of
                drawn = fill(filler, shard.whole, blob.dtype, seed=seed, name=whole)
            values[name] = shard.take(drawn)
        else:
            drawn_for = state.shared or name
            values[name] = fill(state.filler, blob.shape, blob.dtype, seed=seed, name=drawn_for)
    return values


def at_home(graph: Graph, name: str, value: Tensor) -> Tensor:
    """A value on the device and in the layout of its blob."""
    blob = graph.blobs[name]
    return laid_out(value.to(device_of(blob.location)), blob.layout)


def laid_out(value: Tensor, layout: str) -> Tensor:
    """The value itself, or a copy of it in the layout of its blob.

    A value with one channel is the same in both layouts; its strides decide which one kernels
    choose, so they are set in any case.
    """
    if layout != CHANNELS_LAST:
        return value
    return torch.empty_like(value, memory_format=torch.channels_last).copy_(value)


def as_tensor(graph: Graph, name: str, value: object) -> Tensor:
    """A value that a caller passes, as a tensor; numbers and lists get the dtype of the blob."""
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, np.ndarray | np.generic):
            return torch.from_numpy(np.array(value))
        blob = graph.blobs.get(name)
        return torch.tensor(value, dtype=None if blob is None else dtype_of(blob.dtype))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(
            f"the value for {name!r} is no tensor",
            blob=name,
            expected="a tensor, a numpy array, a number or a list of numbers",
            found=f"{shown(value)} ({in_a_line(error)})",
            remedy="convert it to a tensor",
        ) from error


def check_value(graph: Graph, name: str, value: Tensor) -> None:
    """Raise `RunError` unless a value has the shape and dtype of its blob."""
    blob = graph.blobs[name]
    if (tuple(value.shape), dtype_name(value.dtype)) != (blob.shape, blob.dtype):
        raise RunError(
            f"blob {name!r} cannot take this value",
            blob=blob,
            expected=f"{blob.dtype} {list(blob.shape or ())}",
            found=f"{dtype_name(value.dtype)} {list(value.shape)}",
            remedy="convert the value or change the blob",
        )
