"""Convolutions of images, which have three channels, as what GPUs are quick at.

Libraries pad the three channels to eight and multiply mostly zeros. A convolution with stride 2 is
one with stride 1 and windows of half the size over squares of four pixels as one with twelve
channels; one with stride 1 is a product of matrices, with the windows as rows. Both read and write
the same numbers and add up the same products. Only where the image itself has no gradient and
images lie channels-last, as the results of both forms do.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from purine.compile.rewrites.recorded import Add, adder, value_of

__all__ = ["image_convolutions"]

aten = torch.ops.aten

_FEW, _WINDOW, _PIXELS = 4, 128, 64 * 64
"""Channels of an image at most; numbers in a window and pixels in an image for which a matrix is
made, which is kept for the backward."""


def image_convolutions(module: GraphModule) -> None:
    """Put the quicker forms in place of convolutions of a few channels in low precision."""
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution.default):
        made = _form(node)
        if made is None:
            continue
        form, gradients = made
        y = form.forward(adder(module, node))
        node.replace_all_uses_with(y)
        module.graph.erase_node(node)
        for gradient in gradients:
            form.pull(adder(module, gradient), gradient)
            for user in list(gradient.users):
                module.graph.erase_node(user)
            module.graph.erase_node(gradient)


def _form(node: Node) -> tuple[_Squares | _Windows, list[Node]] | None:
    """The other form of a convolution, and the ops that make its gradients."""
    x, w, bias, step, pad, dilation, transposed, _, groups = node.args
    assert isinstance(x, Node)
    assert isinstance(w, Node)
    gradients = [
        user
        for user in x.users
        if user.target is aten.convolution_backward.default
        and user.args[1:3] == (x, w)
        and user.args[4:10] == node.args[3:9]
    ]
    simple = not transposed and groups == 1 and list(dilation) == [1, 1]
    simple &= value_of(node).is_contiguous(memory_format=torch.channels_last)
    value = value_of(x)
    if value.dim() != 4 or value.shape[1] > _FEW or value.element_size() != 2 or not simple:
        return None
    if any(gradient.args[-1][0] for gradient in gradients):
        return None
    if list(step) == [2, 2]:
        return _Squares(x, w, bias, list(pad), value_of(node)), gradients
    filters = value_of(w)
    small = filters[0].numel() <= _WINDOW and value.shape[2] * value.shape[3] <= _PIXELS
    if list(step) == [1, 1] and small:
        return _Windows(x, w, bias, list(pad), value_of(node)), gradients
    return None


class _Form:
    """A convolution in another form; `pull` uses what `forward` has prepared."""

    def __init__(self, x: Node, w: Node, bias: Any, pad: list[int], size: Tensor) -> None:
        self.x, self.w, self.bias, self.pad = x, w, bias, pad
        self.batch, self.outputs, self.height, self.width = size.shape
        _, self.channels, self.kernel_h, self.kernel_w = value_of(w).shape

    def forward(self, add: Add) -> Node:
        raise NotImplementedError

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        raise NotImplementedError

    def pull(self, add: Add, node: Node) -> None:
        """Put gradients in place of those of the node."""
        gradient = node.args[0]
        assert isinstance(gradient, Node)
        for user in node.users:
            if user.args[1] == 1:
                found = self.weight_gradient(add, gradient)
                near = value_of(user).is_contiguous(memory_format=torch.channels_last)
                layout = torch.channels_last if near else torch.contiguous_format
                found = add(aten.clone.default, found, memory_format=layout)
            elif not user.users:
                continue
            else:
                found = add(aten.sum.dim_IntList, gradient, [0, 2, 3])
            user.replace_all_uses_with(found)


class _Squares(_Form):
    """Stride 2: squares of 2 x 2 pixels become pixels."""

    def forward(self, add: Add) -> Node:
        half_h, half_w = -(-self.kernel_h // 2), -(-self.kernel_w // 2)
        high, wide = self.height + half_h - 1, self.width + half_w - 1
        value = value_of(self.x)
        more_h = 2 * high - value.shape[2] - self.pad[0]
        more_w = 2 * wide - value.shape[3] - self.pad[1]
        x = add(aten.constant_pad_nd.default, self.x, [self.pad[1], more_w, self.pad[0], more_h])
        sizes = [self.batch, self.channels, high, 2, wide, 2]
        x = add(aten.permute.default, add(aten.reshape.default, x, sizes), [0, 2, 4, 3, 5, 1])
        more = [0, 2 * half_w - self.kernel_w, 0, 2 * half_h - self.kernel_h]
        w = add(aten.constant_pad_nd.default, self.w, more)
        sizes = [self.outputs, self.channels, half_h, 2, half_w, 2]
        w = add(aten.permute.default, add(aten.reshape.default, w, sizes), [0, 2, 4, 3, 5, 1])
        self.half = [half_h, half_w]
        self.squares = self._pixels(add, x, [self.batch, high, wide])
        self.filters = self._pixels(add, w, [self.outputs, half_h, half_w])
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return add(aten.convolution.default, self.squares, self.filters, self.bias, *rest)

    def _pixels(self, add: Add, value: Node, sizes: list[int]) -> Node:
        """The last three dimensions as channels, filled up with zeros."""
        count = 4 * self.channels
        value = add(aten.reshape.default, value, [*sizes, count])
        value = add(aten.constant_pad_nd.default, value, [0, -count % 16])
        return add(aten.permute.default, value, [0, 3, 1, 2])

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        both = (gradient, self.squares, self.filters)
        found = add(operator.getitem, add(aten.convolution_backward.default, *both, *rest), 1)
        found = add(aten.slice.Tensor, found, 1, 0, 4 * self.channels)
        sizes = [self.outputs, 2, 2, self.channels, *self.half]
        found = add(
            aten.permute.default, add(aten.reshape.default, found, sizes), [0, 3, 4, 1, 5, 2]
        )
        whole = [self.outputs, self.channels, 2 * self.half[0], 2 * self.half[1]]
        found = add(aten.reshape.default, found, whole)
        found = add(aten.slice.Tensor, found, 2, 0, self.kernel_h)
        return add(aten.slice.Tensor, found, 3, 0, self.kernel_w)


class _Windows(_Form):
    """Stride 1: each window is a row of a matrix."""

    def forward(self, add: Add) -> Node:
        pads = [self.pad[1], self.pad[1], self.pad[0], self.pad[0]]
        x = add(aten.constant_pad_nd.default, self.x, pads)
        x = add(aten.unfold.default, x, 2, self.kernel_h, 1)
        x = add(aten.unfold.default, x, 3, self.kernel_w, 1)
        self.windows = self._rows(add, add(aten.permute.default, x, [0, 2, 3, 4, 5, 1]))
        w = self._rows(add, add(aten.permute.default, self.w, [0, 2, 3, 1]))
        both = (self.windows, add(aten.t.default, w))
        if self.bias is None:
            y = add(aten.mm.default, *both)
        else:
            y = add(aten.addmm.default, self.bias, *both)
        y = add(aten.reshape.default, y, [self.batch, self.height, self.width, self.outputs])
        return add(aten.permute.default, y, [0, 3, 1, 2])

    def _rows(self, add: Add, value: Node) -> Node:
        """The last three dimensions as one, filled up with zeros."""
        count = self._count()
        value = add(aten.reshape.default, value, [-1, count])
        return add(aten.constant_pad_nd.default, value, [0, -count % 16])

    def _count(self) -> int:
        return int(self.kernel_h * self.kernel_w * self.channels)

    def weight_gradient(self, add: Add, gradient: Node) -> Node:
        rows = add(aten.permute.default, gradient, [0, 2, 3, 1])
        rows = add(aten.reshape.default, rows, [-1, self.outputs])
        found = add(aten.mm.default, add(aten.t.default, rows), self.windows)
        found = add(aten.slice.Tensor, found, 1, 0, self._count())
        sizes = [self.outputs, self.kernel_h, self.kernel_w, self.channels]
        found = add(aten.reshape.default, found, sizes)
        return add(aten.permute.default, found, [0, 3, 1, 2])
