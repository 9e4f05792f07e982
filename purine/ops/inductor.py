"""Functions of tensors compiled by TorchInductor: the one module that knows how to ask it.

A function is recorded on fake tensors in the form and layout of its first arguments, then compiled
for exactly these. What it writes into its arguments is written there, without a copy. What was
compiled stays on disk, by the contents of the recorded function and the versions of everything; the
folder is `PURINE_CACHE`, or `purine` among the user's caches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["compile_function"]

_OPTIONS: Mapping[str, object] = {
    "triton.cudagraphs": False,  # whole steps are captured by the run
    "coordinate_descent_tuning": False,
}


def compile_function(
    function: Callable[..., Any],
    arguments: Sequence[Tensor],
    options: Mapping[str, object] | None = None,
) -> Callable[..., Sequence[Tensor]]:
    """A compiled form of a function, for arguments of the form of these; it returns a sequence."""
    _use_cache()
    with torch.no_grad():
        recorded = make_fx(function, tracing_mode="fake")(*arguments)
        made: Callable[..., Sequence[Tensor]] = torch._inductor.compile(
            recorded, list(arguments), options={**_OPTIONS, **(options or {})}
        )
    return made


def _use_cache() -> None:
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = Path(os.environ.get("PURINE_CACHE", home / "purine"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    import torch._inductor  # noqa: F401  (its settings read the environment)
