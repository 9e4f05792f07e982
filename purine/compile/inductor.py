"""Functions of tensors compiled by TorchInductor: the only module that calls it.

A function is recorded on fake tensors with the shapes and strides of its first arguments, rewritten
(see `rewrites`), and compiled for exactly these. It writes into its arguments in place. Compiled
code is cached on disk under a key of the recorded graph, the versions of compiler and settings, and
our own code (see `cache_key`). The folder is `PURINE_CACHE`, or `purine` among the user's caches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._config_module import ConfigModule

from purine.analysis.tracing import ONE_AT_A_TIME
from purine.compile.cache_key import own_code
from purine.compile.rewrites import apply_rewrites
from purine.compile.rewrites.cached_weights import WeightCache
from purine.machine.settings import use_compile_cache

__all__ = ["CompiledFunction", "compile_function"]

_Function: TypeAlias = Callable[..., Sequence[Tensor]]

_OPTIONS: Mapping[str, object] = {
    "deterministic": True,  # otherwise timing decides how a reduction is split
    "triton.cudagraphs": False,  # `fused.py` captures
    "triton.mix_order_reduction": False,  # it would finish sums outside of its kernels
}

_CAREFUL: Mapping[str, object] = {"loop_ordering_after_fusion": False}
"""torch 2.11 fails without it where updates and norms read the same gradients."""

_log = logging.getLogger("purine.compile")


class CompiledFunction:
    """A compiled function with its cached copies of weights."""

    def __init__(self, scalars: _Function | None, function: _Function, cache: WeightCache) -> None:
        self._scalars, self._function, self._cache = scalars, function, cache

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        cache = self._cache
        cache.refresh(tensors)
        cache.forget()
        scalars = self._scalars(*tensors) if self._scalars is not None else ()
        results = self._function(*tensors, *scalars, *cache.copies)
        cache.note(tensors)
        return results

    def refresh(self, tensors: Sequence[Tensor]) -> None:
        """Update the cached copies of arguments; call it before each replay of a captured call."""
        self._cache.refresh(tensors)


def compile_function(
    function: Callable[..., object], arguments: Sequence[Tensor], *, cache: bool | None = None
) -> CompiledFunction:
    """Compile a function for arguments with the shapes, strides and dtypes of these.

    With `cache` (by default on a GPU) it caches copies in low precision of weights it updates.
    """
    gpu = any(value.is_cuda for value in arguments)
    with ONE_AT_A_TIME, torch.no_grad():
        use_compile_cache()
        module = make_fx(function, tracing_mode="fake")(*arguments)
        recorded = apply_rewrites(module, gpu=gpu, cache=cache)
        weights = WeightCache(recorded.casts, arguments)
        scalars, values = None, tuple[Tensor, ...]()
        if recorded.scalars is not None:
            scalars = _compiled(recorded.scalars, arguments)
            values = tuple(scalars(*arguments))
        compiled = _compiled(module, [*arguments, *values, *weights.copies])
    return CompiledFunction(scalars, compiled, weights)


def _compiled(module: GraphModule, arguments: Sequence[Tensor]) -> _Function:
    options = {**_OPTIONS, **_norm_options(module)}
    _register_fallbacks(module)
    try:
        return _compiled_or_cached(module, arguments, options)
    except Exception:
        _log.debug("the compiler failed and is tried again with safer options", exc_info=True)
        return _compiled_or_cached(module, arguments, {**options, **_CAREFUL})


def _compiled_or_cached(
    module: GraphModule, arguments: Sequence[Tensor], options: Mapping[str, object]
) -> _Function:
    """Compile a function, or load it from the cache, which needs a shape environment."""
    # Slow to import.
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True))
    config: object = torch.compiler.config
    assert isinstance(config, ConfigModule)
    with tracing(context), config.patch({"cache_key_tag": own_code()}):
        compiled: object = compile_fx(
            module, list(arguments), config_patches=dict(options), ignore_shape_env=True
        )
    assert callable(compiled)
    return compiled


def _register_fallbacks(module: GraphModule) -> None:
    """Register our own ops with Inductor as calls that it leaves alone.

    For an unknown op, torch 2.11 first formats how all its arguments are computed, each shared
    expression many times over: minutes for an op with many arguments.
    """
    # Slow to import.
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
    from torch._library.utils import get_layout_constraint_tag

    register: Callable[..., object] = make_fallback
    for op in {node.target for node in module.graph.nodes}:
        if isinstance(op, OpOverload) and op.namespace == "purine" and op not in lowerings:
            tag = get_layout_constraint_tag(op, with_default=True)
            register(op, layout_constraint=tag_to_layout_constraint(tag))


def _norm_options(module: GraphModule) -> Mapping[str, object]:
    """Inductor's options for a step with norms on a GPU.

    Our kernel for layer norms reads every sum of a residual net from memory: each is stored once.
    Batch norms that are side by side are combined into one kernel. Inputs of a batch norm's
    gradient are inlined up to a number of sources, above which residual nets would read their sums
    many times.
    """
    aten = torch.ops.aten
    calls = {node.target: node for node in module.graph.nodes}
    if any(str(target) == "purine.layer_norm_gradient.default" for target in calls):
        return {"realize_reads_threshold": 1}
    norm = calls.get(aten.native_batch_norm_backward.default)
    if norm is None or not norm.meta["val"][0].is_cuda:
        return {}
    return {
        "combo_kernels": True,
        "realize_reads_threshold": 6 if aten.threshold_backward.default in calls else 7,
        "realize_opcount_threshold": 100,
    }
