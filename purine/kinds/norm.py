"""Batch norm, layer norm, local response normalisation, and the kernels of group norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.arguments import at_least, checked
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Filler, Op
from purine.kinds.net import Var
from purine.registry.aten import KERNELS
from purine.registry.facts import Facts, Precision, SampleRule, ShardRule
from purine.registry.gradient import RULES, Emit, Pull, Rule
from purine.registry.kind import Kernel, Results, kind

__all__ = ["batch_norm", "layer_norm", "lrn"]

Region = Literal["across", "within"]


@kind(
    evaluation="BatchNormTest",
    facts=Facts(Precision.NORM, ShardRule.BATCH_NORM, SampleRule.BATCH_NORM),
)
def BatchNorm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise over the batch; the results are y and the next running mean and variance."""
    y, _, _, mean_next, variance_next = torch.ops.aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, variance, True, momentum, eps
    )
    return y, mean_next, variance_next


@kind(facts=Facts(Precision.NORM, ShardRule.BATCH_NORM, SampleRule.ROWS))
def BatchNormTest(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise with the running mean and variance: batch norm at test time."""
    return F.batch_norm(x, mean, variance, weight, bias, False, momentum, eps)


@kind(facts=Facts(Precision.FOLLOW, ShardRule.LAYER_NORM, SampleRule.LAYER_NORM))
def LayerNorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    shape: tuple[int, ...],
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample over its last dimensions, whose sizes are `shape`."""
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"x of shape {list(x.shape)} does not end in shape {list(shape)}")
    return F.layer_norm(x, shape, weight, bias, eps)


@kind(facts=Facts(Precision.WIDE, ShardRule.LOCAL_RESPONSE, SampleRule.ROWS))
def LRN(
    x: Tensor,
    *,
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    region: Region = "across",
) -> Tensor:
    """x / (k + alpha times the mean square of its neighbours) ** beta, for x [N, C, H, W].

    Neighbours are `size` channels across, or a window of `size` by `size` within a channel. Those
    beyond the edge count as 0.
    """
    if size < 1 or (region == "within" and size % 2 == 0):
        raise ValueError(f"size is {size}: it must be at least 1, and odd within a channel")
    if region == "across":
        return F.local_response_norm(x, size, alpha, beta, k)
    mean = F.avg_pool2d(x * x, size, stride=1, padding=size // 2)
    return x / (k + alpha * mean) ** beta


@checked
def batch_norm(x: Var, *, momentum: float = 0.1, eps: float = 1e-5, name: str | None = None) -> Var:
    """A batch norm layer with scale, shift and running statistics."""
    net, name = x.net, x.net.builder.fresh(name or "bn")
    size, one = (x.extent(1),), Filler("constant", {"value": 1.0})
    weight = net.parameter(f"{name}/weight", size, one)
    bias = net.parameter(f"{name}/bias", size, Filler())
    mean = net.parameter(f"{name}/mean", size, Filler(), trainable=False)
    variance = net.parameter(f"{name}/variance", size, one, trainable=False)
    inputs, settings = [x, weight, bias, mean, variance], {"momentum": momentum, "eps": eps}
    labels = ("", "mean_next", "variance_next")
    y, *following = net.apply_many("BatchNorm", inputs, settings, name=name, labels=labels)
    for state, value in zip((mean, variance), following, strict=True):
        net.carry(state, value)
    return y


@checked
def layer_norm(
    x: Var, *, dims: int = 1, affine: bool = True, eps: float = 1e-5, name: str | None = None
) -> Var:
    """A layer norm layer over the last `dims` dimensions, with scale and shift if `affine`.

    >>> from purine.kinds import Net
    >>> layer_norm(Net().input("x", (2, 5, 8)), name="ln1").shape
    (2, 5, 8)
    """
    net, name = x.net, x.net.builder.fresh(name or "ln")
    at_least("dims", dims, 1, len(x.shape))
    shape = x.shape[-dims:]
    inputs = [x]
    if affine:
        inputs.append(net.parameter(f"{name}/weight", shape, Filler("constant", {"value": 1.0})))
        inputs.append(net.parameter(f"{name}/bias", shape, Filler()))
    return net.apply("LayerNorm", inputs, {"shape": shape, "eps": eps}, name=name)


@checked
def lrn(
    x: Var,
    *,
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    region: Region = "across",
    name: str | None = None,
) -> Var:
    """A local response normalisation layer."""
    numbers: dict[str, Attribute] = {"size": size, "alpha": alpha, "beta": beta, "k": k}
    return x.net.apply("LRN", [x], {**numbers, "region": region}, name=name)


def _lower_batch_norm(emit: Emit, op: Op) -> tuple[str, ...]:
    settings = {"training": True, "momentum": 0.1, "eps": 1e-5, **op.attributes}
    y, *following = op.outputs
    kind, outputs = "aten._native_batch_norm_legit_functional", [y, None, None, *following]
    _, mean, invstd, _, _ = emit(kind, op.inputs, settings, outputs=outputs)
    return (mean, invstd)


def _pull_batch_norm(emit: Emit, pull: Pull) -> Sequence[str | None]:
    op, wanted = pull.op, pull.wanted[:3]
    x, weight, _, mean, variance = op.inputs
    cotangent, *others = pull.cotangents
    if cotangent is None or any(others):
        what = f"{op} has a loss behind its running statistics"
        found = f"a loss that depends on {op.outputs[1]!r} or {op.outputs[2]!r}"
        remedy = "put a StopGradient before the ops that read the statistics"
        raise GraphError(what, f"gradients through {op.outputs[0]!r} alone", found, remedy, op=op)
    inputs = [cotangent, x, weight, mean, variance, *pull.saved]
    eps, outputs = op.attributes.get("eps", 1e-5), [None if want else NOTHING for want in wanted]
    settings = {"train": True, "eps": eps, "output_mask": tuple(wanted)}
    gradients = emit("aten.native_batch_norm_backward", inputs, settings, outputs=outputs)
    return (*(name or None for name in gradients), None, None)


RULES["BatchNorm"] = Rule(_lower_batch_norm, _pull_batch_norm)


def _without_gaps(overload: Kernel, count: int) -> Kernel:
    """An overload whose first `count` inputs are brought into the layout of the last of them."""

    def kernel(*inputs: Tensor, **settings: Attribute) -> Results:
        layout = _format_of(inputs[count - 1])
        dense = (value.contiguous(memory_format=layout) for value in inputs[:count])
        return overload(*dense, *inputs[count:], **settings)

    return kernel


def _format_of(x: Tensor) -> torch.memory_format:
    """On CPUs images stay channels-last; their kernels take that layout."""
    last = x.dim() == 4 and not x.is_contiguous() and x.device.type == "cpu"
    images = last and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if images else torch.contiguous_format


# torch's own kernels need inputs without gaps: the forward raises an error for others, the backward
# gives wrong numbers. `torch.group_norm` copies such inputs first, which no trace shows.
for _device in ("cpu", "cuda"):
    for _name, _count in (("native_group_norm", 1), ("native_group_norm_backward", 2)):
        _overload = getattr(torch.ops.aten, _name).default
        KERNELS[f"aten.{_name}", _device] = _without_gaps(_overload, _count)
