"""Activation functions in other forms: the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.activations import recompute_relu_masks, shorten_gelu

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_gelus_are_gelus(dtype: torch.dtype) -> None:
    def gelu(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-6e4, 6e4, 0.0])]).to(dtype)
    module = make_fx(gelu, tracing_mode="fake")(x)
    shorten_gelu(Recorded(module))
    module.recompile()
    assert "gelu" not in module.code
    exact = gelu(x.double())
    assert module(x).dtype == dtype
    torch.testing.assert_close(module(x).double(), exact, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(("dtype", "form"), [(torch.float32, "tanh"), (torch.bfloat16, "none")])
def test_other_gelus_are_left_alone(dtype: torch.dtype, form: str) -> None:
    def gelu(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate=form)

    module = make_fx(gelu, tracing_mode="fake")(torch.randn(5).to(dtype))
    before = module.code
    shorten_gelu(Recorded(module))
    module.recompile()
    assert module.code == before


def norm_and_relu(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, pulled: Tensor
) -> tuple[Tensor, ...]:
    normed, *saved = aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, var, True, 0.1, 1e-5
    )
    y = aten.relu(normed)
    back = aten.threshold_backward(pulled, y, 0)
    rest = (weight, mean, var, saved[0], saved[1], True, 1e-5, [True, True, True])
    return y, *aten.native_batch_norm_backward(back, x, *rest)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("broken", [False, True], ids=["numbers", "NaN"])
def test_gradients_of_rectifiers_keep_their_numbers(dtype: torch.dtype, broken: bool) -> None:
    channels = 6
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.randn(4, channels, 5, 5, dtype=torch.float64)
    if broken:
        x[1, 1, 2, 3] = float("nan")
    given = [
        x.to(dtype).contiguous(memory_format=torch.channels_last),
        *(torch.randn(channels, dtype=wide) for _ in range(2)),
        *(torch.zeros(channels, dtype=wide), torch.ones(channels, dtype=wide)),
        torch.randn(4, channels, 5, 5).to(dtype),
    ]
    module = make_fx(norm_and_relu, tracing_mode="fake")(*given)
    recompute_relu_masks(Recorded(module))
    module.recompile()
    assert not module.graph.find_nodes(op="call_function", target=aten.threshold_backward.default)
    for found, wanted in zip(module(*given), norm_and_relu(*given), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_rectifiers_of_anything_else_are_left_alone() -> None:
    def other(x: Tensor, pulled: Tensor) -> Tensor:
        found: Tensor = aten.threshold_backward(pulled, aten.relu(x * 2), 0)
        return found

    module = make_fx(other, tracing_mode="fake")(torch.randn(3, 3), torch.randn(3, 3))
    before = len(module.graph.nodes)
    recompute_relu_masks(Recorded(module))
    assert len(module.graph.nodes) == before
