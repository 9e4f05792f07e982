"""Settings of torch for GPUs (effects `gpu-math`, `gpu-memory` and `compile-cache`).

Torch has one setting of TF32 and one of `cudnn.deterministic` for the whole process. By default
convolutions of float32 may use TF32, matrix products may not, and cuDNN may choose algorithms whose
sums depend on the order in which blocks finish. While a run has iterations in flight, TF32 is as
the run was asked for, and algorithms are deterministic. `hold` waits for runs that want the other
TF32. The last `let_go` restores the values of before.

Torch has two interfaces to TF32 and refuses to read the older one where the two disagree. Both are
kept in agreement; where they disagreed before, only the newer one is changed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import torch

from purine.graph import Graph
from purine.machine.cores import on_gpus
from purine.machine.effects import applies

__all__ = ["expandable_segments", "hold", "let_go", "tf32_of", "use_compile_cache"]

_Older: TypeAlias = tuple[bool, bool] | None
_Newer: TypeAlias = tuple[str, str]

_convolutions = attrgetter("cudnn.conv")(torch.backends)  # not in torch's types

_changed = threading.Condition()
_holders = 0
_held = False
_before: tuple[_Older, _Newer, bool] = (None, ("none", "none"), False)


def tf32_of(graph: Graph, wanted: bool) -> bool | None:
    """The TF32 to hold while a graph runs; None leaves torch's settings alone.

    They are left alone without ops on GPUs, and where the effect is declined.
    """
    return wanted if on_gpus(graph) and applies("gpu-math") else None


def hold(tf32: bool) -> None:
    """Turn TF32 of float32 products and convolutions on or off until `let_go`.

    Waits while others hold the opposite value; the same value may be held many times.
    """
    global _holders, _held, _before
    with _changed:
        _changed.wait_for(lambda: _holders == 0 or _held == tf32)
        if _holders == 0:
            older = _older()
            newer = torch.backends.cuda.matmul.fp32_precision, _convolutions.fp32_precision
            _before = older, newer, torch.backends.cudnn.deterministic
            word = "tf32" if tf32 else "ieee"
            _set(None if older is None else (tf32, tf32), (word, word), deterministic=True)
        _held = tf32
        _holders += 1


def let_go() -> None:
    """End one `hold`."""
    global _holders
    with _changed:
        assert _holders > 0
        _holders -= 1
        if _holders == 0:
            older, newer, deterministic = _before
            _set(older, newer, deterministic=deterministic)
            _changed.notify_all()


def _older() -> _Older:
    """TF32 of matrix products and convolutions by the older interface; None if it refuses."""
    try:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set(older: _Older, newer: _Newer, *, deterministic: bool) -> None:
    if older is not None:  # these change the newer ones too, so they come first
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = older
    torch.backends.cuda.matmul.fp32_precision = newer[0]
    _convolutions.fp32_precision = newer[1]
    torch.backends.cudnn.deterministic = deterministic


@contextmanager
def expandable_segments() -> Iterator[None]:
    """Let the memory of a CUDA graph grow in one segment: segments of fixed sizes leave gaps.

    Nothing is changed where the user has set options of torch's allocator.
    """
    options = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if not applies("gpu-memory") or any(name in os.environ for name in options):
        yield
        return
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


def use_compile_cache() -> None:
    """Let Inductor and Triton keep compiled kernels in Purine's cache folder."""
    if not applies("compile-cache"):
        return
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import

    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = Path(os.environ.get("PURINE_CACHE", home / "purine"))
    # The import has set the folder to its default, unless the user had set another one.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir()):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
