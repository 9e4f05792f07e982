"""Keeping freed memory for the next iteration.

Kernels allocate the same sizes in every iteration. By default the C library gives large buffers back
to the system at once and gets them again page by page, which costs a tenth of a step; told to keep
them, it hands the same pages out again.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["keep_heap"]

_TRIM_THRESHOLD, _MMAP_MAX, _TOP_PAD = -1, -4, -2


@cache
def keep_heap() -> bool:
    """Ask glibc to keep freed buffers; False where the C library is another. Once per process."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_MMAP_MAX, 0))
