"""Attention, and the layer that makes its queries, keys and values."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from purine.errors import KindError
from purine.graph import Attribute, Filler
from purine.ops.linear import inner_product
from purine.ops.net import Var
from purine.ops.registry import kind
from purine.ops.shape import reshape, split, transpose

__all__ = ["Attention", "attention"]


@kind
def Attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k^T times `scale`) v for blobs [N, heads, T, D].

    `causal` lets a position attend to itself and those before it. `scale` is by default
    1 / sqrt(D).
    """
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


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

    The projections are inner products along the last dimension: one makes queries, keys and values
    together (`name/qkv`, its rows in this order), one mixes the heads (`name/out`, which
    `out_filler` fills where it is given).

    >>> from purine.ops import Net
    >>> attention(Net().input("x", (2, 5, 8)), heads=2, causal=True, name="attention").name
    'attention/out'
    """
    name = x.net.builder.fresh(name or "attention")
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        raise KindError(
            f"layer {name!r} cannot cut blob {x.name!r} into {heads} heads",
            blob=x.name,
            expected="a blob [N, T, C] where C is a multiple of the heads",
            found=f"size {list(x.shape)}, {heads} heads",
            remedy="change heads, or the width of the blob",
        )
    width = x.shape[2]
    qkv = inner_product(
        x, 3 * width, axis=2, bias=bias, name=f"{name}/qkv", weight_filler=weight_filler
    )
    by_head = reshape(qkv, (0, 0, 3 * heads, width // heads), name=f"{name}/heads")
    by_head = transpose(by_head, (0, 2, 1, 3), name=f"{name}/transpose")
    settings: dict[str, Attribute] = {"causal": causal, "scale": scale}
    parts = split(by_head, 3, axis=1, name=f"{name}/split")
    mixed = x.net.apply("Attention", parts, settings, name=f"{name}/attend")
    mixed = transpose(mixed, (0, 2, 1, 3), name=f"{name}/back")
    mixed = reshape(mixed, (0, 0, width), name=f"{name}/join")
    return inner_product(
        mixed,
        width,
        axis=2,
        bias=bias,
        name=f"{name}/out",
        weight_filler=out_filler or weight_filler,
    )
