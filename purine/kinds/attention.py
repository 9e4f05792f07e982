"""Attention, and the layer that makes its queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.arguments import checked
from purine.errors import KindError
from purine.graph import Attribute, Filler
from purine.kinds.linear import inner_product
from purine.kinds.net import Var
from purine.kinds.shape import reshape, split, transpose
from purine.registry.aten import KERNELS
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.kind import kind

__all__ = ["attention"]


@kind(facts=Facts(Precision.LOW, ShardRule.ATTENTION, SampleRule.ROWS))
def Attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k^T times `scale`) v for blobs [N, heads, T, D].

    `scale` is by default 1 / sqrt(D). `causal` lets a position attend to itself and earlier ones.
    """
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def _attend_on_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention on a GPU, for a net whose backward was traced for a CPU."""
    if _has_cudnn(query, key, is_causal, attn_mask):
        result, logsumexp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, dropout_p, is_causal, False, scale=scale
        )
        return result, logsumexp.squeeze(-1)
    if _has_flash(query, key, is_causal, attn_mask):
        result, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        return result, logsumexp
    scores = _scores(query, key, is_causal, attn_mask, scale)
    return scores.softmax(-1).to(value.dtype) @ value, scores.logsumexp(-1)


def _pull_on_gpu(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value of `_attend_on_gpu`."""
    gradients: tuple[Tensor, Tensor, Tensor]
    if _has_cudnn(query, key, is_causal, attn_mask):
        state = torch.empty((), dtype=torch.int64, device=query.device)  # of dropout: not read
        gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            *(grad_out, query, key, value, out, logsumexp.unsqueeze(-1), state, state),
            *(None, None, None, query.shape[-2], key.shape[-2], dropout_p, is_causal),
            scale=scale,
        )
        return gradients
    if _has_flash(query, key, is_causal, attn_mask):
        state = torch.empty(2, dtype=torch.uint64, device=query.device)  # of dropout: not read
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(grad_out, query, key, value, out, logsumexp, None, None),
            *(query.shape[-2], key.shape[-2], dropout_p, is_causal, state, state[:0]),
            scale=scale,
        )
        return gradients
    weights = (_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1)).exp()
    pulled = (grad_out @ value.transpose(-2, -1)).to(weights.dtype)
    inner = (grad_out * out).sum(-1, keepdim=True).to(weights.dtype)
    scores = (weights * (pulled - inner) * _factor(query, scale)).to(query.dtype)
    values = weights.to(value.dtype).transpose(-2, -1) @ grad_out
    return scores @ key, scores.transpose(-2, -1) @ query, values


def _has_flash(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None) -> bool:
    """Whether a fused kernel takes this; their causal mask differs if the lengths differ."""
    low = query.dtype in (torch.float16, torch.bfloat16)
    square = not causal or query.shape[-2] == key.shape[-2]
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return low and mask is None and square and fits and _capability(query) >= (8, 0)


def _capability(value: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(value.device) if value.is_cuda else (0, 0)


_cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version


def _has_cudnn(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None) -> bool:
    """Whether cuDNN has the quickest kernel: from Hopper on, for heads that are not too wide."""
    return (
        _has_flash(query, key, causal, mask)
        and query.shape[-1] <= 128
        and (_cudnn_version() or 0) >= 90000
        and _capability(query) >= (9, 0)
    )


def _factor(query: Tensor, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.5 if scale is None else scale)


def _scores(
    query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    """The scores of a plain attention, in float32 or better."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-2, -1)).to(wide) * _factor(query, scale)
    if causal:
        allowed = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


KERNELS["aten._scaled_dot_product_flash_attention_for_cpu", "cuda"] = _attend_on_gpu
KERNELS["aten._scaled_dot_product_flash_attention_for_cpu_backward", "cuda"] = _pull_on_gpu


@checked
def attention(
    x: Var,
    *,
    heads: int,
    causal: bool = False,
    scale: float | None = None,
    bias: bool = True,
    name: str | None = None,
    weight_filler: Filler | None = None,
    out_filler: Filler | None = None,
) -> Var:
    """A self-attention layer over [N, T, C].

    One inner product computes queries, keys and values (`name/qkv`, its rows in this order), one
    mixes the heads (`name/out`, filled by `out_filler` if it is given).

    >>> from purine.kinds import Net
    >>> attention(Net().input("x", (2, 5, 8)), heads=2, causal=True, name="attention").name
    'attention/out'
    """
    name = x.net.builder.fresh(name or "attention")
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        what = f"layer {name!r} cannot cut blob {x.name!r} into {heads} heads"
        expected = "a blob [N, T, C] where C is a multiple of the heads"
        remedy = "change heads, or the width of the blob"
        raise KindError(what, expected, f"size {list(x.shape)}, {heads} heads", remedy, blob=x.name)
    width = x.shape[2]
    layer = partial(inner_product, axis=2, bias=bias)
    qkv = layer(x, 3 * width, name=f"{name}/qkv", weight_filler=weight_filler)
    by_head = reshape(qkv, (0, 0, 3 * heads, width // heads), name=f"{name}/heads")
    by_head = transpose(by_head, (0, 2, 1, 3), name=f"{name}/transpose")
    settings: dict[str, Attribute] = {"causal": causal, "scale": scale}
    parts = split(by_head, 3, axis=1, name=f"{name}/split")
    mixed = x.net.apply("Attention", parts, settings, name=f"{name}/attend")
    mixed = transpose(mixed, (0, 2, 1, 3), name=f"{name}/back")
    mixed = reshape(mixed, (0, 0, width), name=f"{name}/join")
    return layer(mixed, width, name=f"{name}/out", weight_filler=out_filler or weight_filler)
