"""Collectives between hosts as a library provides them: all hosts of a group make the same calls.

One thread of each host makes the calls of a communicator, one after the other, in the order that
lowering fixed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

__all__ = ["Communicator", "GlooCommunicator", "Mark"]


class Mark(Protocol):
    """A point in the work of a GPU, such as a CUDA event."""

    def query(self) -> bool:
        """Whether the GPU has reached this point."""


class Communicator(ABC):
    """One host's end of the collectives of a group.

    A call returns when this host has done its part. If another host is gone, it raises
    `RuntimeError` or keeps waiting: the caller must check for lost hosts. A communicator in host
    memory ends with its world.

    Between GPUs a call returns when it is enqueued on the current stream, and never fails. The GPU
    then waits for its peers until they come, or until the communicator is aborted.
    """

    enqueues = False
    """Whether a call returns when it is enqueued on a GPU."""

    @abstractmethod
    def reduce(self, line: Tensor, root: str) -> None:
        """Add up the lines of all hosts into that of `root`; the others' are undefined after it."""

    @abstractmethod
    def broadcast(self, line: Tensor, root: str) -> None:
        """Copy the line of `root` into those of all others."""

    def mark(self) -> Mark | None:
        """The point behind the latest call on its GPU; None if that has completed."""
        return None

    def close(self) -> None:  # noqa: B027  (most have nothing to free)
        """Free what the communicator has on a GPU. All hosts call it after their last call."""

    def abort(self) -> None:  # noqa: B027
        """Release a GPU that waits for peers; lines of unfinished calls are then undefined."""


class GlooCommunicator(Communicator):
    """The collectives of Gloo, through `torch.distributed`, in the memory of the host."""

    def __init__(self, group: dist.ProcessGroup, ranks: Mapping[str, int]) -> None:
        self._group, self._ranks = group, ranks

    def reduce(self, line: Tensor, root: str) -> None:
        dist.reduce(line, dst=self._ranks[root], group=self._group)

    def broadcast(self, line: Tensor, root: str) -> None:
        dist.broadcast(line, src=self._ranks[root], group=self._group)
