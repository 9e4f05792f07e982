"""Layers of torch in forms that can be traced, and operators in forms that a graph can have.

While a module is traced, batch norm with a cumulative average and the CTC loss are computed by
tensors alone, and grouped matrix products become an op of ours. In the exported program recurrent
layers become plain ops, for they differ between devices; attention with dropout is spelt out, so
that our kinds draw its mask; and what `torch.no_grad` computes is detached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram

from purine.errors import ConfigError
from purine.importers.torch.tracing import AnyFunction, current

__all__ = ["FUNCTIONS", "cumulative_batch_norm", "decompositions", "detach_no_grad"]


def cumulative_batch_norm(original: AnyFunction) -> AnyFunction:
    """The forward of batch norm without `float(num_batches_tracked)`."""

    def forward(self: nn.modules.batchnorm._BatchNorm, input: Tensor) -> object:
        """`momentum=None`: the statistics are the mean over all batches so far."""
        trace, count = current(), self.num_batches_tracked
        mean, var = self.running_mean, self.running_var
        cumulative = self.momentum is None and self.training
        if trace is None or not trace.in_forward or not cumulative:
            return original(self, input)
        if count is None or mean is None or var is None:
            return original(self, input)
        check: AnyFunction = self._check_input_dim
        check(input)
        count.add_(1)
        batch_mean, batch_var = torch.zeros_like(mean), torch.zeros_like(var)
        y = F.batch_norm(input, batch_mean, batch_var, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            mean.add_((batch_mean - mean) / count)
            var.add_((batch_var - var) / count)
        return y

    return forward


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> object:
    alone = log_probs.dim() == 2
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    if targets.dim() != 2:
        what = "the loss takes the labels of all samples in one row"
        expected = "targets of ctc_loss as [N, L], a row for each sample"
        remedy = "fill the labels of a sample up to L with zeros; target_lengths tells theirs"
        raise ConfigError(what, expected, f"targets {list(targets.shape)}", remedy)
    times, counts = (
        torch.as_tensor(value, dtype=torch.int64, device=log_probs.device).reshape(-1)
        for value in (input_lengths, target_lengths)
    )
    losses: Tensor = torch.ops.purine.CtcLosses(
        log_probs, targets, times, counts, blank=blank, zero_infinity=zero_infinity
    )
    if reduction in ("mean", 1):
        return (losses / counts.clamp(min=1).to(losses.dtype)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    return losses[0] if alone else losses


def _grouped_mm(x: Tensor, weight: Tensor, offs: Tensor | None = None, **more: object) -> object:
    """Rows times the matrix of their group; torch's own can be traced in bfloat16 only."""
    grouped: AnyFunction = torch._grouped_mm
    plain = offs is not None and all(value is None for value in more.values())
    if plain and (x.dim(), weight.dim()) == (2, 3):
        return torch.ops.purine.GroupedProduct(x, weight, offs)
    return grouped(x, weight, offs, **more)


FUNCTIONS: Mapping[str, AnyFunction] = {
    "_grouped_mm": _grouped_mm,
    "ctc_loss": _ctc_loss,
    "grouped_mm": _grouped_mm,
}
"""Functions of torch, by name, that a `Branches` mode calls in place of torch's own."""


@cache
def decompositions() -> dict[OpOverload, AnyFunction]:
    """The operators to decompose, and functions that compute the same."""
    known, ops = torch.export.default_decompositions(), torch.ops.aten
    chosen: dict[OpOverload, AnyFunction] = {ops.scaled_dot_product_attention.default: _attention}
    for packet in (ops.lstm, ops.gru, ops.rnn_tanh, ops.rnn_relu):
        for overload, sources in ((packet.input, 1), (packet.data, 2)):
            if overload in known:
                chosen[overload] = _layer_by_layer(known[overload], sources)
    return chosen


def _layer_by_layer(unrolled: AnyFunction, sources: int) -> AnyFunction:
    """Stacked recurrent layers one at a time: torch's decomposition drops the dropout between them.

    The first `sources` arguments are the input and, where it is packed, its batch sizes.
    """

    def stacked(*given: Any) -> Any:
        x, *packed = given[:sources]
        hx, params, biases, count, dropout, *rest = given[sources:]
        training = rest[0]
        if dropout == 0.0 or not training or count == 1:
            return unrolled(*given)
        single = isinstance(hx, Tensor)
        states = [state.chunk(count) for state in ([hx] if single else hx)]
        each = len(params) // count
        finals = []
        for layer, first in enumerate(zip(*states, strict=True)):
            weights = params[layer * each : (layer + 1) * each]
            source = F.dropout(x, dropout) if layer else x
            start = first[0] if single else list(first)
            x, *last = unrolled(source, *packed, start, weights, biases, 1, 0.0, *rest)
            finals.append(last)
        return (x, *(torch.cat(state) for state in zip(*finals, strict=True)))

    return stacked


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> object:
    """Attention with dropout in plain ops; without dropout it stays one op."""
    if dropout_p == 0.0:
        return NotImplemented
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ value


def detach_no_grad(exported: ExportedProgram) -> None:
    """Detach what comes out of `no_grad`: decomposing forgets that gradients end there."""
    graph = exported.graph
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    regions = [n for n in graph.nodes if n.target is region and n.args[0] is False]
    for node in regions:
        for result in [user for user in node.users if user.target is getitem]:
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta = dict(result.meta)
            result.replace_all_uses_with(
                detached, delete_user_cb=lambda user, own=detached: user is not own
            )
    if regions:
        exported.graph_module.recompile()
