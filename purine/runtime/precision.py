"""TF32 on GPUs: whether products of float32 numbers may be rounded, while a run computes.

Torch has one setting for the whole process, and by default convolutions may be rounded and matrix
products may not. A run has its own as long as ops of it are in flight: `hold` waits for runs that
want the other one, and the last `let_go` puts back what was there before.

Torch has two interfaces to the setting and refuses to read the older one where the two disagree.
Both are kept in agreement; where they disagreed before, only the newer one is touched.
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
_before: tuple[_Older, _Newer] = (None, ("none", "none"))


def hold(tf32: bool) -> None:
    """Let float32 products and convolutions of GPUs be in TF32, or not, until `let_go`.

    May be held several times; waits while others hold the opposite.
    """
    global _holders, _held, _before
    with _changed:
        _changed.wait_for(lambda: _holders == 0 or _held == tf32)
        if _holders == 0:
            _before = older, _ = _older(), _newer()
            word = "tf32" if tf32 else "ieee"
            _set(None if older is None else (tf32, tf32), (word, word))
        _held = tf32
        _holders += 1


def let_go() -> None:
    """End one `hold`."""
    global _holders
    with _changed:
        assert _holders > 0
        _holders -= 1
        if _holders == 0:
            _set(*_before)
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


def _set(older: _Older, newer: _Newer) -> None:
    if older is not None:  # these set the newer ones too, so they come first
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = older
    torch.backends.cuda.matmul.fp32_precision = newer[0]
    torch.backends.cudnn.conv.fp32_precision = newer[1]
