"""Where the memory of activations comes from.

A training step allocates and frees hundreds of megabytes in large buffers of many sizes. Kept in
the C library's heap they cost no page faults, but the heap breaks up and peaks at a quarter to a
half more than is ever in use. Taken from the system one by one nothing is wasted, but the system
clears every page, each time; huge pages make that bearable, for steps that compute much with each
byte. So that is the way where the system has huge pages and the step does; else the heap is kept,
but for the largest buffers.

Lanes that compute side by side have heaps of their own, made of pieces of 64 MB. These are kept
too: giving pieces back and getting them again makes all lanes of the process wait for each other.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from functools import cache

import torch

from purine.analysis.cost import PROFILE, cost
from purine.analysis.infer import size_in_bytes
from purine.graph import Graph
from purine.registry.lookup import lookup

__all__ = ["tune_heap"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_LARGE, _LARGEST, _HALF, _PIECE, _ALL = 3 << 20, 24 << 20, 32 << 20, 64 << 20, 1 << 30
_DENSE = PROFILE.mapped_bytes_per_flop
"""Bytes of results for each flop of a step above which clearing their pages costs too much."""
_PROBE, _TOUCHED = 64 << 20, 8 << 20


def tune_heap(graph: Graph) -> bool:
    """Fit the C library's heap to a step; whether large buffers get pages of their own.

    A setting of the whole process: the last step counts. Without huge pages the C library's own
    ways are left as they are.
    """
    if not sys.platform.startswith("linux") or not _has_huge_pages():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    lanes = _lanes(graph)
    if lanes > 1:
        mallopt(_ARENA_MAX, 4 * lanes)
        mallopt(_TOP_PAD, _PIECE)
        mallopt(_TRIM_THRESHOLD, _ALL)
        mallopt(_MMAP_THRESHOLD, _HALF)
        return False
    made, flops = _volume(graph)
    single = made <= _DENSE * flops
    limit = _LARGE if single else _LARGEST
    mallopt(_ARENA_MAX, 1)
    mallopt(_TRIM_THRESHOLD, _HALF)
    return bool(mallopt(_MMAP_THRESHOLD, limit)) and single


def _lanes(graph: Graph) -> int:
    lanes = {(op.location, op.lane) for op in graph.ops.values() if op.lane.startswith("compute")}
    return len(lanes)


def _volume(graph: Graph) -> tuple[int, int]:
    """The bytes of a step's large results, states not counted, and its flops."""
    made = flops = 0
    for op in graph.ops.values():
        sizes = (size_in_bytes(graph.blobs[name]) for name in op.outputs if name)
        if not lookup(op).overwrites(op):
            made += sum(size for size in sizes if size >= _LARGE)
        flops += cost(op, graph.blobs).flops
    return made, flops


@cache
def _has_huge_pages() -> bool:
    """Whether touching a large tensor costs far fewer page faults than it has pages."""
    probe = torch.empty(_PROBE, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    probe[:_TOUCHED].fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return faults < _TOUCHED // resource.getpagesize() // 4
