"""Keeping OpenMP quick: the threads of kernels must not outnumber the cores.

Every thread that has called a parallel kernel keeps a pool of helpers. The OpenMP runtime counts
them all, and once there are more than cores, helpers sleep between kernels instead of spinning for
a moment: small kernels then take twice as long. The host's own pool, left over from whatever it
computed before the lanes took over, is one pool too many.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

__all__ = ["release_host_pool", "set_kernel_threads"]

_SOFT_PAUSE = 1


def set_kernel_threads(count: int) -> None:
    """How many threads kernels that are called from this thread may use."""
    # The first question in a thread gives it the number that any thread has set last: ask before.
    torch.get_num_threads()
    torch.set_num_threads(count)


def release_host_pool() -> bool:
    """End the helpers of the calling thread; they come back when it needs them."""
    pause = _pause()
    return pause is not None and pause(_SOFT_PAUSE) == 0


@cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP runtime that torch has loaded, if there is one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    libraries = {line.split()[-1] for line in maps.splitlines() if "omp" in line.rsplit("/", 1)[-1]}
    for library in sorted(libraries):
        try:
            found: Callable[[int], int] = ctypes.CDLL(library).omp_pause_resource_all
        except (AttributeError, OSError):
            continue
        return found
    return None


if hasattr(os, "register_at_fork"):
    # A child has the calling thread alone, and would wait for the helpers in its first kernel.
    os.register_at_fork(before=release_host_pool)
