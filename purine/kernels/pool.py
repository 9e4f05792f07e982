"""Max pooling on GPUs by two kernels of our own, for channels-last images.

The generic kernels of a compiler take a third of GoogLeNet's step, because they compute the address
of every element. Ours compute addresses once for a row of channels, and store the position of a
maximum inside its window in one byte. Numbers of 16 bits are compared as integers whose low bits
hold the position in the window, so that one comparison finds both, and the first of equal numbers
wins. The gradient of an element is gathered from the windows that hold it: every element is written
once, and the bits are the same from run to run.

Importing this module needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["max_pool", "max_pool_gradient"]

_PIXELS, _CHANNELS, _WARPS = 32, 64, 4


@triton.jit
def _pool(
    x,
    result,
    places,
    pixels,
    channels,
    height,
    width,
    out_height,
    out_width,
    stride_n,
    stride_h,
    stride_w,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STEP_H: tl.constexpr,
    STEP_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    top = (pixel // out_width) % out_height * STEP_H - PAD_H
    left = pixel % out_width * STEP_W - PAD_W
    image = (pixel // (out_width * out_height)).to(tl.int64) * stride_n
    best = tl.full((PIXELS, CHANNELS), -(2**31), tl.int32)
    for i in tl.static_range(KERNEL_H):
        for j in tl.static_range(KERNEL_W):
            h, w = top + i, left + j
            inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            row = image + h * stride_h + w * stride_w
            bits = tl.load(x + row[:, None] + channel[None, :], known & inside[:, None], -1)
            best = tl.maximum(best, _ordered(bits.to(tl.int32)) * 256 + 254 - i * KERNEL_W - j)
    to = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, _ordered(best >> 8).to(tl.int16), known)
    tl.store(places + to, (254 - (best & 255)).to(tl.uint8), known)


@triton.jit
def _ordered(bits):
    """The bits of numbers as integers in the same order, and back."""
    return bits ^ ((bits >> 15) & 0x7FFF)


@triton.jit
def _pull(
    gradient,
    places,
    result,
    pixels,
    channels,
    height,
    width,
    out_height,
    out_width,
    stride_n,
    stride_h,
    stride_w,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STEP_H: tl.constexpr,
    STEP_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    h = (pixel // width) % height + PAD_H
    w = pixel % width + PAD_W
    image = (pixel // (width * height)).to(tl.int64)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for i in tl.static_range((KERNEL_H + STEP_H - 1) // STEP_H):
        for j in tl.static_range((KERNEL_W + STEP_W - 1) // STEP_W):
            out_h, out_w = h // STEP_H - i, w // STEP_W - j
            in_h, in_w = h - out_h * STEP_H, w - out_w * STEP_W
            inside = (out_h >= 0) & (out_h < out_height) & (in_h < KERNEL_H)
            inside &= (out_w >= 0) & (out_w < out_width) & (in_w < KERNEL_W)
            held = known & inside[:, None]
            at = ((image * out_height + out_h) * out_width + out_w) * channels
            place = tl.load(places + at[:, None] + channel[None, :], held, 255).to(tl.int32)
            row = image * stride_n + out_h * stride_h + out_w * stride_w
            value = tl.load(gradient + row[:, None] + channel[None, :], held, 0.0)
            here = (in_h * KERNEL_W + in_w)[:, None] == place
            total += tl.where(here, value.to(tl.float32), 0.0)
    to = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, total.to(result.dtype.element_ty), known)


@torch.library.custom_op("purine::max_pool", mutates_args=())
def max_pool(
    x: Tensor, kernel: Sequence[int], step: Sequence[int], pad: Sequence[int], size: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The maxima over windows of x [N, C, H, W], and the position of each inside its window.

    x has 16-bit numbers. `size` is the [H, W] of the result.
    """
    x = _by_channel(x)
    result, places = _like_pooled(x, size)
    bits = (x.view(torch.int16), result.view(torch.int16), places)
    _launch(_pool, bits, result, x, x, size, (*kernel, *step, *pad))
    return result, places


@max_pool.register_fake
def _(
    x: Tensor, kernel: Sequence[int], step: Sequence[int], pad: Sequence[int], size: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return _like_pooled(x, size)


@torch.library.custom_op("purine::max_pool_gradient", mutates_args=())
def max_pool_gradient(
    gradient: Tensor,
    places: Tensor,
    kernel: Sequence[int],
    step: Sequence[int],
    pad: Sequence[int],
    size: Sequence[int],
) -> Tensor:
    """The gradient of `max_pool` with respect to x, whose [H, W] is `size`."""
    gradient, places = _by_channel(gradient), _by_channel(places)
    result = _like_images(gradient, size)
    sizes = (*kernel, *step, *pad)
    _launch(_pull, (gradient, places, result), result, gradient, result, places.shape[2:], sizes)
    return result


@max_pool_gradient.register_fake
def _(
    gradient: Tensor,
    places: Tensor,
    kernel: Sequence[int],
    step: Sequence[int],
    pad: Sequence[int],
    size: Sequence[int],
) -> Tensor:
    return _like_images(gradient, size)


def _launch(
    kernel: triton.JITFunction,
    tensors: tuple[Tensor, ...],
    written: Tensor,
    strided: Tensor,
    images: Tensor,
    pooled: Sequence[int],
    sizes: Sequence[int],
) -> None:
    batch, channels, *size = written.shape
    pixels = batch * size[0] * size[1]
    grid = (triton.cdiv(pixels, _PIXELS), triton.cdiv(channels, _CHANNELS))
    strides = (strided.stride(0), strided.stride(2), strided.stride(3))
    places = (pixels, channels, *images.shape[2:], *pooled, *strides)
    kernel[grid](*tensors, *places, *sizes, PIXELS=_PIXELS, CHANNELS=_CHANNELS, num_warps=_WARPS)


def _by_channel(value: Tensor) -> Tensor:
    """A value whose channels are contiguous in memory."""
    near = value.stride(1) == 1
    return value if near else value.contiguous(memory_format=torch.channels_last)


def _like_images(value: Tensor, size: Sequence[int]) -> Tensor:
    return torch.empty(
        (*value.shape[:2], *size),
        dtype=value.dtype,
        device=value.device,
        memory_format=torch.channels_last,
    )


def _like_pooled(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    result = _like_images(x, size)
    return result, torch.empty_like(result, dtype=torch.uint8)
