"""Kernels of our own, compiled for a GPU where there is none, as real nets launch them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.forked import python
from tests.kernels.interpreter import needs_triton

__all__ = ["launch_nothing"]


def launch_nothing() -> list[str]:
    """Compile kernels at each launch and go on; the list grows by their names.

    For scripts, before they launch any.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction, driver

    class Hopper:
        get_current_device = get_current_stream = staticmethod(lambda *_: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

    made: list[str] = []
    plain = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = plain(self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.asm["cubin"]
        made.append(self.__name__)

    driver.set_active(Hopper())
    JITFunction.run = run
    return made


PROLOGUE = """
import torch
from tests.kernels.test_compile import launch_nothing

made = launch_nothing()
low = torch.bfloat16
"""

ROWS = """
from purine.kernels.rows import sums_of_rows

for count, columns, dtype in ((8192, 768, torch.float32), (1, 1, low), (20000, 3000, low)):
    index = torch.zeros(count, dtype=torch.int64)
    sums, slots = torch.empty(count + 1, columns), torch.zeros(50257, dtype=torch.int32)
    sums_of_rows(index, torch.empty(count, columns, dtype=dtype), sums, slots)
assert made == ["_rank", "_sum_chunks", "_join_chunks"] * 2 + ["_sum_chunks", "_join_chunks"]
"""

SUMS = """
from purine.kernels.sums import gelu_gradient, joined, totals

x, parts = torch.empty(8192, 3072, dtype=low), torch.empty(3, 264, 768)
for form in ("tanh", "none"):
    gelu_gradient(x, x, form)
joined([x[:, :768], x[:, 768:1536], x[:, 1536:2304]])
totals([parts] * 25, torch.float32)
assert made == ["_pull", "_pull", "_join", "_total"]
"""

NORM = """
from purine.kernels.norm import layer_norm_gradient

for columns in (64, 768, 4096):
    x, level = torch.empty(8192, columns, dtype=low), torch.empty(8192, 1)
    for more in (None, x):
        layer_norm_gradient(x, x, level, level, torch.empty(columns), more)
assert made == ["_pull"] * 6
"""

LOSS = """
from purine.kernels.loss import softmax_loss

for width, classes in ((50304, 50257), (1024, 1000)):
    scores, labels = torch.empty(64, width, dtype=low), torch.zeros(64, dtype=torch.int64)
    softmax_loss(scores, labels, torch.ones(()), classes, -1)
assert made == ["_loss"] * 2
"""

POOL = """
from purine.kernels.pool import max_pool, max_pool_gradient

x = torch.empty(8, 64, 112, 112, dtype=low).to(memory_format=torch.channels_last)
window = ([3, 3], [2, 2], [1, 1])
y, places = max_pool(x, *window, [56, 56])
max_pool_gradient(y, places, *window, [112, 112])
assert made == ["_pool", "_pull"]
"""

ATTENTION = """
from purine.kernels.attention import attention_gradient

for length, size in ((512, 64), (100, 32)):
    q = torch.empty(2, length, 3 * 12 * size, dtype=low)
    q, k, v = (part.view(2, length, 12, size).transpose(1, 2) for part in q.chunk(3, -1))
    log = torch.empty(2, 12, length)
    for causal in (True, False):
        attention_gradient(v, q, k, v, v, log, causal, 0.125)
assert made == ["_inner", "_gradients"] * 4
"""


@needs_triton
@pytest.mark.parametrize(
    "launches",
    [ROWS, SUMS, NORM, LOSS, POOL, ATTENTION],
    ids=["rows", "sums", "norm", "loss", "pool", "attention"],
)
def test_kernels_compile_for_a_gpu(launches: str, tmp_path: Path) -> None:
    found = python("-c", PROLOGUE + launches, env={"TRITON_CACHE_DIR": str(tmp_path)})
    assert found.returncode == 0, found.stderr
