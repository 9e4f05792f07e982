"""Settings of malloc for the activations of a step (effect `heap`).

A step allocates and frees hundreds of megabytes in large buffers of many sizes. If they come from
the heap, they cost no page faults, but fragmentation raises the peak. If each is mapped from the
system, nothing is wasted, but the system clears every page each time. With huge pages that is cheap
for steps that compute much per byte. So large buffers of such steps are mapped; other steps map
only the largest buffers.

The first iterations map all but the smallest buffers, whatever the step. What a process makes then
and keeps (kernels of the convolution library, compiled segments) lies side by side in the heap.
Otherwise each such object stays between two activations, and the hole that these leave behind
fits no other buffer.

Compute lanes that run in parallel allocate from arenas of their own, which consist of pieces of
64 MB. These are never returned to the system: returning and mapping pieces takes a lock that all
lanes of the process wait for.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from purine.analysis.cost import PROFILE, cost
from purine.analysis.infer import size_in_bytes
from purine.graph import Graph
from purine.graph.nodes import computes, floats
from purine.machine.effects import applies
from purine.registry.lookup import lookup

__all__ = ["FIRST", "Heap", "tune_heap"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_SMALL, _LARGE, _LARGEST = 128 << 10, 3 << 20, 24 << 20
_HALF, _PIECE, _ALL = 32 << 20, 64 << 20, 1 << 30
_DENSE = PROFILE.mapped_bytes_per_flop
"""Bytes of results for each flop of a step above which clearing their pages costs too much."""
_PROBE, _TOUCHED = 64 << 20, 8 << 20
FIRST = 2
"""The iterations that map all but the smallest buffers."""


@dataclass(frozen=True, slots=True)
class Heap:
    """How a step uses malloc once its first iterations are complete.

    `mapped` says whether large buffers are mapped one by one; `least` is their size.
    """

    mapped: bool
    least: int

    def settle(self) -> None:
        """Use malloc as all later iterations do."""
        mallopt = _mallopt()
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, self.least)


def tune_heap(graph: Graph) -> Heap | None:
    """Set malloc up for the first iterations of a step; returns what to settle for after them.

    It holds for the whole process until the next call and cannot be undone. Nothing is changed
    where the system has no huge pages; the result is then None.
    """
    if not applies("heap") or not sys.platform.startswith("linux") or not _has_huge_pages():
        return None
    mallopt = _mallopt()
    if mallopt is None:
        return None
    ops = graph.ops.values()
    stations = {
        (op.location, "" if floats(op.lane) else op.lane) for op in ops if computes(op.lane)
    }
    lanes = len(stations)
    if lanes > 1:
        mallopt(_ARENA_MAX, 4 * lanes)
        mallopt(_TOP_PAD, _PIECE)
        mallopt(_TRIM_THRESHOLD, _ALL)
        heap = Heap(mapped=False, least=_HALF)
    else:
        written, flops = _volume(graph)
        mapped = written <= _DENSE * flops
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, _HALF)
        heap = Heap(mapped, _LARGE if mapped else _LARGEST)
    mallopt(_MMAP_THRESHOLD, _SMALL)
    return heap


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    try:
        function: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return None
    return function


def _volume(graph: Graph) -> tuple[int, int]:
    """The bytes of a step's large results, without those written in place, and its flops."""
    written = flops = 0
    for op in graph.ops.values():
        sizes = (size_in_bytes(graph.blobs[name]) for name in op.outputs if name)
        if not lookup(op).overwrites(op):
            written += sum(size for size in sizes if size >= _LARGE)
        flops += cost(op, graph.blobs).flops
    return written, flops


@cache
def _has_huge_pages() -> bool:
    """Whether touching a large tensor costs far fewer page faults than it has pages."""
    probe = torch.empty(_PROBE, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    probe[:_TOUCHED].fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return faults < _TOUCHED // resource.getpagesize() // 4
