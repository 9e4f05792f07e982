"""Gradients of attention as one matrix, and where recorded functions use the kernel for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.attention import join_attention_gradients
from purine.compile.rewrites.sums import fuse_bias_sums
from tests.kernels.interpreter import interpret, needs_triton
from tests.kernels.test_sums import calls

aten = torch.ops.aten


def inputs(
    batch: int, heads: int, length: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """A gradient, and queries, keys and values that one layer has made side by side."""
    whole = torch.randn(batch, length, 3 * heads, size).to(dtype).permute(0, 2, 1, 3)
    gradient = torch.randn(batch, length, heads, size).to(dtype).permute(0, 2, 1, 3)
    return gradient, *whole.split(heads, 1)


def attended(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The results of an attention, and the logarithms of its sums of exponentials."""
    scores = q @ k.transpose(-2, -1) * scale
    if causal:
        scores = scores.masked_fill(~scores.new_ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """[batch, heads, tokens, size] each as the columns of one matrix."""
    whole = torch.cat(list(pieces), 1).permute(0, 2, 1, 3)
    batch, tokens, heads, size = whole.shape
    return whole.clone(memory_format=torch.contiguous_format).view(batch * tokens, heads * size)


def cudnn(
    *given: Tensor,
    causal: bool = True,
    dropout: float = 0.0,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    *rest, log = given
    state = torch.zeros((), dtype=torch.int64)
    length = log.shape[-1]
    found: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_cudnn_attention_backward(
        *(*rest, log.unsqueeze(-1), state, state, bias, None, None),
        *(length, length, dropout, causal),
        scale=scale,
    )
    return found


def flash(*given: Tensor, causal: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    state = torch.zeros(2, dtype=torch.uint64)
    length = given[-1].shape[-1]
    found: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_backward(
        *(*given, None, None, length, length, 0.0, causal, state, state)
    )
    return found


def rewritten(function: Callable[..., object], *arguments: Tensor) -> GraphModule:
    found: GraphModule = make_fx(function, tracing_mode="fake")(*arguments)
    join_attention_gradients(Recorded(found))
    fuse_bias_sums(Recorded(found))
    found.graph.eliminate_dead_code()
    found.graph.lint()
    found.recompile()
    return found


KERNELS = """
import torch
from purine.kernels import attention as gpu_attention
from purine.kernels.attention import attention_gradient
from tests.kernels.interpreter import widen_products
from tests.kernels.test_attention import attended, inputs, joined

widen_products()
torch.manual_seed(0)
half, bfloat = (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)
cases = [
    (32, (2, 1, 64, 16), half),
    (32, (1, 2, 40, 32), bfloat),
    (64, (1, 1, 128, 64), bfloat),
    (16, (1, 2, 40, 16), half),
    (64, (2, 1, 7, 16), half),
]
for gpu_attention.BLOCK, shape, (dtype, off) in cases:
    for causal, scale in [(True, shape[3] ** -0.5), (False, 0.3)]:
        given = inputs(*shape, dtype)
        exact = [item.double().requires_grad_() for item in given[1:]]
        y, log = attended(*exact, causal=causal, scale=scale)
        wanted = joined(torch.autograd.grad(y, exact, given[0].double()))
        given = (*given, y.detach().to(dtype), log.detach().float(), causal, scale)
        whole, parts = attention_gradient(*given)
        assert whole.dtype == dtype and parts.dtype == torch.float32
        for found, right in zip(whole.chunk(3, 1), wanted.chunk(3, 1), strict=True):
            assert (found.double() - right).abs().max() < off * right.abs().max()
        torch.testing.assert_close(parts.sum(0), whole.float().sum(0), rtol=1e-5, atol=1e-4)
        assert all(map(torch.equal, attention_gradient(*given), (whole, parts)))
torch.library.opcheck(attention_gradient, given, test_utils="test_faketensor")

scattered = [item.transpose(2, 3).contiguous().transpose(2, 3) for item in given[:5]]
for found, right in zip(attention_gradient(*scattered, *given[5:]), (whole, parts), strict=True):
    assert torch.equal(found, right)
"""


REWRITES = """
import torch
from purine.kernels import attention as gpu_attention
from tests.kernels.test_attention import aten, attended, calls, cudnn, flash, inputs, joined
from tests.kernels.test_attention import rewritten

own = torch.ops.purine.attention_gradient
torch.manual_seed(0)
for pull, causal, scale in [(cudnn, True, None), (cudnn, False, 0.5), (flash, True, None)]:
    settings = {"causal": causal} if pull is flash else {"causal": causal, "scale": scale}

    def summed(*given):
        matrix = joined(pull(*given, **settings))
        return [matrix.t(), aten.sum(matrix, [0], True).view(-1)]

    def unsummed(*given):
        return joined(pull(*given, **settings)).view(-1, 2) * 2

    given = inputs(8, 1, 128, 16, torch.float16)
    exact = [item.double().requires_grad_() for item in given[1:]]
    y, log = attended(*exact, causal=causal, scale=scale or 0.25)
    wanted = joined(torch.autograd.grad(y, exact, given[0].double()))
    given = (*given, y.detach().half(), log.detach().float())
    module = rewritten(summed, *given)
    assert calls(module).count(own.default) == 1
    assert not {aten.cat.default, aten.clone.default} & set(calls(module))
    totals = torch.ops.purine.totals.default
    ((parts,),) = [node.args[0] for node in module.graph.nodes if node.target is totals]
    assert (parts.args[0].target, parts.args[1]) == (own.default, 1)
    turned, total = module(*given)
    assert turned.stride() == (1, 48) and total.dtype == torch.float16
    torch.testing.assert_close(turned.t().double(), wanted, rtol=2e-3, atol=4e-3)
    torch.testing.assert_close(total.double(), wanted.sum(0), rtol=2e-3, atol=4e-2)
    module = rewritten(unsummed, *given)
    assert own.default in calls(module) and aten.cat.default not in calls(module)
    narrow = rewritten(lambda *given: joined(pull(*given, **settings)).view(-1, 24).sum(0), *given)
    assert own.default in calls(narrow)
    summed_up = wanted.view(-1, 24).sum(0)
    torch.testing.assert_close(narrow(*given).double(), summed_up, rtol=4e-3, atol=8e-2)
    doubled = module(*given).view_as(wanted).double()
    torch.testing.assert_close(doubled, 2 * wanted, rtol=2e-3, atol=8e-3)
"""


@needs_triton
@pytest.mark.parametrize("script", [KERNELS, REWRITES], ids=["kernels", "rewrites"])
def test_our_own_kernels_give_the_gradients_of_attention(script: str) -> None:
    interpret(script)


def left_alone(function: Callable[..., object], *arguments: Tensor) -> bool:
    found = calls(rewritten(function, *arguments))
    return any("attention_backward" in str(target) for target in found)


def given_of(
    length: int = 64, size: int = 16, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, ...]:
    given = inputs(1, 2, length, size, dtype)
    return *given, torch.empty_like(given[0]), torch.zeros(1, 2, length)


@pytest.mark.parametrize(
    "given",
    [
        *(given_of(length=1040), given_of(length=40), given_of(size=24), given_of(size=256)),
        given_of(dtype=torch.float32),
    ],
    ids=["long", "short", "odd", "wide", "float32"],
)
def test_other_attention_is_left_alone(given: tuple[Tensor, ...]) -> None:
    assert left_alone(lambda *given: joined(cudnn(*given)), *given)


def test_attention_with_dropout_or_a_bias_is_left_alone() -> None:
    def dropped(*given: Tensor) -> Tensor:
        return joined(cudnn(*given, dropout=0.1))

    def biased(*given: Tensor) -> Tensor:
        return joined(cudnn(*given, bias=given[0].new_zeros(1, 2, 64, 64)))

    assert left_alone(dropped, *given_of())
    assert left_alone(biased, *given_of())


def test_gradients_that_are_not_joined_alone_or_in_order_are_left_alone() -> None:
    def swapped(*given: Tensor) -> Tensor:
        dq, dk, dv = cudnn(*given)
        return joined([dk, dq, dv])

    def shared(*given: Tensor) -> list[Tensor]:
        found = cudnn(*given)
        return [joined(found), found[1] * 2]

    def twice(*given: Tensor) -> list[Tensor]:
        found = cudnn(*given)
        return [joined(found), joined(found)]

    def apart(*given: Tensor) -> list[Tensor]:
        return [item * 2 for item in cudnn(*given)]

    def stacked(*given: Tensor) -> Tensor:
        return torch.cat(cudnn(*given), 2).permute(0, 2, 1, 3).contiguous()

    def others(*given: Tensor) -> Tensor:
        dq, dk, _ = cudnn(*given)
        return joined([dq, dk, given[3]])

    given = given_of()
    for function in (swapped, shared, twice, apart, stacked, others):
        assert left_alone(function, *given), function
    assert not left_alone(lambda *given: joined(cudnn(*given)), *given)
