"""Settings of malloc for the activations of a step (effect `heap`).

A step allocates and frees hundreds of megabytes in large buffers of many sizes. If they come from
the heap, they cost no page faults, but fragmentation raises the peak by a quarter to a half. If
each is mapped from the system, nothing is wasted, but the system clears every page each time. With
huge pages that is cheap enough for steps that compute much per byte. So large buffers of such steps
are mapped; other steps map only the largest buffers.

Compute lanes that run in parallel allocate from arenas of their own, which consist of pieces of
64 MB. These are never returned to the system: returning and mapping pieces takes a lock that all
lanes of the process wait for.
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
from purine.graph.nodes import computes, floats
from purine.machine.effects import applies
from purine.registry.lookup import lookup

__all__ = ["tune_heap"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_LARGE, _LARGEST, _HALF, _PIECE, _ALL = 3 << 20, 24 << 20, 32 << 20, 64 << 20, 1 << 30
_DENSE = PROFILE.mapped_bytes_per_flop
"""Bytes of results for each flop of a step above which clearing their pages costs too much."""
_PROBE, _TOUCHED = 64 << 20, 8 << 20


def tune_heap(graph: Graph) -> bool:
    """Set malloc up for a step; returns whether large buffers are mapped one by one.

    It holds for the whole process until the next call and cannot be undone. Nothing is changed
    where the system has no huge pages.
    """
    if not applies("heap") or not sys.platform.startswith("linux") or not _has_huge_pages():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    ops = graph.ops.values()
    stations = {
        (op.location, "" if floats(op.lane) else op.lane) for op in ops if computes(op.lane)
    }
    lanes = len(stations)
    if lanes > 1:
        mallopt(_ARENA_MAX, 4 * lanes)
        mallopt(_TOP_PAD, _PIECE)
        mallopt(_TRIM_THRESHOLD, _ALL)
        mallopt(_MMAP_THRESHOLD, _HALF)
        return False
    written, flops = _volume(graph)
    mapped = written <= _DENSE * flops
    mallopt(_ARENA_MAX, 1)
    mallopt(_TRIM_THRESHOLD, _HALF)
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE if mapped else _LARGEST)) and mapped


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
