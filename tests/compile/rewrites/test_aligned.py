"""Padded rows and softmax losses in fewer passes: the same numbers from other calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.aligned import align_rows
from tests.kernels.interpreter import interpret, needs_triton

aten = torch.ops.aten


def recorded(function: Callable[..., object], *arguments: Tensor) -> GraphModule:
    found: GraphModule = make_fx(function, tracing_mode="fake")(*arguments)
    return found


def count(module: GraphModule, target: object) -> int:
    return len(module.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("reduction", [1, 2], ids=["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_the_gradient_of_a_softmax_loss_is_written_down(reduction: int, ignored: int) -> None:
    def gradient(scores: Tensor, label: Tensor) -> Tensor:
        logs = aten._log_softmax(scores, 1, False)
        _, total = aten.nll_loss_forward(logs, label, None, reduction, ignored)
        three = torch.full((), 3.0, dtype=scores.dtype)
        pulled = aten.nll_loss_backward(three, logs, label, None, reduction, ignored, total)
        found: Tensor = aten._log_softmax_backward_data(pulled, logs, 1, scores.dtype)
        return found

    scores, label = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 4, 2, 1, 3])
    module = recorded(gradient, scores, label)
    align_rows(Recorded(module, triton=False))
    module.recompile()
    assert count(module, aten._log_softmax_backward_data.default) == 0
    assert torch.allclose(module(scores, label), gradient(scores, label), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("own", [False, True])
def test_other_axes_and_parts_of_a_loss_are_left_alone(own: bool) -> None:
    """A softmax over samples, and a gradient whose log-softmax was made elsewhere."""

    def gradient(logs: Tensor, label: Tensor, axis: int) -> Tensor:
        one, total = torch.ones(()), torch.full((), 5.0)
        pulled = aten.nll_loss_backward(one, logs, label, None, 1, -100, total)
        found: Tensor = aten._log_softmax_backward_data(pulled, logs, axis, logs.dtype)
        return found

    label = torch.randint(5, (5,))
    logs = torch.randn(5, 5).log_softmax(0)
    module = recorded(lambda logs, label: gradient(logs, label, 0), logs, label)
    align_rows(Recorded(module, own))
    assert count(module, aten._log_softmax_backward_data.default) == 1
    logs = torch.randn(5, 4100).log_softmax(1)
    module = recorded(lambda logs, label: gradient(logs, label, 1), logs, label)
    align_rows(Recorded(module, own))
    module.recompile()
    assert torch.allclose(module(logs, label), gradient(logs, label, 1), atol=1e-7)


def test_weights_of_classes_keep_the_rows_of_a_loss_as_they_are() -> None:
    def loss(x: Tensor, weight: Tensor, label: Tensor, classes: Tensor) -> Tensor:
        logs = aten._log_softmax((x @ weight.t()).float(), 1, False)
        found: Tensor = aten.nll_loss_forward(logs, label, classes, 1, -100)[0]
        return found

    x, weight = torch.randn(4, 8).bfloat16(), torch.randn(1025, 8).bfloat16()
    given = (x, weight, torch.randint(1025, (4,)), torch.rand(1025))
    module = recorded(loss, *given)
    align_rows(Recorded(module, triton=False))
    module.recompile()
    assert torch.allclose(module(*given), loss(*given), rtol=1e-2)


def test_the_gradient_of_a_loss_by_pixels_is_left_alone() -> None:
    def gradient(scores: Tensor, label: Tensor) -> Tensor:
        with torch.enable_grad():
            given = scores.detach().requires_grad_()
            return torch.autograd.grad(torch.nn.functional.cross_entropy(given, label), given)[0]

    module = recorded(gradient, torch.randn(2, 5, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64))
    align_rows(Recorded(module, triton=False))
    assert count(module, aten._log_softmax_backward_data.default) == 1


def test_long_sizes_of_products_are_aligned_and_each_matrix_padded_once() -> None:
    def products(x: Tensor, weight: Tensor, bias: Tensor, pulled: Tensor) -> tuple[Tensor, ...]:
        scores = torch.addmm(bias, x, weight.t())
        return scores, x @ weight.t(), pulled @ weight, pulled.t() @ x

    shapes = ((16, 24), (1025, 24), (1025,), (16, 1025))
    arguments = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    module = recorded(products, *arguments)
    expected = products(*arguments)
    align_rows(Recorded(module, triton=False))
    module.recompile()
    sizes = {
        size
        for target in (aten.mm.default, aten.addmm.default)
        for node in module.graph.find_nodes(op="call_function", target=target)
        for size in (node.args[-1].meta.get("val", torch.empty(0)).shape)  # type: ignore[union-attr]
    }
    assert 1025 not in sizes
    assert count(module, aten.constant_pad_nd.default) == 3  # of weight, bias and gradient
    for found, wanted in zip(module(*arguments), expected, strict=True):
        assert found.shape == wanted.shape
        assert torch.allclose(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def loss_step(classes: int) -> Callable[..., tuple[Tensor, ...]]:
    """Scores, their loss, and the gradients by what they are a product of."""

    def step(x: Tensor, weight: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        scores = (x @ weight.t()).view(2, 8, classes).float().view(16, classes)
        logs = aten._log_softmax(scores, 1, False)
        loss, total = aten.nll_loss_forward(logs, label, None, 1, 3)
        two = torch.full((), 2.0)
        pulled = aten.nll_loss_backward(two, logs, label, None, 1, 3, total)
        back = aten._log_softmax_backward_data(pulled, logs, 1, torch.float32)
        low = back.view(2, 8, classes).to(torch.bfloat16).view(16, classes)
        return loss, low @ weight, low.t() @ x, scores.view(-1).amax()

    return step


def loss_inputs(classes: int) -> list[Tensor]:
    label = torch.randint(classes, (16,))
    label[1] = 3
    shapes = ((16, 24), (classes, 24))
    return [*(torch.randn(shape, dtype=torch.bfloat16) for shape in shapes), label]


def test_scores_stay_wide_from_their_product_to_that_of_their_gradient() -> None:
    step, arguments = loss_step(1025), loss_inputs(1025)
    module = recorded(step, *arguments)
    align_rows(Recorded(module, triton=False))
    module.graph.eliminate_dead_code()
    module.recompile()
    assert count(module, aten.constant_pad_nd.default) == 1  # of the weight
    assert count(module, aten.slice.Tensor) == 2  # of its gradient, and for the greatest score
    for found, wanted in zip(module(*arguments), step(*arguments), strict=True):
        assert torch.allclose(found.float(), wanted.float(), rtol=2e-2, atol=1e-3)


def test_short_and_even_sizes_and_float32_are_left_alone() -> None:
    def products(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    for shape, dtype in (((9, 1032), torch.bfloat16), ((9, 1025), torch.float32)):
        module = recorded(products, torch.randn(3, 9).to(dtype), torch.randn(shape).to(dtype))
        align_rows(Recorded(module, triton=False))
        assert count(module, aten.constant_pad_nd.default) == 0


LOSSES = """
import torch
from purine.kernels import loss as gpu_loss
from purine.compile.rewrites.aligned import align_rows
from purine.compile.rewrites._recorded import Recorded
from tests.compile.rewrites.test_aligned import aten, count, loss_inputs, loss_step, recorded

torch.manual_seed(0)
ways = [(4101, False, False), (4160, False, True), (4101, True, True)]
for classes, whole, hints in ways:
    gpu_loss.LAUNCH = gpu_loss.Launch(block=1024, warps=4, whole=whole, hints=hints)
    step, arguments = loss_step(classes), loss_inputs(classes)
    module = recorded(step, *arguments)
    align_rows(Recorded(module))
    module.graph.eliminate_dead_code()
    module.recompile()
    assert count(module, torch.ops.purine.softmax_loss.default) == 1
    assert count(module, aten._log_softmax.default) == 0
    assert count(module, aten._to_copy.default) == 2  # of the count, and for the greatest score
    for found, wanted in zip(module(*arguments), step(*arguments), strict=True):
        assert found.shape == wanted.shape
        torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=4e-3)

scores, label = torch.randn(2, 4160).bfloat16(), torch.tensor([3000, 4000])
scores[:, :2048] = float("-inf")
given = scores.float().requires_grad_()
expected = torch.nn.functional.cross_entropy(given, label, reduction="none")
wanted, = torch.autograd.grad(expected.sum(), given)
for whole in (False, True):
    gpu_loss.LAUNCH = gpu_loss.Launch(block=1024, warps=4, whole=whole, hints=True)
    losses, gradient = gpu_loss.softmax_loss(scores, label, torch.ones(()), 4160, -100)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient.float(), wanted, rtol=1e-2, atol=0)
"""


@needs_triton
def test_our_own_kernel_gives_the_numbers_of_torch() -> None:
    interpret(LOSSES)
