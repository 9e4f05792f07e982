"""Convolutions of images in other forms give the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.image_conv import reshape_image_convolutions

aten = torch.ops.aten
CL = torch.channels_last


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize(
    ("size", "kernel", "step", "pad"),
    [
        ((14, 14), (7, 7), 2, 3),
        ((15, 12), (7, 5), 2, 2),
        ((11, 13), (4, 3), 2, 0),
        ((8, 9), (5, 5), 1, 2),
        ((8, 7), (3, 2), 1, 0),
    ],
)
def test_results_and_gradients_are_those_of_the_convolution(
    size: tuple[int, int], kernel: tuple[int, int], step: int, pad: int, bias: bool
) -> None:
    rest = ([step, step], [pad, pad], [1, 1], False, [0, 0], 1)
    mask = [False, True, bias]

    def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = aten.convolution(x, w, b if bias else None, *rest)
        found = aten.convolution_backward(y * y, x, w, [6] if bias else None, *rest, mask)
        return (y, found[1], found[2]) if bias else (y, found[1])

    shapes = ((2, 3, *size), (6, 3, *kernel))
    arguments = [
        *(torch.randint(-3, 4, shape).bfloat16().contiguous(memory_format=CL) for shape in shapes),
        torch.randint(-3, 4, (6,)).bfloat16(),
    ]
    module = make_fx(both, tracing_mode="fake")(*arguments)
    reshape_image_convolutions(Recorded(module))
    module.recompile()
    left = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert [node.args[3] for node in left] == ([[1, 1]] if step == 2 else [])
    for found, wanted in zip(module(*arguments), both(*arguments), strict=True):
        assert found.shape == wanted.shape
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=0.5)


@pytest.mark.parametrize(
    ("channels", "mask", "layout"),
    [
        pytest.param(3, [True, True, False], CL, id="gradients of images"),
        pytest.param(8, [False, True, False], CL, id="many channels"),
        pytest.param(3, [False, True, False], torch.contiguous_format, id="contiguous"),
    ],
)
def test_a_convolution_is_left_as_it_is(
    channels: int, mask: list[bool], layout: torch.memory_format
) -> None:
    rest = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = aten.convolution(x, w, None, *rest)
        return y, aten.convolution_backward(y, x, w, None, *rest, mask)[1]

    x, w = (
        torch.randn(shape).bfloat16().contiguous(memory_format=layout)
        for shape in ((2, channels, 8, 8), (4, channels, 3, 3))
    )
    module = make_fx(both, tracing_mode="fake")(x, w)
    before = len(module.graph.nodes)
    reshape_image_convolutions(Recorded(module))
    assert len(module.graph.nodes) == before
