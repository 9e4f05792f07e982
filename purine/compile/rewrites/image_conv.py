"""Convolutions of images, which have three channels, in forms that are fast on a GPU.

A convolution with stride 2 is also one with stride 1 and half the window over squares of 2 x 2
pixels, each taken as a pixel with twelve channels. One with stride 1 is a matrix product with the
windows as rows. Both are used where the image needs no gradient and is channels-last, as their
results are.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import Node

from purine.compile.rewrites._nodes import ints_of, node_arg, value_of
from purine.compile.rewrites._recorded import Add, Recorded, adder, replace

__all__ = ["reshape_image_convolutions"]

aten = torch.ops.aten

_MOST_CHANNELS, _MOST_IN_WINDOW, _MOST_PIXELS = 4, 128, 64 * 64
"""Limits: channels of an image, and the numbers in a window and pixels in an image for which the
matrix of windows, which is stored for the backward, is made."""


def reshape_image_convolutions(recorded: Recorded) -> int:
    """Replace convolutions of a few channels in low precision by the faster forms.

    Libraries pad the three channels of an image to eight; squares of pixels as channels, or a
    matrix of windows, waste nothing.
    """
    count = 0
    for node in recorded.calls(aten.convolution.default):
        gradients = _gradients(node)
        form = _form(node, gradients)
        if form is None:
            continue
        replace(node, form.forward(adder(node)))
        for gradient in gradients:
            form.replace_gradients(adder(gradient), gradient)
            for user in list(gradient.users):
                recorded.graph.erase_node(user)
            recorded.graph.erase_node(gradient)
        count += 1
    return count


def _gradients(node: Node) -> list[Node]:
    x, w = node_arg(node, 0), node_arg(node, 1)
    return [
        user
        for user in x.users
        if user.target is aten.convolution_backward.default
        and user.args[1:3] == (x, w)
        and user.args[4:10] == node.args[3:9]
    ]


def _form(node: Node, gradients: list[Node]) -> _Form | None:
    x, w = node_arg(node, 0), node_arg(node, 1)
    strides, pads, dilation = map(ints_of, node.args[3:6])
    transposed, groups = node.args[6], node.args[8]
    simple = not transposed and groups == 1 and dilation == [1, 1]
    simple &= value_of(node).is_contiguous(memory_format=torch.channels_last)
    value, filters = value_of(x), value_of(w)
    few = value.dim() == 4 and value.shape[1] <= _MOST_CHANNELS and value.element_size() == 2
    if not few or not simple or any(ints_of(gradient.args[-1])[0] for gradient in gradients):
        return None
    small = filters[0].numel() <= _MOST_IN_WINDOW
    small &= value.shape[2] * value.shape[3] <= _MOST_PIXELS
    form = _Squares if strides == [2, 2] else _Windows if strides == [1, 1] and small else None
    return None if form is None else form(x, w, node.args[2], pads, value_of(node))


class _Form:
    """A convolution in another form; gradients use the nodes that `forward` has added."""

    def __init__(self, x: Node, w: Node, bias: object, pads: list[int], result: Tensor) -> None:
        self.x, self.w, self.bias, self.pads = x, w, bias, pads
        self.batch, self.outputs, self.height, self.width = result.shape
        _, self.channels, self.kernel_h, self.kernel_w = value_of(w).shape

    def forward(self, add: Add) -> Node:
        raise NotImplementedError

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        raise NotImplementedError

    def _merged(self, add: Add, value: Node, sizes: list[int]) -> Node:
        """Merge the last three dimensions, and pad them with zeros to a multiple of 16."""
        value = add(aten.reshape.default, value, sizes)
        return add(aten.constant_pad_nd.default, value, [0, -sizes[-1] % 16])

    def replace_gradients(self, add: Add, node: Node) -> None:
        """Replace the gradients that a call computes."""
        gradient = node_arg(node, 0)
        for user in node.users:
            if user.args[1] == 1:
                result = self.weight_gradient(add, gradient)
                near = value_of(user).is_contiguous(memory_format=torch.channels_last)
                layout = torch.channels_last if near else torch.contiguous_format
                result = add(aten.clone.default, result, memory_format=layout)
            elif not user.users:
                continue
            else:
                result = add(aten.sum.dim_IntList, gradient, [0, 2, 3])
            user.replace_all_uses_with(result)


class _Squares(_Form):
    """Stride 2: squares of 2 x 2 pixels become pixels."""

    def forward(self, add: Add) -> Node:
        half_h, half_w = -(-self.kernel_h // 2), -(-self.kernel_w // 2)
        high, wide = self.height + half_h - 1, self.width + half_w - 1
        value = value_of(self.x)
        more_h = 2 * high - value.shape[2] - self.pads[0]
        more_w = 2 * wide - value.shape[3] - self.pads[1]
        x = add(aten.constant_pad_nd.default, self.x, [self.pads[1], more_w, self.pads[0], more_h])
        sizes = [self.batch, self.channels, high, 2, wide, 2]
        x = add(aten.permute.default, add(aten.reshape.default, x, sizes), [0, 2, 4, 3, 5, 1])
        more = [0, 2 * half_w - self.kernel_w, 0, 2 * half_h - self.kernel_h]
        w = add(aten.constant_pad_nd.default, self.w, more)
        sizes = [self.outputs, self.channels, half_h, 2, half_w, 2]
        w = add(aten.permute.default, add(aten.reshape.default, w, sizes), [0, 2, 4, 3, 5, 1])
        self.half = [half_h, half_w]
        count = 4 * self.channels
        x = self._merged(add, x, [self.batch, high, wide, count])
        w = self._merged(add, w, [self.outputs, half_h, half_w, count])
        self.squares, self.filters = (add(aten.permute.default, y, [0, 3, 1, 2]) for y in (x, w))
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return add(aten.convolution.default, self.squares, self.filters, self.bias, *rest)

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        both = (gradient, self.squares, self.filters)
        w = add(operator.getitem, add(aten.convolution_backward.default, *both, *rest), 1)
        w = add(aten.slice.Tensor, w, 1, 0, 4 * self.channels)
        sizes = [self.outputs, 2, 2, self.channels, *self.half]
        w = add(aten.permute.default, add(aten.reshape.default, w, sizes), [0, 3, 4, 1, 5, 2])
        sizes = [self.outputs, self.channels, 2 * self.half[0], 2 * self.half[1]]
        w = add(aten.reshape.default, w, sizes)
        w = add(aten.slice.Tensor, w, 2, 0, self.kernel_h)
        return add(aten.slice.Tensor, w, 3, 0, self.kernel_w)


class _Windows(_Form):
    """Stride 1: each window is a row of a matrix."""

    def forward(self, add: Add) -> Node:
        pads = [self.pads[1], self.pads[1], self.pads[0], self.pads[0]]
        x = add(aten.constant_pad_nd.default, self.x, pads)
        x = add(aten.unfold.default, x, 2, self.kernel_h, 1)
        x = add(aten.unfold.default, x, 3, self.kernel_w, 1)
        x = add(aten.permute.default, x, [0, 2, 3, 4, 5, 1])
        w = add(aten.permute.default, self.w, [0, 2, 3, 1])
        self.count = int(self.kernel_h * self.kernel_w * self.channels)
        self.windows, w = (self._merged(add, y, [-1, self.count]) for y in (x, w))
        both = (self.windows, add(aten.t.default, w))
        if self.bias is None:
            y = add(aten.mm.default, *both)
        else:
            y = add(aten.addmm.default, self.bias, *both)
        y = add(aten.reshape.default, y, [self.batch, self.height, self.width, self.outputs])
        return add(aten.permute.default, y, [0, 3, 1, 2])

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        rows = add(aten.permute.default, gradient, [0, 2, 3, 1])
        rows = add(aten.reshape.default, rows, [-1, self.outputs])
        w = add(aten.mm.default, add(aten.t.default, rows), self.windows)
        w = add(aten.slice.Tensor, w, 1, 0, self.count)
        sizes = [self.outputs, self.kernel_h, self.kernel_w, self.channels]
        return add(aten.permute.default, add(aten.reshape.default, w, sizes), [0, 3, 1, 2])
