"""Operators that an exported program is to have in simpler form.

Recurrent layers become plain ops, for they differ between devices. Attention with dropout is
spelt out, so that our kinds draw its mask. What `torch.no_grad` computes is detached.
"""

from __future__ import annotations

from functools import cache
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram

from purine.importers.torch.tracing import AnyFunction

__all__ = ["decompositions", "detach_no_grad"]


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
