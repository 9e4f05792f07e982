"""Fused ops as kernels: compiled at their first call, and on a GPU captured as CUDA graphs.

If the compiler fails, the ops of the body run one after the other. A kernel that cannot be
captured, because it waits for the GPU, is launched anew each time. A warning tells either.

A captured kernel is replayed at fixed addresses. It updates states in place. All other inputs are
copied to fixed buffers before a replay, and all other results are copied out of them, so that they
can be read during the next replay. Learning rate, iteration and seed are blobs, so nothing has to
be captured again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from purine.compile.inductor import CompiledFunction, compile_function
from purine.compile.rewrites import switched_off
from purine.errors import in_a_line
from purine.graph import Op
from purine.kinds.fused import bind_grouped, body_of, over_of
from purine.machine.settings import expandable_segments
from purine.registry.kind import Kernel, Results

__all__ = ["WARM_UP", "FusedKernel", "as_kernel", "captured", "compiled"]

_log = logging.getLogger("purine.compile")

WARM_UP = 2
"""Calls before a kernel is captured: libraries choose their algorithms during these."""


@dataclass(frozen=True)
class FusedKernel:
    """The kernel of a fused op, and what has to be called before each replay of a captured call."""

    run: Callable[..., list[Tensor]]
    refresh: Callable[[Sequence[Tensor]], None]


def compiled(op: Op) -> FusedKernel:
    """The kernel of a fused op, compiled for the arguments of its first call.

    It updates states in place and returns them among its results.
    """
    switched_off()  # refuses unknown names here, where no failure of the compiler is expected
    body, over = bind_grouped(op), dict(over_of(op))
    function: Callable[..., Sequence[Tensor]] | None = None

    def in_place(*tensors: Tensor) -> tuple[Tensor, ...]:
        results = body(*tensors)
        results = (results,) if isinstance(results, Tensor) else results
        for position, result in enumerate(results):
            if position in over:
                tensors[over[position]].copy_(result)
        return tuple(result for position, result in enumerate(results) if position not in over)

    def kernel(*tensors: Tensor) -> list[Tensor]:
        nonlocal function
        if function is None:
            begin, count = time.perf_counter(), len(body_of(op).ops)
            _log.info("compiling %s: %d ops at %s", op.name, count, op.location)
            try:
                function = compile_function(in_place, tensors)
                _log.info("compiled %s in %.1f s", op.name, time.perf_counter() - begin)
            except Exception as error:
                function = in_place
                _log.warning("%s is not compiled and runs op by op: %s", op.name, in_a_line(error))
                _log.debug("why %s is not compiled", op.name, exc_info=True)
        results = iter(function(*tensors))
        count = len(op.outputs)
        return [tensors[over[k]] if k in over else next(results) for k in range(count)]

    def refresh(tensors: Sequence[Tensor]) -> None:
        if isinstance(function, CompiledFunction):
            function.refresh(tensors)

    return FusedKernel(kernel, refresh)


def captured(op: Op, kernel: FusedKernel) -> Kernel:
    """A kernel for a GPU that is called a few times, then captured, then replayed."""
    over = dict(over_of(op))
    states = set(over.values())
    calls = 0
    graph: torch.cuda.CUDAGraph | None = None
    refused = False
    inputs: list[Tensor] = []
    results: list[Tensor] = []

    def capture(tensors: Sequence[Tensor]) -> None:
        nonlocal graph, inputs, results
        inputs = [value if k in states else _copy(value) for k, value in enumerate(tensors)]
        kernel.refresh(inputs)
        capturing = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with (
            expandable_segments(),
            torch.cuda.graph(capturing, stream=stream, capture_error_mode="thread_local"),
        ):
            results = kernel.run(*inputs)
        graph = capturing

    def replay(*tensors: Tensor) -> Results:
        nonlocal calls, refused
        calls += 1
        if calls > WARM_UP and graph is None and not refused:
            try:
                capture(tensors)
            except Exception as error:
                refused = True
                inputs.clear()
                _log.warning("%s is not captured: %s", op.name, in_a_line(error))
                _log.debug("why %s is not captured", op.name, exc_info=True)
        if graph is None:
            return _as_results(kernel.run(*tensors))
        for buffer, value in zip(inputs, tensors, strict=True):
            if buffer.data_ptr() != value.data_ptr():
                buffer.copy_(value)
        kernel.refresh(inputs)
        graph.replay()
        return _as_results(
            [value if k in over else _copy(value) for k, value in enumerate(results)]
        )

    return replay


def as_kernel(kernel: FusedKernel) -> Kernel:
    """A compiled kernel with the results of any other kernel: a single one is not in a list."""
    return lambda *tensors: _as_results(kernel.run(*tensors))


def _copy(value: Tensor) -> Tensor:
    """A copy with the same strides: its readers were compiled for these."""
    if 0 in value.stride():
        return value.clone()
    copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _as_results(values: list[Tensor]) -> Results:
    return tuple(values) if len(values) > 1 else values[0]
