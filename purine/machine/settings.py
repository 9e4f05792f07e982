"""Torch's settings for GPUs while a run computes: TF32, and convolutions in a fixed order.

Torch has one setting each for the whole process. By default convolutions of float32 numbers may be
rounded and matrix products may not, and the library may take kernels for convolutions that add up
in the order in which blocks come. A run has its own settings as long as ops of it are in flight:
TF32 as it was asked for, and kernels that give the same bits from run to run. `hold` waits for runs
that want the other TF32, and the last `let_go` puts back what was there before.

Torch has two interfaces to TF32 and refuses to read the older one where the two disagree. Both are
kept in agreement; where they disagreed before, only the newer one is touched.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import torch

__all__ = ["hold", "let_go"]

_Older: TypeAlias = tuple[bool, bool] | None
_Newer: TypeAlias = tuple[str, str]

_changed = threading.Condition()
_holders = 0
_held = False
_before: tuple[_Older, _Newer, bool] = (None, ("none", "none"), False)


def hold(tf32: bool) -> None:
    """Let float32 products and convolutions of GPUs be in TF32, or not, until `let_go`.

    May be held several times; waits while others hold the opposite.
    """
    global _holders, _held, _before
    with _changed:
        _changed.wait_for(lambda: _holders == 0 or _held == tf32)
        if _holders == 0:
            older = _older()
            _before = older, _newer(), torch.backends.cudnn.deterministic
            word = "tf32" if tf32 else "ieee"
            _set(None if older is None else (tf32, tf32), (word, word), fixed_order=True)
        _held = tf32
        _holders += 1


def let_go() -> None:
    """End one `hold`."""
    global _holders
    with _changed:
        assert _holders > 0
        _holders -= 1
        if _holders == 0:
            older, newer, fixed_order = _before
            _set(older, newer, fixed_order=fixed_order)
            _changed.notify_all()


def _older() -> _Older:
    """The settings of matrix products and convolutions by the older interface, if it answers."""
    try:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _newer() -> _Newer:
    backends = torch.backends
    return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision


def _set(older: _Older, newer: _Newer, *, fixed_order: bool) -> None:
    if older is not None:  # these set the newer ones too, so they come first
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = older
    torch.backends.cuda.matmul.fp32_precision = newer[0]
    torch.backends.cudnn.conv.fp32_precision = newer[1]
    torch.backends.cudnn.deterministic = fixed_order
