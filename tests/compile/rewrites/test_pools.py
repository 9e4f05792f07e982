"""Max pools by our own kernels give the numbers of torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.pools import replace_max_pools
from tests.kernels.interpreter import interpret, needs_triton

aten = torch.ops.aten

POOLS = """
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from purine.compile.rewrites.pools import replace_max_pools
from purine.compile.rewrites._recorded import Recorded

aten = torch.ops.aten
torch.manual_seed(0)
cases = [(3, 2, 0, True, 70), (3, 1, 1, False, 24), (2, 2, 0, False, 8), (5, 3, 2, True, 9)]
for kernel, step, pad, ceil, channels in cases:
    def pooled(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = F.max_pool2d(x, kernel, step, pad, ceil_mode=ceil)
            return y, torch.autograd.grad((y * y).sum(), x)[0]

    x = torch.randn(2, channels, 9, 11).round(decimals=1).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last)
    module = make_fx(pooled, tracing_mode="fake")(x)
    replace_max_pools(Recorded(module))
    module.recompile()
    assert not module.graph.find_nodes(
        op="call_function", target=aten.max_pool2d_with_indices_backward.default
    )
    for found, wanted in zip(module(x), pooled(x), strict=True):
        assert found.stride() == wanted.stride()
        assert torch.allclose(found, wanted, rtol=2e-2, atol=2e-2), (kernel, step, pad, ceil)
    assert torch.equal(module(x)[0], pooled(x)[0])
"""


@needs_triton
def test_our_own_kernels_give_the_numbers_of_torch() -> None:
    interpret(POOLS)


def test_pools_whose_places_are_asked_for_are_left_alone() -> None:
    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices(x, [2, 2])
        return found

    x = torch.randn(2, 16, 4, 4).bfloat16().contiguous(memory_format=torch.channels_last)
    module = make_fx(pooled, tracing_mode="fake")(x)
    assert replace_max_pools(Recorded(module)) == 0
    assert len(Recorded(module).calls(aten.max_pool2d_with_indices.default)) == 1
