"""Matrices with the sums of their columns by one kernel, and where recorded functions use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.sums import fuse_bias_sums
from tests.kernels.interpreter import interpret, needs_triton

aten = torch.ops.aten


def rewritten(function: Callable[..., object], *arguments: Tensor) -> GraphModule:
    found: GraphModule = make_fx(function, tracing_mode="fake")(*arguments)
    fuse_bias_sums(Recorded(found))
    found.graph.eliminate_dead_code()
    found.graph.lint()
    found.recompile()
    return found


def calls(module: GraphModule) -> list[object]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def pull(dy: Tensor, x: Tensor, *, how: str, keep: bool, dtype: torch.dtype | None) -> list[Tensor]:
    """Gradients by a linear layer's input and bias behind a GELU's, as training makes them."""
    dx = aten.gelu_backward(dy, x, approximate=how)
    matrix = dx.view(-1, x.shape[-1])
    return [dx * 2, matrix.t(), aten.sum(matrix, [0], keep, dtype=dtype).view(-1).float()]


def join(*pieces: Tensor) -> list[Tensor]:
    """Gradients [batch, heads, tokens, size] of queries, keys and values as those of one matrix."""
    whole = torch.cat(pieces, 1).permute(0, 2, 1, 3)
    batch, tokens, heads, size = whole.shape
    matrix = whole.clone(memory_format=torch.contiguous_format).view(batch * tokens, heads * size)
    return [matrix.t(), aten.sum(matrix, [0], True).view(-1)]


def heads(batch: int, count: int, tokens: int, size: int) -> Tensor:
    """[batch, heads, tokens, size] with the heads of a token side by side in memory."""
    return torch.randn(batch, tokens, count, size).half().permute(0, 2, 1, 3)


def side_by_side(left: Tensor, right: Tensor) -> list[Tensor]:
    matrix = torch.cat([left, right], -1)
    return [matrix, aten.sum(matrix, [0]), aten.sum(matrix, [-2], True, dtype=torch.float32)]


KERNELS = """
import torch
from purine.kernels import sums as gpu_sums
from purine.kernels.sums import Tiling, gelu_gradient, joined, totals

torch.manual_seed(0)
for rows, columns, programs in [(37, 136, 6), (130, 40, 3), (3, 8, 99)]:
    tiling = Tiling(columns=32, step=4, programs=programs, warps=4)
    gpu_sums.GELU = gpu_sums.JOINED = tiling
    for dtype, rtol in [(torch.float16, 6e-4), (torch.bfloat16, 8e-3)]:
        x, dy = (torch.randn(rows, columns).mul(3).to(dtype) for _ in range(2))
        x[0, 0] = -60000.0
        x[0, 1] = 60000.0
        for how in ("tanh", "none"):
            dx, parts = gelu_gradient(dy, x, how)
            wanted = torch.ops.aten.gelu_backward(dy.double(), x.double(), approximate=how)
            assert dx.dtype == dtype
            torch.testing.assert_close(dx.double(), wanted, rtol=rtol, atol=1e-6)
            assert parts.dtype == torch.float32
            torch.testing.assert_close(parts.sum(0), dx.float().sum(0), rtol=1e-5, atol=1e-4)
        pieces = [torch.randn(rows, 2 * columns).to(dtype)[:, columns:], x, dy[:, :8]]
        whole, parts = joined(pieces)
        assert torch.equal(whole, torch.cat(pieces, 1))
        torch.testing.assert_close(parts.sum(0), whole.float().sum(0), rtol=1e-5, atol=1e-4)
torch.library.opcheck(gelu_gradient, (dy, x, how), test_utils="test_faketensor")
torch.library.opcheck(joined, (pieces,), test_utils="test_faketensor")
for shape, dtype in [((3, 37, 136), torch.bfloat16), ((70, 8), torch.float32)]:
    parts = [torch.randn(shape) for _ in range(5)]
    found = totals(parts, dtype)
    assert found.dtype == dtype
    wanted = torch.stack([part.sum(-2) for part in parts])
    torch.testing.assert_close(found, wanted.to(dtype), rtol=1e-2, atol=1e-4)
    torch.library.opcheck(totals, (parts, dtype), test_utils="test_faketensor")
"""


REWRITES = """
import torch
from tests.kernels.test_sums import aten, calls, heads, join, pull, rewritten, side_by_side

own = torch.ops.purine
torch.manual_seed(0)


def same(module, function, given):
    for found, wanted in zip(module(*given), function(*given), strict=True):
        assert found.dtype == wanted.dtype
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-3, atol=2e-3)


for how, keep, dtype, shape in [
    ("tanh", True, None, (2, 515, 24)),
    ("none", False, torch.float32, (1030, 24)),
]:
    def step(dy, x):
        return pull(dy, x, how=how, keep=keep, dtype=dtype)

    given = [torch.randn(shape).half() for _ in range(2)]
    module = rewritten(step, *given)
    assert own.gelu_gradient.default in calls(module)
    assert aten.gelu_backward.default not in calls(module)
    assert calls(module).count(own.totals.default) == 1
    assert aten.sum.dim_IntList not in calls(module)
    same(module, step, given)

for function, given in [
    (join, [heads(2, count, 520, 8) for count in (3, 1, 2)]),
    (side_by_side, [torch.randn(1030, 16).half(), torch.randn(1030, 48).half()[:, :24]]),
]:
    module = rewritten(function, *given)
    assert calls(module).count(own.joined.default) == 1
    assert aten.cat.default not in calls(module)
    assert aten.clone.default not in calls(module)
    assert own.totals.default in calls(module)
    assert aten.sum.dim_IntList not in calls(module)
    same(module, function, given)
"""

TOTALS = """
import operator
import torch
from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.sums import batch_totals
from tests.kernels.test_sums import aten, calls, rewritten

own = torch.ops.purine
torch.manual_seed(0)


def step(dy, x, weight, bias):
    totals = []
    for turn in range(4):
        dy = aten.gelu_backward(dy, x)
        totals.append(aten.sum(dy, [0], True).view(-1).float())
        if turn == 1:
            dy = dy + totals[0].half()  # the first is read before the last is there
    weight.add_(totals[1])
    old = weight + 1
    weight.add_(totals[2])
    return [dy, old, weight * 2, totals[3] * bias, totals[0]]


given = [torch.randn(1030, 24).half() for _ in range(2)] + [torch.randn(24) for _ in range(2)]
module = rewritten(step, *given)
assert calls(module).count(own.totals.default) == 4
batch_totals(Recorded(module))
module.graph.lint()
module.recompile()
counts = [len(n.args[0]) for n in module.graph.nodes if n.target is own.totals.default]
assert sorted(counts) == [1, 3]
copies = [[value.clone() for value in given] for _ in range(2)]
for found, wanted in zip(module(*copies[0]), step(*copies[1]), strict=True):
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)
torch.testing.assert_close(copies[0][2], copies[1][2], rtol=4e-3, atol=4e-3)
"""


@needs_triton
@pytest.mark.parametrize(
    "script", [KERNELS, REWRITES, TOTALS], ids=["kernels", "rewrites", "totals"]
)
def test_our_own_kernels_give_the_numbers_of_torch(script: str) -> None:
    interpret(script)


def left_alone(function: Callable[..., object], *arguments: Tensor) -> bool:
    before = make_fx(function, tracing_mode="fake")(*arguments)
    before.graph.eliminate_dead_code()
    return calls(before) == calls(rewritten(function, *arguments))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1032, 24), torch.float32),
        ((1032, 23), torch.float16),
        ((1016, 24), torch.bfloat16),
    ],
    ids=["float32", "odd", "short"],
)
def test_other_matrices_are_left_alone(shape: tuple[int, int], dtype: torch.dtype) -> None:
    def gradient(dy: Tensor, x: Tensor) -> list[Tensor]:
        return pull(dy, x, how="tanh", keep=True, dtype=None)

    given = [torch.randn(shape).to(dtype) for _ in range(2)]
    assert left_alone(gradient, *given)
    assert left_alone(side_by_side, *given)


def test_gradients_that_lie_otherwise_or_are_summed_up_otherwise_are_left_alone() -> None:
    def rows(dy: Tensor, x: Tensor) -> Tensor:
        found: Tensor = aten.gelu_backward(dy, x).sum(1)
        return found

    def exact(dy: Tensor, x: Tensor) -> list[Tensor]:
        return pull(dy, x, how="none", keep=False, dtype=torch.float64)

    def columns(dy: Tensor, x: Tensor) -> Tensor:
        found: Tensor = aten.sum(aten.gelu_backward(dy, x), [0])
        return found

    x = torch.randn(1032, 1032).half()
    assert left_alone(rows, x, x)
    assert left_alone(exact, x, x)
    assert left_alone(columns, x.t(), x)


def test_pieces_that_are_not_side_by_side_are_left_alone() -> None:
    def below(left: Tensor, right: Tensor) -> Tensor:
        found: Tensor = aten.sum(torch.cat([left, right]), [0])
        return found

    def shared(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat([left, right], 1)
        return whole, aten.sum(whole.view(-1, 24), [0])

    x = torch.randn(1032, 24).half()
    assert left_alone(below, x, x)
    assert left_alone(shared, x, x)
    assert left_alone(join, *(torch.randn(2, 3, 520, 8).half() for _ in range(3)))
