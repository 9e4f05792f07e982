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

_PIXELS, _CHANNELS = tl.constexpr(32), tl.constexpr(64)


@triton.jit
def _pool(
    x,
    result,
    places,
    sizes,
    strides,
    KERNEL: tl.constexpr,
    STEP: tl.constexpr,
    PAD: tl.constexpr,
):
    pixels, channels, height, width, out_height, out_width = sizes
    pixel, channel, known = _tile(pixels, channels)
    top = (pixel // out_width) % out_height * STEP[0] - PAD[0]
    left = pixel % out_width * STEP[1] - PAD[1]
    image = (pixel // (out_width * out_height)).to(tl.int64) * strides[0]
    best = tl.full((_PIXELS, _CHANNELS), -(2**31), tl.int32)
    for i in tl.static_range(KERNEL[0]):
        for j in tl.static_range(KERNEL[1]):
            h, w = top + i, left + j
            inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            row = image + h * strides[1] + w * strides[2]
            bits = tl.load(x + row[:, None] + channel[None, :], known & inside[:, None], -1)
            best = tl.maximum(best, _ordered(bits.to(tl.int32)) * 256 + 254 - i * KERNEL[1] - j)
    to = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, _ordered(best >> 8).to(tl.int16), known)
    tl.store(places + to, (254 - (best & 255)).to(tl.uint8), known)


@triton.jit
def _pull(
    gradient,
    places,
    result,
    sizes,
    strides,
    KERNEL: tl.constexpr,
    STEP: tl.constexpr,
    PAD: tl.constexpr,
):
    pixels, channels, height, width, out_height, out_width = sizes
    pixel, channel, known = _tile(pixels, channels)
    h = (pixel // width) % height + PAD[0]
    w = pixel % width + PAD[1]
    image = (pixel // (width * height)).to(tl.int64)
    total = tl.zeros((_PIXELS, _CHANNELS), tl.float32)
    for i in tl.static_range((KERNEL[0] + STEP[0] - 1) // STEP[0]):
        for j in tl.static_range((KERNEL[1] + STEP[1] - 1) // STEP[1]):
            out_h, out_w = h // STEP[0] - i, w // STEP[1] - j
            in_h, in_w = h - out_h * STEP[0], w - out_w * STEP[1]
            inside = (out_h >= 0) & (out_h < out_height) & (in_h < KERNEL[0])
            inside &= (out_w >= 0) & (out_w < out_width) & (in_w < KERNEL[1])
            held = known & inside[:, None]
            at = ((image * out_height + out_h) * out_width + out_w) * channels
            most = tl.load(places + at[:, None] + channel[None, :], held, 255).to(tl.int32)
            row = image * strides[0] + out_h * strides[1] + out_w * strides[2]
            value = tl.load(gradient + row[:, None] + channel[None, :], held, 0.0)
            here = (in_h * KERNEL[1] + in_w)[:, None] == most
            total += tl.where(here, value.to(tl.float32), 0.0)
    to = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, total.to(result.dtype.element_ty), known)


@triton.jit
def _tile(pixels, channels):
    """The pixels and channels of a program, and which pairs of them there are."""
    pixel = tl.program_id(0) * _PIXELS + tl.arange(0, _PIXELS)
    channel = tl.program_id(1) * _CHANNELS + tl.arange(0, _CHANNELS)
    return pixel, channel, (pixel < pixels)[:, None] & (channel < channels)[None, :]


@triton.jit
def _ordered(bits):
    """The bits of numbers as integers in the same order, and back."""
    return bits ^ ((bits >> 15) & 0x7FFF)


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
    _launch(_pool, bits, result, x, x, size, (kernel, step, pad))
    return result, places


max_pool.register_fake(lambda x, kernel, step, pad, size: _like_pooled(x, size))


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
    tensors, window = (gradient, places, result), (kernel, step, pad)
    _launch(_pull, tensors, result, gradient, result, places.shape[2:], window)
    return result


max_pool_gradient.register_fake(
    lambda gradient, places, kernel, step, pad, size: _like_images(gradient, size)
)


def _launch(
    kernel: triton.JITFunction,
    tensors: tuple[Tensor, ...],
    written: Tensor,
    strided: Tensor,
    images: Tensor,
    pooled: Sequence[int],
    window: Sequence[Sequence[int]],
) -> None:
    batch, channels, height, width = written.shape
    pixels = batch * height * width
    grid = (triton.cdiv(pixels, _PIXELS.value), triton.cdiv(channels, _CHANNELS.value))
    sizes = (pixels, channels, *images.shape[2:], *pooled)
    strides = (strided.stride(0), strided.stride(2), strided.stride(3))
    kernel[grid](*tensors, sizes, strides, *map(tuple, window), num_warps=4)


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
