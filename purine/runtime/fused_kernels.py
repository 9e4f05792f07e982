"""The kernels of a run's fused ops: each is compiled once, and captured if it is on a GPU."""

from __future__ import annotations

from purine.compile.fused import FusedKernel, as_kernel, captured, compiled
from purine.graph import Op
from purine.registry.kind import Kernel
from purine.registry.lookup import lookup
from purine.runtime.streams import is_gpu

__all__ = ["FusedKernels"]


class FusedKernels:
    """Makes the kernels of fused ops; an op is compiled once, however often lanes start."""

    def __init__(self, compiled: bool | None) -> None:
        self.compiled = compiled
        self._kernels: dict[str, FusedKernel] = {}

    def __call__(self, op: Op) -> Kernel:
        gpu = is_gpu(op.location)
        if not (gpu if self.compiled is None else self.compiled):
            return lookup(op).bind_overwrite(op)
        if op.name not in self._kernels:
            self._kernels[op.name] = compiled(op)
        kernel = self._kernels[op.name]
        return captured(op, kernel) if gpu else as_kernel(kernel)
