"""Rows of logits padded to aligned sizes, and softmax losses in fewer passes.

Matrix products whose rows cannot be read by wide loads (a vocabulary of 50,257) are computed from
matrices that are padded once. The logits stay padded up to the softmax, and from its gradient on,
so that every kernel over them reads and writes whole vectors. The gradient of a softmax loss is
one expression, or computed with the loss by a kernel of our own, which saves a pass over them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch
from torch.fx import Node
from torch.fx.node import Target

from purine.compile.rewrites._nodes import LOW, is_call, node_arg, node_of, uses, value_of
from purine.compile.rewrites._recorded import Recorded, adder, own_op, replace

__all__ = ["align_rows"]

aten = torch.ops.aten

_ALIGNED, _MULTIPLE, _LONG, _MANY_CLASSES = 8, 64, 1024, 4096
"""Sizes of at least `_LONG` that are no multiple of `_ALIGNED` are padded to a multiple of
`_MULTIPLE`. Our own kernel computes losses of at least `_MANY_CLASSES` classes."""


def align_rows(recorded: Recorded) -> int:
    """Pad long sizes of matrix products in low precision, and compute softmax losses in one pass.

    With Triton, losses of many classes are computed by our own kernel.

    Wide loads cannot read rows of 50,257 logits; padded rows are read and written as whole vectors,
    and softmax losses take fewer passes over them.
    """
    rows = _Rows(recorded)
    for node in list(recorded.graph.nodes):
        handler = _HANDLERS.get(node.target)
        if handler is not None:
            handler(rows, node)
    recorded.sort()
    return rows.count


class _Rows:
    """A function while its rows are padded.

    `wide` maps a node to one with the same rows and zeros behind them (or NaN, in a row that has
    NaN or infinities), `logs` maps a log-softmax to one with minus infinity behind its rows.
    """

    def __init__(self, recorded: Recorded) -> None:
        self.graph, self.triton = recorded.graph, recorded.triton
        self.count = 0
        self.wide: dict[Node, Node] = {}
        self.logs: dict[Node, Node] = {}
        self.low: dict[Node, Node] = {}
        """Maps a wide node in float32 to the node in low precision that it is a cast of."""
        self.padded: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def product(self, node: Node) -> None:
        *bias, left, right = map(node_of, node.args)
        if value_of(node).dtype not in LOW or node.kwargs:
            return
        (rows, inner), columns = value_of(left).shape, value_of(right).shape[1]
        if bias and value_of(bias[0]).shape != (columns,):
            return
        missing = [_missing(size) for size in (rows, inner, columns)]
        if not any(missing):
            return
        add = adder(node)
        result = add(
            node.target,
            *(self._padded(item, (missing[2],)) for item in bias),
            self._padded(left, (missing[0], missing[1])),
            self._padded(right, (missing[1], missing[2])),
        )
        if missing[0]:
            result = add(aten.slice.Tensor, result, 0, 0, rows)
        self._replace(node, result, columns)

    def follow(self, node: Node) -> None:
        """Apply a view or a cast, which leaves rows as they are, to wide rows."""
        base = node.args[0]
        if not isinstance(base, Node) or base not in self.wide:
            return
        if value_of(base).shape[-1] != value_of(node).shape[-1]:
            node.replace_input_with(base, adder(node)(aten.clone.default, base))
            return
        wide, add = self.wide[base], adder(node)
        low = self.low.get(wide)
        if node.target is aten.view.default:
            sizes = [*value_of(node).shape[:-1], self._width(base)]
            result = add(aten.view.default, wide, sizes)
            if low is not None:
                self.low[result] = view = add(aten.view.default, low, sizes)
                view.meta["val"] = value_of(low)
        elif low is not None and value_of(node).dtype == value_of(low).dtype:
            result = low
        else:
            result = add(node.target, wide, **node.kwargs)
        result.meta["val"] = node.meta["val"]
        self.wide[node] = result
        if not _missing(value_of(node).shape[-1]):
            self.wide[result] = result
            node.replace_all_uses_with(result)

    def softmax(self, node: Node) -> None:
        scores, axis, half = node.args
        if not isinstance(scores, Node) or scores not in self.wide:
            return
        value, width = value_of(scores), self._width(scores)
        assert isinstance(axis, int)
        if axis % value.dim() != value.dim() - 1:
            return
        add = adder(node)
        columns = add(aten.arange.default, width, device=value.device)
        inside = add(aten.lt.Scalar, columns, value.shape[-1])
        least = add(aten.full.default, [], -math.inf, dtype=value.dtype, device=value.device)
        masked = add(aten.where.self, inside, self.wide[scores], least)
        self.logs[node] = add(aten._log_softmax.default, masked, axis, half)

    def loss(self, node: Node) -> None:
        """Let a loss read wide rows: it reads one entry of each, at the label."""
        logs = node.args[0]
        if isinstance(logs, Node) and logs in self.logs and node.args[2] is None:
            node.replace_input_with(logs, self.logs[logs])

    def gradient(self, node: Node) -> None:
        """Write the gradient of a softmax loss with respect to its scores as one expression."""
        pulled, logs = node.args[0], node_arg(node, 1)
        if not is_call(pulled, aten.nll_loss_backward.default) or node.args[2] not in (1, -1):
            return
        if value_of(node).dtype != value_of(logs).dtype:
            return
        gradient, of, label, weight, reduction, ignored, count = pulled.args
        if of is not logs or weight is not None or reduction == 0 or value_of(logs).dim() != 2:
            return
        if self.triton and self._loss_with_gradient(node, pulled, logs):
            return
        add = adder(node)
        value, wide = value_of(logs), self.logs.get(logs)
        scale = add(aten.div.Tensor, gradient, count) if reduction == 1 else gradient
        counted = add(aten.ne.Scalar, label, ignored)
        rows = add(aten.where.self, counted, scale, add(aten.zeros_like.default, scale))
        width = value.shape[1] if wide is None else self._width(logs)
        columns = add(aten.arange.default, width, device=value.device)
        one_hot = add(aten.eq.Tensor, add(aten.unsqueeze.default, label, 1), columns)
        one_hot = add(aten._to_copy.default, one_hot, dtype=value.dtype)
        excess = add(aten.sub.Tensor, add(aten.exp.default, wide or logs), one_hot)
        result = add(aten.mul.Tensor, excess, add(aten.unsqueeze.default, rows, 1))
        self._replace(node, result, value.shape[1])

    def _loss_with_gradient(self, node: Node, pulled: Node, logs: Node) -> bool:
        """Let our own kernel compute a loss and its gradient, if it can."""
        gradient, _, label, _, reduction, ignored, _ = pulled.args
        readers = {*logs.users, *self.logs.get(logs, logs).users}
        losses = [user for user in readers if is_call(user, aten.nll_loss_forward.default)]
        low_scores = self._low_scores(logs)
        rows, classes = value_of(logs).shape
        fits = (
            classes >= _MANY_CLASSES
            and set(pulled.users) == {node}
            and len(losses) == 1
            and readers == {losses[0], pulled, node}
            and losses[0].args[1:] == (label, None, reduction, ignored)
            and value_of(logs).dtype == torch.float32
            and not uses(gradient, losses[0])
        )
        if low_scores is None or not fits:
            return False
        add = adder(node)
        count = add(aten.sum.default, add(aten.ne.Scalar, label, ignored))
        count = add(aten._to_copy.default, count, dtype=torch.float32)
        scale = add(aten.div.Tensor, gradient, count) if reduction == 1 else gradient
        scores = self.wide.get(low_scores, low_scores)
        scores = add(aten.view.default, scores, [rows, self._width(logs)])
        both = add(own_op("loss", "softmax_loss"), scores, label, scale, classes, ignored)
        total = add(aten.sum.default, add(operator.getitem, both, 0))
        total = add(aten.div.Tensor, total, count) if reduction == 1 else total
        for user in list(losses[0].users):
            user.replace_all_uses_with(total if user.args[1] == 0 else count)
        low = add(operator.getitem, both, 1)
        low.meta["val"] = value_of(logs).to(value_of(low_scores).dtype)
        result = add(aten._to_copy.default, low, dtype=torch.float32)
        self.low[result] = low
        self._replace(node, result, classes)
        return True

    def _low_scores(self, logs: Node) -> Node | None:
        """The scores in low precision that a log-softmax in float32 reads through casts."""
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
        """Replace a node by a wide result, sliced for readers that are not widened."""
        if _missing(columns):
            sliced = adder(node)(aten.slice.Tensor, result, 1, 0, columns)
            self.wide[sliced] = result
            result = sliced
        elif result in self.low:
            self.wide[result] = result
        replace(node, result)
        self.count += 1

    def _padded(self, node: Node, missing: tuple[int, ...]) -> Node:
        """A node with zeros behind its rows and columns, padded once for it and its transpose."""
        if not any(missing):
            return node
        if is_call(node, aten.t.default):
            inner = self._padded(node_arg(node, 0), missing[::-1])
            with self.graph.inserting_after(inner):
                return self.graph.call_function(aten.t.default, (inner,))
        if node in self.wide and not any(missing[:-1]):
            return self.wide[node]
        key = (node, missing)
        if key not in self.padded:
            amounts = [amount for size in reversed(missing) for amount in (0, size)]
            with self.graph.inserting_after(node):
                pad = self.graph.call_function(aten.constant_pad_nd.default, (node, amounts))
            self.padded[key] = pad
        return self.padded[key]

    def _width(self, node: Node) -> int:
        width = int(value_of(node).shape[-1])
        return width + _missing(width)


_HANDLERS: dict[Target, Callable[[_Rows, Node], None]] = {
    aten.mm.default: _Rows.product,
    aten.addmm.default: _Rows.product,
    aten.view.default: _Rows.follow,
    aten._to_copy.default: _Rows.follow,
    aten._log_softmax.default: _Rows.softmax,
    aten.nll_loss_forward.default: _Rows.loss,
    aten._log_softmax_backward_data.default: _Rows.gradient,
}


def _missing(size: int) -> int:
    """By how much a size is padded."""
    return -size % _MULTIPLE if size >= _LONG and size % _ALIGNED else 0
