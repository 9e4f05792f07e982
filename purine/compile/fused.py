"""Fused ops as kernels: compiled at their first call, and on a GPU captured as CUDA graphs.

What a compiler cannot do must not end a job: then the ops of a body run one after the other, which
is said once. So it is where a kernel cannot be captured, because it waits for the GPU.

A captured kernel is replayed at fixed addresses. States stay where they are, since it writes them
over; whatever else it reads is copied to its place first, and its other results are copied out, so
that others may read them while it is replayed again. Learning rate, iteration and seed are blobs,
so nothing has to be captured again. What a kernel keeps for itself from call to call is brought up
to date before each replay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from purine.compile.inductor import CompiledFunction, compile_function
from purine.errors import in_a_line
from purine.graph import Op
from purine.kinds.fused import bind_grouped, body_of, over_of
from purine.machine.settings import expandable_segments
from purine.registry.kind import Kernel, Results

__all__ = ["WARM_UP", "FusedKernel", "as_kernel", "captured", "compiled"]

_log = logging.getLogger("purine")

WARM_UP = 2
"""Calls before a kernel is captured: libraries choose their algorithms in these."""


@dataclass(frozen=True)
class FusedKernel:
    """What runs a fused op, and what goes before each replay of a captured call of it."""

    run: Callable[..., list[Tensor]]
    refresh: Callable[[Sequence[Tensor]], None]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the op."""
        return self.run(*tensors)


def compiled(op: Op) -> FusedKernel:
    """The kernel of a fused op, compiled for the arguments of its first call.

    It writes new values of states over the old ones, and returns these.
    """
    run, over = bind_grouped(op), dict(over_of(op))
    made: Callable[..., Sequence[Tensor]] | None = None

    def written(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = run(*tensors)
        results = (found,) if isinstance(found, Tensor) else found
        for place, result in enumerate(results):
            if place in over:
                tensors[over[place]].copy_(result)
        return tuple(result for place, result in enumerate(results) if place not in over)

    def kernel(*tensors: Tensor) -> list[Tensor]:
        nonlocal made
        if made is None:
            begin, count = time.perf_counter(), len(body_of(op).ops)
            _log.info("compiling %s: %d ops at %s", op.name, count, op.location)
            try:
                made = compile_function(written, tensors)
                _log.info("compiled %s in %.1f s", op.name, time.perf_counter() - begin)
            except Exception as error:
                made = written
                _log.warning("%s is not compiled and runs op by op: %s", op.name, in_a_line(error))
                _log.debug("why %s is not compiled", op.name, exc_info=True)
        found = iter(made(*tensors))
        count = len(op.outputs)
        return [tensors[over[k]] if k in over else next(found) for k in range(count)]

    def refresh(tensors: Sequence[Tensor]) -> None:
        if isinstance(made, CompiledFunction):
            made.refresh(tensors)

    return FusedKernel(kernel, refresh)


def captured(op: Op, kernel: FusedKernel) -> Kernel:
    """A kernel for a GPU that is called a few times, then captured, then replayed."""
    over = dict(over_of(op))
    states = set(over.values())
    calls = 0
    graph: Any = None
    refused = False
    fixed: list[Tensor] = []
    results: list[Tensor] = []

    def capture(tensors: Sequence[Tensor]) -> None:
        nonlocal graph, fixed, results
        fixed = [value if k in states else _copy(value) for k, value in enumerate(tensors)]
        kernel.refresh(fixed)
        made = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        thread = {"capture_error_mode": "thread_local"}
        with expandable_segments(), torch.cuda.graph(made, stream=stream, **thread):
            results = kernel(*fixed)
        graph = made

    def replay(*tensors: Tensor) -> Results:
        nonlocal calls, refused
        calls += 1
        if calls > WARM_UP and graph is None and not refused:
            try:
                capture(tensors)
            except Exception as error:
                refused = True
                fixed.clear()
                _log.warning("%s is not captured: %s", op.name, in_a_line(error))
                _log.debug("why %s is not captured", op.name, exc_info=True)
        if graph is None:
            return _as_results(kernel(*tensors))
        for mine, given in zip(fixed, tensors, strict=True):
            if mine.data_ptr() != given.data_ptr():
                mine.copy_(given)
        kernel.refresh(fixed)
        graph.replay()
        return _as_results(
            [value if place in over else _copy(value) for place, value in enumerate(results)]
        )

    return replay


def as_kernel(kernel: FusedKernel) -> Kernel:
    """A compiled kernel as others are: one result is not in a list."""
    return lambda *tensors: _as_results(kernel(*tensors))


def _copy(value: Tensor) -> Tensor:
    """A copy that lies in memory as the value does: what reads it was compiled for that."""
    if 0 in value.stride():
        return value.clone()
    room = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    return room.copy_(value)


def _as_results(values: list[Tensor]) -> Results:
    return tuple(values) if len(values) > 1 else values[0]
