"""Rows of scores that are aligned, from the product that makes them to those of their gradient.

Products of matrices with rows that no wide load can read (a vocabulary of 50,257) are made of
matrices that are padded once, and the scores stay wide up to the softmax and from its gradient on,
so that all kernels over them read and write whole vectors. The gradient of a softmax loss is not
pulled back through the logarithm and the softmax, which takes one more pass over all scores: it is
written down as it is, or made together with the loss by a kernel of our own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from purine.compile.rewrites.recorded import adder, is_call, needs, value_of

__all__ = ["LOW", "aligned"]

aten = torch.ops.aten

LOW = (torch.bfloat16, torch.float16)
_ALIGNED, _WIDTH, _LONG, _MANY = 8, 64, 1024, 4096
"""Sizes of at least `_LONG` that are no multiple of `_ALIGNED` become multiples of `_WIDTH`. Losses
of at least `_MANY` classes are made by our own kernel."""


def aligned(module: GraphModule, *, own: bool = False) -> None:
    """Long sizes of products in low precision aligned, and softmax losses in one pass back.

    With `own`, losses of many classes are made by a kernel that needs Triton.
    """
    from torch._inductor.pattern_matcher import stable_topological_sort

    rows = _Rows(module, own=own)
    for node in list(module.graph.nodes):
        step = _STEPS.get(node.target)
        if step is not None:
            step(rows, node)
    stable_topological_sort(module.graph)


class _Rows:
    """A module in work.

    `wide` has, by node, one with the same rows and zeros behind them (or NaN, in a row that has NaN
    or infinities), `logs` one with logarithms of nothing behind them.
    """

    def __init__(self, module: GraphModule, *, own: bool) -> None:
        self.module, self.own = module, own
        self.wide: dict[Node, Node] = {}
        self.logs: dict[Node, Node] = {}
        self.low: dict[Node, Node] = {}
        """By wide node in float32, what it is a cast of."""
        self.padded: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def product(self, node: Node) -> None:
        *bias, left, right = node.args
        if value_of(node).dtype not in LOW or node.kwargs:
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
        wide, add = self.wide[base], adder(self.module, node)
        low = self.low.get(wide)
        if node.target is aten.view.default:
            sizes = [*value_of(node).shape[:-1], self._width(base)]
            made = add(aten.view.default, wide, sizes)
            if low is not None:
                self.low[made] = add(aten.view.default, low, sizes)
                self.low[made].meta["val"] = value_of(low)
        elif low is not None and value_of(node).dtype == value_of(low).dtype:
            made = low
        else:
            made = add(node.target, wide, **node.kwargs)
        made.meta["val"] = node.meta["val"]
        self.wide[node] = made
        if not _missing(value_of(node).shape[-1]):
            self.wide[made] = made
            node.replace_all_uses_with(made)

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
        if logs in self.logs and node.args[2] is None:
            node.replace_input_with(logs, self.logs[logs])

    def pull(self, node: Node) -> None:
        """The gradient of a softmax loss by its scores."""
        pulled, logs = node.args[:2]
        if not is_call(pulled, aten.nll_loss_backward.default) or node.args[2] not in (1, -1):
            return
        if value_of(node).dtype != value_of(logs).dtype:
            return
        gradient, of, label, weight, reduction, ignored, count = pulled.args
        if of is not logs or weight is not None or reduction == 0 or value_of(logs).dim() != 2:
            return
        if self.own and self._pull_at_once(node, pulled, logs):
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

    def _pull_at_once(self, node: Node, pulled: Node, logs: Node) -> bool:
        """Let our own kernel make a loss and its gradient, if it can."""
        gradient, _, label, _, reduction, ignored, _ = pulled.args
        readers = {*logs.users, *self.logs.get(logs, logs).users}
        losses = [user for user in readers if is_call(user, aten.nll_loss_forward.default)]
        known = self._low_scores(logs)
        scores = self.wide.get(known, known)
        rows, classes = value_of(logs).shape
        simple = scores is not None and classes >= _MANY and set(pulled.users) == {node}
        simple &= len(losses) == 1 and readers == {losses[0], pulled, node}
        if not simple or losses[0].args[1:] != (label, None, reduction, ignored):
            return False
        if value_of(logs).dtype != torch.float32 or needs(gradient, losses[0]):
            return False
        from purine.kernels import loss as gpu_loss  # noqa: F401  (makes the op known; needs Triton)

        add = adder(self.module, node)
        count = add(aten.sum.default, add(aten.ne.Scalar, label, ignored))
        count = add(aten._to_copy.default, count, dtype=torch.float32)
        scale = add(aten.div.Tensor, gradient, count) if reduction == 1 else gradient
        scores = add(aten.view.default, scores, [rows, self._width(logs)])
        made = add(torch.ops.purine.softmax_loss.default, scores, label, scale, classes, ignored)
        loss = add(aten.sum.default, add(operator.getitem, made, 0))
        loss = add(aten.div.Tensor, loss, count) if reduction == 1 else loss
        for user in list(losses[0].users):
            user.replace_all_uses_with(loss if user.args[1] == 0 else count)
        low = add(operator.getitem, made, 1)
        low.meta["val"] = value_of(logs).to(value_of(known).dtype)
        result = add(aten._to_copy.default, low, dtype=torch.float32)
        self.low[result] = low
        self._replace(node, result, classes)
        return True

    def _low_scores(self, logs: Node) -> Node | None:
        """The scores in low precision that a log-softmax of float32 is made of."""
        if not is_call(logs, aten._log_softmax.default):
            return None
        node = logs.args[0]
        while isinstance(node, Node) and value_of(node).dtype not in LOW:
            if not is_call(node, aten.view.default) and not is_call(node, aten._to_copy.default):
                return None
            node = node.args[0]
        if not isinstance(node, Node) or value_of(node).shape[-1] != value_of(logs).shape[-1]:
            return None
        return node if node in self.wide or not _missing(value_of(node).shape[-1]) else None

    def _replace(self, node: Node, result: Node, columns: int) -> None:
        """Let a wide result take the place of a node, cut where it is read as it was."""
        if _missing(columns):
            cut = adder(self.module, node)(aten.slice.Tensor, result, 1, 0, columns)
            cut.meta["val"] = node.meta["val"]
            self.wide[cut] = result
            result = cut
        elif result in self.low:
            self.wide[result] = result
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
