"""Where the memory of activations comes from.

A training step allocates and frees hundreds of megabytes in large buffers of many sizes. Kept in
the C library's heap they cost no page faults, but the heap breaks up and peaks at half as much
again as is ever in use. Taken from the system one by one nothing is wasted, but every page faults,
each time. With huge pages the second way costs next to nothing, so that is the way where the system
has them; smaller buffers stay in the heap.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from functools import cache

import torch

__all__ = ["tune_heap"]

_MMAP_THRESHOLD = -3
_LARGE = 3 << 20
_PROBE, _TOUCHED = 64 << 20, 8 << 20


@cache
def tune_heap() -> bool:
    """Give large buffers pages of their own, if those are huge; whether they are. Once per process.

    Without huge pages the C library's own ways are left as they are.
    """
    if not sys.platform.startswith("linux") or not _has_huge_pages():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE))


def _has_huge_pages() -> bool:
    """Whether touching a large tensor costs far fewer page faults than it has pages."""
    probe = torch.empty(_PROBE, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    probe[:_TOUCHED].fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return faults < _TOUCHED // resource.getpagesize() // 4
