"""Gradients of attention that are made where the layer in front needs them: in one matrix.

Where one layer makes queries, keys and values together, a step joins their three gradients. The
kernels of `gpu_attention` write them side by side, with the sums that the gradient of the layer's
bias is made of (see `_sums`).
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from purine.compile.rewrites.aligned import LOW
from purine.compile.rewrites.recorded import adder, is_call, note, value_of

__all__ = ["attention_of", "own_attention"]

aten = torch.ops.aten

_CUDNN = aten._scaled_dot_product_cudnn_attention_backward.default
_FLASH = aten._scaled_dot_product_flash_attention_backward.default
_SIZES = (16, 32, 64)
"""Sizes of heads for our kernels."""
_SHORT, _LONG = 64, 1024
"""Positions that fill a program, and up to which making scores twice is quicker than adding up
gradients in memory."""
_HEADS, _FAR = 2**16, 2**31
"""Heads of all samples in a grid of programs, and offsets inside a sample, are below these."""
_JOINS = (
    aten.clone.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
)


def own_attention(module: GraphModule) -> None:
    """Gradients of attention in low precision that are joined at once, by a kernel of our own."""
    for target in (_CUDNN, _FLASH):
        for node in module.graph.find_nodes(op="call_function", target=target):
            joined = _joined(node)
            if joined is not None and _fits(node):
                _replace(module, node, joined)


def attention_of(matrix: Node) -> Node | None:
    """The call of our kernel that makes a matrix, if one does."""
    columns = value_of(matrix).shape[-1]
    while matrix.target in _JOINS[1:]:
        matrix = matrix.all_input_nodes[0]
    if not is_call(matrix, operator.getitem) or matrix.args[1] != 0:
        return None
    made = matrix.args[0]
    if str(made.target) != "purine.attention_gradient.default":  # known only where it is used
        return None
    return made if made.meta["val"][0].shape[1] == columns else None


def _joined(node: Node) -> Node | None:
    """Where the three gradients first lie in memory side by side, if nobody else reads them."""
    taken = {user.args[1]: user for user in node.users if is_call(user, operator.getitem)}
    if set(taken) != {0, 1, 2} or len(node.users) != 3:
        return None
    pieces = [taken[place] for place in range(3)]
    whole = _only_user(pieces[0])
    if whole is None or not is_call(whole, aten.cat.default) or whole.args != (pieces, 1):
        return None
    turned = _only_user(whole)
    if turned is None or not is_call(turned, aten.permute.default) or not _turns(turned):
        return None
    joined = _only_user(turned)
    known = joined is not None and joined.target in _JOINS and _lies_in_order(joined)
    alone = all(_only_user(piece) is whole for piece in pieces)
    return joined if known and alone else None


def _turns(node: Node) -> bool:
    """Whether a permutation puts positions in front of heads."""
    return [axis % 4 for axis in node.args[1]] == [0, 2, 1, 3]


def _lies_in_order(node: Node) -> bool:
    return "val" in node.meta and value_of(node).is_contiguous()


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _options(node: Node) -> tuple[float, bool, bool]:
    """The dropout of an attention, whether it is causal, and whether nothing else changes it."""
    if node.target is _CUDNN:
        dropout, causal = node.args[13:15]
        plain = all(item is None for item in node.args[8:11])
    else:
        dropout, causal = node.args[10:12]
        plain = all(item is None for item in node.args[6:8])
    return float(dropout), bool(causal), plain


def _fits(node: Node) -> bool:
    """Whether an attention is for our kernels; what rewrites have added has no known form."""
    if any("val" not in item.meta for item in node.args[:6]):
        return False
    values = [value_of(item) for item in node.args[:5]]
    dropout, _, plain = _options(node)
    first = values[1]
    return (
        plain
        and dropout == 0.0
        and first.dim() == 4
        and first.dtype in LOW
        and _SHORT <= first.shape[2] <= _LONG
        and first.shape[0] * first.shape[1] < _HEADS
        and first.shape[3] in _SIZES
        and all(value.shape == first.shape and value.dtype == first.dtype for value in values)
        and all(value.stride(3) == 1 for value in values)
        and all(value.stride(1) * value.shape[1] < _FAR for value in values)
        and all(value.stride(2) * value.shape[2] < _FAR for value in values)
    )


def _replace(module: GraphModule, node: Node, joined: Node) -> None:
    from purine.kernels import attention as gpu_attention  # noqa: F401  (makes the op known; needs Triton)

    _, causal, _ = _options(node)
    scale = node.kwargs.get("scale")
    if scale is None:
        scale = value_of(node.args[1]).shape[3] ** -0.5
    add = adder(module, node)
    made = add(torch.ops.purine.attention_gradient.default, *node.args[:6], causal, scale)
    note(made, *map(value_of, node.args[:6]), causal, scale)
    whole = add(operator.getitem, made, 0)
    result = add(aten.view.default, whole, list(value_of(joined).shape))
    result.meta["val"] = value_of(joined)
    joined.replace_all_uses_with(result)
    for old in (joined, *_way(node, joined), node):
        module.graph.erase_node(old)


def _way(node: Node, joined: Node) -> list[Node]:
    """What lies between gradients and where they are joined, the last first."""
    turned = joined.all_input_nodes[0]
    whole = turned.all_input_nodes[0]
    return [turned, whole, *node.users]
