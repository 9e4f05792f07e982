"""What a recorded step is turned into before a compiler sees it, where the compiler does worse.

Each rewrite keeps the numbers up to rounding. They are found by measuring steps kernel by kernel:

- `loss_gradients`: the gradient of a softmax loss by the scores is written down as it is. Pulled
  back through the logarithm and the softmax it takes one more pass over all scores.
- `aligned_products`: products of matrices with rows that no wide load can read (a vocabulary of
  50,257) are padded once, so that the products and all that reads them are aligned.
- `own_pools`: maximum pooling by kernels of our own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["aligned_products", "loss_gradients", "own_pools", "rewritten"]

aten = torch.ops.aten

_ALIGNED, _WIDTH, _LONG = 8, 64, 1024
"""Sizes of at least `_LONG` that are no multiple of `_ALIGNED` become multiples of `_WIDTH`."""


def rewritten(module: GraphModule, *, gpu: bool) -> None:
    """Apply to a recorded function, in place, all rewrites that are for its device."""
    loss_gradients(module)
    if gpu:
        aligned_products(module)
    if gpu and importlib.util.find_spec("triton") is not None:
        own_pools(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def loss_gradients(module: GraphModule) -> None:
    """Softmax losses of rows of scores: their gradients in one pass."""
    calls = module.graph.find_nodes(
        op="call_function", target=aten._log_softmax_backward_data.default
    )
    for node in calls:
        pulled, scores = node.args[0], node.args[1]
        if not _is_call(pulled, aten.nll_loss_backward.default) or not _is_call(
            scores, aten._log_softmax.default
        ):
            continue
        gradient, logs, label, weight, reduction, ignored, count = pulled.args
        if logs is not scores or weight is not None or reduction == 0 or _value(scores).dim() != 2:
            continue
        scale: object = gradient
        add = _adder(module, node)
        if reduction == 1:
            scale = add(aten.div.Tensor, gradient, count)
        nothing = add(aten.zeros_like.default, scale)
        rows = add(aten.where.self, add(aten.ne.Scalar, label, ignored), scale, nothing)
        value = _value(scores)
        classes = add(aten.arange.default, value.shape[1], device=value.device)
        hot = add(aten.eq.Tensor, add(aten.unsqueeze.default, label, 1), classes)
        hot = add(aten._to_copy.default, hot, dtype=value.dtype)
        chances = add(aten.exp.default, scores)
        excess = add(aten.sub.Tensor, chances, hot)
        result = add(aten.mul.Tensor, excess, add(aten.unsqueeze.default, rows, 1))
        node.replace_all_uses_with(result)
        module.graph.erase_node(node)


def aligned_products(module: GraphModule) -> None:
    """Products in low precision with all their long sizes aligned."""
    padded: dict[tuple[Node, int, int], Node] = {}
    for target in (aten.mm.default, aten.addmm.default):
        for node in module.graph.find_nodes(op="call_function", target=target):
            if _value(node).dtype in (torch.bfloat16, torch.float16):
                _align(module, node, padded)


def _align(module: GraphModule, node: Node, padded: dict[tuple[Node, int, int], Node]) -> None:
    *bias, left, right = node.args
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    (rows, inner), columns = _value(left).shape, _value(right).shape[1]
    more = [_missing(size) for size in (rows, inner, columns)]
    if bias and not (node.kwargs == {} and _value(bias[0]).shape == (columns,)):
        return
    if not any(more):
        return
    add = _adder(module, node)
    arguments = [
        *(_padded(module, item, (more[2],), padded) for item in bias),
        _padded(module, left, (more[0], more[1]), padded),
        _padded(module, right, (more[1], more[2]), padded),
    ]
    result = add(node.target, *arguments)
    if more[0]:
        result = add(aten.slice.Tensor, result, 0, 0, rows)
    if more[2]:
        result = add(aten.slice.Tensor, result, 1, 0, columns)
    node.replace_all_uses_with(result)
    module.graph.erase_node(node)


def _padded(
    module: GraphModule,
    node: Any,
    more: tuple[int, ...],
    known: dict[tuple[Node, int, int], Node],
) -> Node:
    """The node with zeros behind its rows and columns, made once for it and its transpose."""
    assert isinstance(node, Node)
    if not any(more):
        return node
    if _is_call(node, aten.t.default):
        base = node.args[0]
        assert isinstance(base, Node)
        inner = _padded(module, base, more[::-1], known)
        with module.graph.inserting_after(inner):
            return module.graph.call_function(aten.t.default, (inner,))
    key = (node, more[0], more[-1])
    if key not in known:
        amounts = [amount for size in reversed(more) for amount in (0, size)]
        with module.graph.inserting_after(node):
            known[key] = module.graph.call_function(aten.constant_pad_nd.default, (node, amounts))
    return known[key]


def _missing(size: int) -> int:
    return -size % _WIDTH if size >= _LONG and size % _ALIGNED else 0


def own_pools(module: GraphModule) -> None:
    """Maximum pooling with channels side by side, if only gradients read the places."""
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
        value = _value(pool.x)
        fits = (
            value.dim() == 4
            and value.stride(1) == 1
            and value.shape[1] >= _ALIGNED
            and value.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and not pool.dilated
            and pool.kernel[0] * pool.kernel[1] < 255
            and all(
                _is_call(user, aten.max_pool2d_with_indices_backward.default) for user in gradients
            )
        )
        return pool if fits else None

    def replace(self, module: GraphModule) -> None:
        from purine.ops import gpu_pool  # noqa: F401  (makes the ops known; needs Triton)

        own = torch.ops.purine
        add = _adder(module, self.node)
        size = list(self.node.meta["val"][0].shape[2:])
        windows = (self.kernel, self.steps, self.pads)
        made = add(own.max_pool.default, self.x, *windows, size)
        for gradient in self.gradients:
            pull = _adder(module, gradient)
            place = gradient.args[-1]
            images = list(_value(self.x).shape[2:])
            pulled = pull(own.max_pool_gradient.default, gradient.args[0], place, *windows, images)
            gradient.replace_all_uses_with(pulled)
            module.graph.erase_node(gradient)
        self.node.replace_all_uses_with(made)
        module.graph.erase_node(self.node)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else [value[0], value[-1]]


def _value(node: Any) -> Tensor:
    """What a recorded node makes, without its contents."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _is_call(node: object, target: object) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def _adder(module: GraphModule, before: Node) -> Callable[..., Node]:
    """What adds a call in front of a node."""

    def add(target: Any, *args: Any, **kwargs: Any) -> Node:
        with module.graph.inserting_before(before):
            return module.graph.call_function(target, args, kwargs)

    return add
