"""Transforms of batches of images; random ones draw per sample, as in `purine.kinds.random`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.analysis.shapes import pair
from purine.arguments import checked
from purine.graph import Attribute
from purine.kinds.net import Var
from purine.kinds.random import random_bits
from purine.registry.aten import dtype_of
from purine.registry.facts import Facts, Precision, SampleRule
from purine.registry.gradient import RULES, Emit, Pull, Rule, lower_unchanged
from purine.registry.kind import kind

__all__ = ["center_crop", "crop", "mirror", "normalize"]

Pair = int | tuple[int, int]
Real = Literal["float16", "bfloat16", "float32", "float64"]


@kind(facts=Facts(Precision.WIDE, samples=SampleRule.ROWS))
def Normalize(
    x: Tensor,
    average: Tensor | None = None,
    *,
    mean: float | tuple[float, ...] = 0.0,
    scale: float = 1.0,
    dtype: Real = "float32",
) -> Tensor:
    """(x - mean) times scale as `dtype`; `mean` is one number, or one for each channel.

    An `average` of the size of one sample of x is subtracted first.
    """
    value = x.to(dtype_of(dtype))
    if average is not None:
        shape = list(average.shape)
        if shape != list(x.shape[1:]):
            raise ValueError(f"an average of shape {shape} for x of shape {list(x.shape)}")
        value = value - average.to(value.dtype)
    if not isinstance(mean, tuple):
        return (value - mean) * scale
    if x.ndim < 2 or x.shape[1] != len(mean):
        raise ValueError(f"{len(mean)} means for x of shape {list(x.shape)}")
    parts = [torch.full((), part, dtype=value.dtype, device=x.device) for part in mean]
    return (value - torch.stack(parts).reshape(-1, *[1] * (x.ndim - 2))) * scale


@kind(evaluation="CenterCrop", facts=Facts(Precision.FOLLOW, samples=SampleRule.ROWS))
def Crop(
    x: Tensor,
    seed: Tensor,
    iteration: Tensor,
    *,
    size: Pair,
    pad: int = 0,
    stream: str = "",
    offset: int = 0,
) -> Tensor:
    """A part of `size` of each image [C, H, W], at random, after `pad` zeros on all sides."""
    _free_space(tuple(x.shape), size, pad)
    padded = F.pad(x, (pad, pad, pad, pad))
    return padded[_places(padded, seed, iteration, size, stream, offset)]


@kind(facts=Facts(Precision.FOLLOW))
def CropGradient(
    gradient: Tensor,
    seed: Tensor,
    iteration: Tensor,
    *,
    height: int,
    width: int,
    size: Pair,
    pad: int = 0,
    stream: str = "",
    offset: int = 0,
) -> Tensor:
    """The gradient of a `Crop` put back where it was cut from images of `height` and `width`."""
    samples, channels = gradient.shape[:2]
    whole = gradient.new_zeros(samples, channels, height + 2 * pad, width + 2 * pad)
    places = _places(whole, seed, iteration, size, stream, offset)
    whole = whole.index_put(places, gradient)
    return whole[:, :, pad : pad + height, pad : pad + width].contiguous()


@kind(view=True, facts=Facts(Precision.FOLLOW, samples=SampleRule.ROWS))
def CenterCrop(x: Tensor, *, size: Pair, pad: int = 0, stream: str = "", offset: int = 0) -> Tensor:
    """The middle of each image: `Crop` at test time, so `stream` and `offset` are ignored."""
    down, right = _free_space(tuple(x.shape), size, pad)
    height, width = pair(size)
    padded = F.pad(x, (pad, pad, pad, pad)) if pad else x
    return padded.narrow(2, down // 2, height).narrow(3, right // 2, width)


@kind(evaluation="pass", facts=Facts(Precision.FOLLOW, samples=SampleRule.ROWS))
def Mirror(
    x: Tensor, seed: Tensor, iteration: Tensor, *, stream: str = "", offset: int = 0
) -> Tensor:
    """Each image with left and right exchanged with probability 1/2; nothing at test time."""
    bits = random_bits(seed, iteration, x.shape[0], stream=stream, offset=offset)
    chosen = (bits < 0).reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(chosen, x.flip(-1), x)


@checked
def normalize(
    x: Var,
    *,
    mean: float | Sequence[float] = 0.0,
    scale: float = 1.0,
    dtype: Real | None = None,
    name: str | None = None,
) -> Var:
    """x shifted, scaled and cast, by default to the dtype of the net."""
    means = tuple(mean) if isinstance(mean, Sequence) else mean
    settings: dict[str, Attribute] = {"mean": means, "scale": scale, "dtype": dtype or x.net.dtype}
    return x.net.apply("Normalize", [x], settings, name=name)


@checked
def crop(x: Var, *, size: Pair, pad: int = 0, name: str | None = None) -> Var:
    """A random crop; a centre crop at test time."""
    name = x.net.builder.fresh(name or "crop")
    return x.net.apply("Crop", [x], {"size": size, "pad": pad, "stream": name}, name=name)


@checked
def center_crop(x: Var, *, size: Pair, pad: int = 0, name: str | None = None) -> Var:
    """The middle of each image."""
    return x.net.apply("CenterCrop", [x], {"size": size, "pad": pad}, name=name or "center_crop")


@checked
def mirror(x: Var, *, name: str | None = None) -> Var:
    """A random mirror image of each sample; nothing at test time."""
    name = x.net.builder.fresh(name or "mirror")
    return x.net.apply("Mirror", [x], {"stream": name}, name=name)


def _pull_crop(emit: Emit, pull: Pull) -> Sequence[str | None]:
    x, *clock = pull.op.inputs
    *_, height, width = emit.blob(x).sizes
    settings = {"height": height, "width": width, **pull.op.attributes}
    return (*emit("CropGradient", [pull.cotangent, *clock], settings, label="crop"), None, None)


def _pull_alike(emit: Emit, pull: Pull) -> Sequence[str | None]:
    """The gradient of `CropGradient` is a crop, and that of a mirror image is mirrored alike."""
    settings = {k: v for k, v in pull.op.attributes.items() if k not in ("height", "width")}
    inputs = [pull.cotangent, *pull.op.inputs[1:]]
    return (*emit(pull.op.kind.removesuffix("Gradient"), inputs, settings), None, None)


RULES["Crop"] = Rule(lower_unchanged, _pull_crop)
RULES["CropGradient"] = RULES["Mirror"] = Rule(lower_unchanged, _pull_alike)


def _free_space(shape: tuple[int, ...], size: Pair, pad: int) -> tuple[int, int]:
    """How far a window of `size` can move down and to the right."""
    height, width = pair(size)
    if len(shape) != 4:
        raise ValueError(f"x has {len(shape)} dimensions: a batch of images has 4")
    if pad < 0:
        raise ValueError(f"pad is {pad}: it must be at least 0")
    down, right = shape[2] + 2 * pad - height, shape[3] + 2 * pad - width
    if min(height, width) < 1 or min(down, right) < 0:
        raise ValueError(
            f"{height} x {width} cannot be cut from {shape[2]} x {shape[3]} with pad {pad}"
        )
    return down, right


def _places(
    padded: Tensor, seed: Tensor, iteration: Tensor, size: Pair, stream: str, offset: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The indices of a random window of each image, two draws a sample."""
    samples, channels, rows, columns = padded.shape
    height, width = pair(size)
    bits = random_bits(seed, iteration, 2 * samples, stream=stream, offset=2 * offset)
    drawn = bits.reshape(samples, 2).long() + 2**31
    top = (drawn[:, 0] * (rows - height + 1)) >> 32
    left = (drawn[:, 1] * (columns - width + 1)) >> 32

    count = partial(torch.arange, device=padded.device)
    return (
        count(samples).reshape(-1, 1, 1, 1),
        count(channels).reshape(1, -1, 1, 1),
        (top.unsqueeze(1) + count(height)).reshape(samples, 1, height, 1),
        (left.unsqueeze(1) + count(width)).reshape(samples, 1, 1, width),
    )
