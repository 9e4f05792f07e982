"""Gradients of layer norms by our own kernel: the same numbers, and no sums beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites import norms
from purine.compile.rewrites._recorded import Recorded
from tests.kernels.interpreter import interpret, needs_triton

aten = torch.ops.aten


def norm_step(*, around: bool) -> Callable[..., tuple[Tensor, ...]]:
    """A norm's gradients as a transformer has them, with or without a gradient around it."""

    def step(pulled: Tensor, x: Tensor, weight: Tensor, bias: Tensor, more: Tensor) -> object:
        width, weight = x.shape[-1], weight.to(x.dtype)
        _, mean, scale = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
        every = [True, True, True]
        found = aten.native_layer_norm_backward(
            pulled, x, [width], mean, scale, weight, bias, every
        )
        last = more + found[0] if around else found[0]
        flat = last.view(-1, width)
        return last, found[1], found[2], flat.sum(0, keepdim=True).view(width), flat * 2

    return step  # type: ignore[return-value]


def test_weights_of_another_precision_are_left_alone() -> None:
    """The kernel rounds the weight as x is."""

    def step(pulled: Tensor, x: Tensor, weight: Tensor, mean: Tensor) -> object:
        every = [True, True, True]
        return aten.native_layer_norm_backward(
            pulled, x, [96], mean, mean + 1, weight, weight, every
        )

    pulled, x = torch.randn(2, 1100, 96).bfloat16()
    module = recorded(step, [pulled, x, torch.randn(96), torch.zeros(1100, 1)])
    before = targets(module)
    norms.fuse_norm_gradients(Recorded(module))
    assert targets(module) == before


def arguments(dtype: torch.dtype, *, rows: int = 3, columns: int = 96) -> list[Tensor]:
    pulled, x, more = torch.randn(3, rows, 5, columns).to(dtype)
    weight, bias = torch.randn(2, columns)
    return [pulled, x, weight, bias.to(dtype), more]


def recorded(step: Callable[..., object], given: list[Tensor]) -> GraphModule:
    found: GraphModule = make_fx(step, tracing_mode="fake")(*given)
    return found


def targets(module: GraphModule) -> list[object]:
    return [node.target for node in module.graph.nodes]


def made_of_its_sums(
    pulled: Tensor, x: Tensor, weight: Tensor, bias: Tensor, more: Tensor
) -> tuple[Tensor, ...]:
    """A norm whose weight is made of its input, through which a gradient goes around it."""
    width, weight = x.shape[-1], weight.to(x.dtype)
    _, mean, scale = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    every = [True, True, True]
    found = aten.native_layer_norm_backward(pulled, x, [width], mean, scale, weight, bias, every)
    return found[0] + more * found[1], found[2]


KERNEL = """
import torch
from purine.compile.rewrites import norms
from purine.compile.rewrites._recorded import Recorded
from purine.kernels import norm as gpu_norm
from tests.compile.rewrites.test_norms import arguments, aten, made_of_its_sums, norm_step
from tests.compile.rewrites.test_norms import recorded, targets

torch.manual_seed(0)
norms._MANY_ROWS, gpu_norm._PROGRAMS = 4, 3
for around in (True, False):
    for columns in (96, 128, 1100):
        step = norm_step(around=around)
        given = arguments(torch.float16, columns=columns)
        module = recorded(step, given)
        norms.fuse_norm_gradients(Recorded(module))
        module.graph.eliminate_dead_code()
        module.recompile()
        calls = targets(module)
        assert calls.count(torch.ops.purine.layer_norm_gradient.default) == 1
        assert aten.native_layer_norm_backward.default not in calls
        assert aten.sum.dim_IntList not in calls
        assert calls.count(torch.ops.purine.totals.default) == 1
        assert aten.add.Tensor not in calls
        assert calls.count(aten._to_copy.default) == 1  # of the weight for the norm
        exact = norm_step(around=around)(*(value.half().double() for value in given))
        for found, wanted, plain in zip(module(*given), exact, step(*given), strict=True):
            assert found.shape == plain.shape and found.dtype == plain.dtype
            torch.testing.assert_close(found.double(), wanted, rtol=4e-3, atol=2e-2)

given = arguments(torch.float16)
module = recorded(made_of_its_sums, given)
norms.fuse_norm_gradients(Recorded(module))
module.graph.lint()
module.recompile()
assert torch.ops.purine.layer_norm_gradient.default in targets(module)
for found, wanted in zip(module(*given), made_of_its_sums(*given), strict=True):
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=2e-2)
"""


@needs_triton
def test_our_own_kernel_gives_the_numbers_of_torch() -> None:
    interpret(KERNEL)


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float32, 300), (torch.bfloat16, 3)], ids=["float32", "few rows"]
)
def test_other_norms_are_left_alone(dtype: torch.dtype, rows: int) -> None:
    given = arguments(dtype, rows=rows)
    module = recorded(norm_step(around=True), given)
    before = targets(module)
    norms.fuse_norm_gradients(Recorded(module))
    assert sorted(map(str, targets(module))) == sorted(map(str, before))
