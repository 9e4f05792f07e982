"""What a recorded step is turned into before a compiler sees it, where the compiler does worse.

Each rewrite keeps the numbers up to rounding. They come from measuring steps kernel by kernel:

- `aligned`: products of matrices with rows that no wide load can read (a vocabulary of 50,257) are
  made of matrices that are padded once, and the scores stay wide up to the softmax and from its
  gradient on, so that all kernels over them read and write whole vectors. And the gradient of a
  softmax loss by the scores is written down as it is: pulled back through the logarithm and the
  softmax it takes one more pass over all scores.
- `own_pools`: maximum pooling by kernels of our own.
- `image_convolutions`: convolutions of three channels in a form that is quicker.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from purine.ops._image_conv import image_convolutions
from purine.ops._recorded import adder, is_call, value_of

__all__ = ["aligned", "own_pools", "rewritten"]

aten = torch.ops.aten

_ALIGNED, _WIDTH, _LONG = 8, 64, 1024
"""Sizes of at least `_LONG` that are no multiple of `_ALIGNED` become multiples of `_WIDTH`."""

_LOW = (torch.bfloat16, torch.float16)


def rewritten(module: GraphModule, *, gpu: bool) -> None:
    """Apply to a recorded function, in place, all rewrites that are for its device."""
    if gpu:
        aligned(module)
    if gpu and importlib.util.find_spec("triton") is not None:
        own_pools(module)
    if gpu:
        image_convolutions(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def aligned(module: GraphModule) -> None:
    """Long sizes of products in low precision aligned, and softmax losses in one pass back."""
    rows = _Rows(module)
    for node in list(module.graph.nodes):
        step = _STEPS.get(node.target)
        if step is not None:
            step(rows, node)


class _Rows:
    """A module in work.

    `wide` has, by node, one with the same rows and zeros behind them, `logs` one with logarithms
    of nothing behind them.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.wide: dict[Node, Node] = {}
        self.logs: dict[Node, Node] = {}
        self.padded: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def product(self, node: Node) -> None:
        *bias, left, right = node.args
        if value_of(node).dtype not in _LOW or node.kwargs:
            return
        (rows, inner), columns = value_of(left).shape, value_of(right).shape[1]
        if bias and value_of(bias[0]).shape != (columns,):
            return
        more = [_missing(size) for size in (rows, inner, columns)]
        if not any(more):
            return
        add = adder(self.module, node)
        result = add(
            node.target,
            *(self._padded(item, (more[2],)) for item in bias),
            self._padded(left, (more[0], more[1])),
            self._padded(right, (more[1], more[2])),
        )
        if more[0]:
            result = add(aten.slice.Tensor, result, 0, 0, rows)
        self._replace(node, result, columns)

    def follow(self, node: Node) -> None:
        """A view or a cast that leaves rows as they are."""
        base = node.args[0]
        if base not in self.wide:
            return
        if value_of(base).shape[-1] != value_of(node).shape[-1]:
            whole = adder(self.module, node)(aten.clone.default, base)
            node.replace_input_with(base, whole)
            return
        arguments = [self.wide[base], *node.args[1:]]
        if node.target is aten.view.default:
            width = self._width(base)
            arguments[1] = [*value_of(node).shape[:-1], width]
        made = adder(self.module, node)(node.target, *arguments, **node.kwargs)
        made.meta["val"] = node.meta["val"]
        self.wide[node] = made

    def softmax(self, node: Node) -> None:
        scores, axis, half = node.args
        if scores not in self.wide or axis % value_of(scores).dim() != value_of(scores).dim() - 1:
            return
        add = adder(self.module, node)
        value, width = value_of(scores), self._width(scores)
        places = add(aten.arange.default, width, device=value.device)
        known = add(aten.lt.Scalar, places, value.shape[-1])
        least = add(aten.full.default, [], -math.inf, dtype=value.dtype, device=value.device)
        masked = add(aten.where.self, known, self.wide[scores], least)
        self.logs[node] = add(aten._log_softmax.default, masked, axis, half)

    def loss(self, node: Node) -> None:
        """A loss takes of each row of scores the one at its label, wherever the row ends."""
        logs = node.args[0]
        if logs in self.logs:
            node.replace_input_with(logs, self.logs[logs])

    def pull(self, node: Node) -> None:
        """The gradient of a softmax loss by its scores."""
        pulled, logs = node.args[:2]
        if not is_call(pulled, aten.nll_loss_backward.default):
            return
        gradient, of, label, weight, reduction, ignored, count = pulled.args
        if of is not logs or weight is not None or reduction == 0 or value_of(logs).dim() != 2:
            return
        add = adder(self.module, node)
        value, wide = value_of(logs), self.logs.get(logs)
        scale = add(aten.div.Tensor, gradient, count) if reduction == 1 else gradient
        counts = add(aten.ne.Scalar, label, ignored)
        rows = add(aten.where.self, counts, scale, add(aten.zeros_like.default, scale))
        width = value.shape[1] if wide is None else self._width(logs)
        places = add(aten.arange.default, width, device=value.device)
        hot = add(aten.eq.Tensor, add(aten.unsqueeze.default, label, 1), places)
        hot = add(aten._to_copy.default, hot, dtype=value.dtype)
        excess = add(aten.sub.Tensor, add(aten.exp.default, wide or logs), hot)
        result = add(aten.mul.Tensor, excess, add(aten.unsqueeze.default, rows, 1))
        self._replace(node, result, value.shape[1])

    def _replace(self, node: Node, result: Node, columns: int) -> None:
        """Let a wide result take the place of a node, cut where it is read as it was."""
        if _missing(columns):
            cut = adder(self.module, node)(aten.slice.Tensor, result, 1, 0, columns)
            cut.meta["val"] = node.meta["val"]
            self.wide[cut] = result
            result = cut
        result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result)
        self.module.graph.erase_node(node)

    def _padded(self, node: Any, more: tuple[int, ...]) -> Node:
        """The node with zeros behind its rows and columns, made once for it and its transpose."""
        assert isinstance(node, Node)
        if not any(more):
            return node
        graph = self.module.graph
        if is_call(node, aten.t.default):
            inner = self._padded(node.args[0], more[::-1])
            with graph.inserting_after(inner):
                return graph.call_function(aten.t.default, (inner,))
        if node in self.wide and not any(more[:-1]):
            return self.wide[node]
        key = (node, more)
        if key not in self.padded:
            amounts = [amount for size in reversed(more) for amount in (0, size)]
            with graph.inserting_after(node):
                made = graph.call_function(aten.constant_pad_nd.default, (node, amounts))
            self.padded[key] = made
        return self.padded[key]

    def _width(self, node: Node) -> int:
        width = int(value_of(node).shape[-1])
        return width + _missing(width)


_STEPS: dict[Any, Callable[[_Rows, Node], None]] = {
    aten.mm.default: _Rows.product,
    aten.addmm.default: _Rows.product,
    aten.view.default: _Rows.follow,
    aten._to_copy.default: _Rows.follow,
    aten._log_softmax.default: _Rows.softmax,
    aten.nll_loss_forward.default: _Rows.loss,
    aten._log_softmax_backward_data.default: _Rows.pull,
}


def _missing(size: int) -> int:
    return -size % _WIDTH if size >= _LONG and size % _ALIGNED else 0


def own_pools(module: GraphModule) -> None:
    """Maximum pooling of 16-bit numbers with channels side by side.

    If only gradients read where the maxima were.
    """
    for node in module.graph.find_nodes(
        op="call_function", target=aten.max_pool2d_with_indices.default
    ):
        found = _Pool.of(node)
        if found is not None:
            found.replace(module)


class _Pool:
    """A maximum pooling with its gradients."""

    def __init__(self, node: Node, gradients: list[Node]) -> None:
        x = node.args[0]
        assert isinstance(x, Node)
        given = dict(zip(("steps", "pads", "dilation"), node.args[2:], strict=False))
        self.node, self.x, self.gradients = node, x, gradients
        self.kernel, self.pads = _pair(node.args[1]), _pair(given.get("pads", 0))
        self.steps = _pair(given.get("steps") or self.kernel)
        self.dilated = _pair(given.get("dilation", 1)) != [1, 1]

    @classmethod
    def of(cls, node: Node) -> _Pool | None:
        """The pooling of a node, or None if it is not for our kernels."""
        places = [user for user in node.users if user.args[1] == 1]
        gradients = [user for place in places for user in place.users]
        pool = cls(node, gradients)
        value = value_of(pool.x)
        fits = (
            value.dim() == 4
            and value.stride(1) == 1
            and node.meta["val"][0].is_contiguous(memory_format=torch.channels_last)
            and value.shape[1] >= _ALIGNED
            and value.dtype in _LOW
            and not pool.dilated
            and pool.kernel[0] * pool.kernel[1] < 255
            and all(
                is_call(user, aten.max_pool2d_with_indices_backward.default) for user in gradients
            )
        )
        return pool if fits else None

    def replace(self, module: GraphModule) -> None:
        from purine.ops import gpu_pool  # noqa: F401  (makes the ops known; needs Triton)

        own = torch.ops.purine
        add = adder(module, self.node)
        size = list(self.node.meta["val"][0].shape[2:])
        windows = (self.kernel, self.steps, self.pads)
        made = add(own.max_pool.default, self.x, *windows, size)
        for gradient in self.gradients:
            pull = adder(module, gradient)
            place = gradient.args[-1]
            images = list(value_of(self.x).shape[2:])
            pulled = pull(own.max_pool_gradient.default, gradient.args[0], place, *windows, images)
            gradient.replace_all_uses_with(pulled)
            module.graph.erase_node(gradient)
        self.node.replace_all_uses_with(made)
        module.graph.erase_node(self.node)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else [value[0], value[-1]]
