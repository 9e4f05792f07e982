"""Rewrites of a recorded step before TorchInductor compiles it, where its kernels would be slower.

`REWRITES` lists them in the order in which they are applied. Each keeps the numbers up to rounding.
The environment variable `PURINE_WITHOUT_REWRITES` switches rewrites off, to find out which one
causes a bug: a list of names separated by commas, or `all`. The logger `purine.compile` tells, at
level DEBUG, which rewrites changed a step.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from torch.fx import GraphModule

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.activations import recompute_relu_masks, shorten_gelu
from purine.compile.rewrites.aligned import align_rows
from purine.compile.rewrites.attention import join_attention_gradients
from purine.compile.rewrites.cached_weights import cache_casts
from purine.compile.rewrites.image_conv import reshape_image_convolutions
from purine.compile.rewrites.norms import fuse_norm_gradients
from purine.compile.rewrites.pools import replace_max_pools
from purine.compile.rewrites.rows import duplicate_row_gathers
from purine.compile.rewrites.scalars import hoist_scalars
from purine.compile.rewrites.sums import batch_totals, fuse_bias_sums
from purine.errors import ConfigError
from purine.nearest import unknown_name

__all__ = ["REWRITES", "WITHOUT", "apply_rewrites", "rewrites_table", "switched_off"]

_log = logging.getLogger("purine.compile")

WITHOUT = "PURINE_WITHOUT_REWRITES"


class Condition(Enum):
    """Which steps a rewrite is applied to."""

    ALWAYS = "always"
    GPU = "on a GPU"
    TRITON = "on a GPU, with Triton"
    CACHED = "on a GPU, or where asked for"


@dataclass(frozen=True)
class Rewrite:
    """A rewrite: its function changes a recorded step and returns in how many places."""

    name: str
    condition: Condition
    function: Callable[[Recorded], int]

    @property
    def reason(self) -> str:
        """Why the rewrite is worth it: the last paragraph of its function's docstring."""
        paragraphs = (self.function.__doc__ or "").split("\n\n")
        return " ".join(paragraphs[-1].split())


def remove_dead_code(recorded: Recorded) -> int:
    """The rewrites before leave calls whose results nobody reads."""
    before = len(recorded.graph.nodes)
    recorded.graph.eliminate_dead_code()
    return before - len(recorded.graph.nodes)


REWRITES = (
    Rewrite("hoist-scalars", Condition.ALWAYS, hoist_scalars),
    Rewrite("align-rows", Condition.GPU, align_rows),
    Rewrite("join-attention-gradients", Condition.TRITON, join_attention_gradients),
    Rewrite("fuse-bias-sums", Condition.TRITON, fuse_bias_sums),
    Rewrite("max-pools", Condition.TRITON, replace_max_pools),
    Rewrite("fuse-norm-gradients", Condition.TRITON, fuse_norm_gradients),
    Rewrite("batch-totals", Condition.TRITON, batch_totals),
    Rewrite("shorten-gelu", Condition.GPU, shorten_gelu),
    Rewrite("relu-masks", Condition.GPU, recompute_relu_masks),
    Rewrite("image-convolutions", Condition.GPU, reshape_image_convolutions),
    Rewrite("row-gathers", Condition.GPU, duplicate_row_gathers),
    Rewrite("dead-code", Condition.GPU, remove_dead_code),
    Rewrite("cache-weights", Condition.CACHED, cache_casts),
)
"""All rewrites, in the order in which they are applied."""


def apply_rewrites(module: GraphModule, *, gpu: bool, cache: bool | None = None) -> Recorded:
    """Apply all rewrites whose condition holds to a recorded function, in place.

    With `cache`, copies of weights in low precision are cached between calls; by default on a GPU.
    """
    triton = importlib.util.find_spec("triton") is not None
    holds = {
        Condition.ALWAYS: True,
        Condition.GPU: gpu,
        Condition.TRITON: gpu and triton,
        Condition.CACHED: gpu if cache is None else cache,
    }
    recorded, skipped = Recorded(module, triton), switched_off()
    for rewrite in REWRITES:
        if not holds[rewrite.condition]:
            continue
        if rewrite.name in skipped:
            _log.info("rewrite %s is switched off by %s", rewrite.name, WITHOUT)
            continue
        count = rewrite.function(recorded)
        if count:
            _log.debug("rewrite %s applied in %d places", rewrite.name, count)
    module.recompile()
    return recorded


def switched_off() -> frozenset[str]:
    """The names of the rewrites that `PURINE_WITHOUT_REWRITES` switches off."""
    known = [rewrite.name for rewrite in REWRITES]
    names = [name.strip() for name in os.environ.get(WITHOUT, "").split(",") if name.strip()]
    if names == ["all"]:
        return frozenset(known)
    for name in sorted(set(names).difference(known)):
        expected = "names of rewrites, separated by commas, or all"
        remedy = f"one of {', '.join(known)}, or all"
        raise unknown_name(
            ConfigError, "rewrite", name, known, expected=expected, remedy=remedy, where=WITHOUT
        )
    return frozenset(names)


def rewrites_table() -> list[tuple[str, str, str]]:
    """One row for each rewrite, in order: its name, its condition and its reason.

    >>> rewrites_table()[0][:2]
    ('hoist-scalars', 'always')
    """
    return [(rewrite.name, rewrite.condition.value, rewrite.reason) for rewrite in REWRITES]
