"""GELU in a shorter form: the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.gelu import shorten_gelu


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
