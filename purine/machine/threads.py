"""Numbers of OpenMP threads (effects `kernel-threads` and `host-pool`).

Every thread that has called a parallel kernel keeps a pool of OpenMP threads. The OpenMP runtime
counts all pools. Once there are more threads than cores, they sleep between kernels instead of
spinning for a moment, and small kernels take twice as long. So the pool of the host, left over from
its work before the run, is ended when a run starts.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from purine.machine.effects import applies

__all__ = ["release_host_pool", "set_kernel_threads"]

_SOFT_PAUSE = 1
_default = threading.Lock()
"""Held while the default number of threads is not the user's."""


def set_kernel_threads(count: int) -> None:
    """Set how many OpenMP threads kernels use that are called from the calling thread.

    Torch also makes `count` the default of all threads that have not computed yet. Another thread
    sets that default back, since the calling thread would set its own number as well.
    """
    if not applies("kernel-threads"):
        return
    with _default:
        before = torch.get_num_threads()  # the default, in a thread that has not computed yet
        if before == count:
            return
        torch.set_num_threads(count)
        restoring = threading.Thread(target=torch.set_num_threads, args=(before,))
        restoring.start()
        restoring.join()


def release_host_pool() -> bool:
    """End the OpenMP threads of the calling thread; its next parallel kernel starts them again."""
    pause = _pause() if applies("host-pool") else None
    return pause is not None and pause(_SOFT_PAUSE) == 0


@cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP runtime that torch has loaded, if it has that."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    libraries = {line.split()[-1] for line in maps.splitlines() if "omp" in line.rsplit("/", 1)[-1]}
    for library in sorted(libraries):
        try:
            pause: Callable[[int], int] = ctypes.CDLL(library).omp_pause_resource_all
        except (AttributeError, OSError):
            continue
        return pause
    return None


if hasattr(os, "register_at_fork"):
    # A child has only the calling thread: its first kernel would wait for the others for ever.
    os.register_at_fork(before=release_host_pool)
