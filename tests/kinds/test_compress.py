"""Encodings for the network: what they round, what they keep, and what they do with infinities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from purine.kinds.compress import (
    DecodeCast,
    DecodeInt8,
    DecodeTopK,
    EncodeCast,
    EncodeInt8,
    EncodeTopK,
)

GENERATOR = torch.Generator().manual_seed(5)


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def sent_int8(x: Tensor, residual: Tensor, block: int = 256) -> tuple[Tensor, Tensor]:
    codes, scales, rest = EncodeInt8(x, residual, block=block)
    return DecodeInt8(codes, scales, block=block), rest


def sent_topk(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    kept, places, rest = EncodeTopK(x, residual, share=0.05)
    return DecodeTopK(kept, places, shape=tuple(x.shape)), rest


def test_float16_saturates_at_its_largest_finite_value() -> None:
    x = torch.tensor([1e38, -7e4, 65519.0, 1.0, 1e-9, math.inf, -math.inf, math.nan])
    found = DecodeCast(EncodeCast(x))
    expected = torch.tensor([65504.0, -65504.0, 65504.0, 1, 0, math.inf, -math.inf, math.nan])
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_bfloat16_keeps_the_range_of_float32() -> None:
    found = DecodeCast(EncodeCast(torch.tensor([1e38, 1.0 + 2**-9]), dtype="bfloat16"))
    assert abs(found[0] / 1e38 - 1) < 2**-8
    assert found[1] == 1.0


def test_a_cast_keeps_the_layout_in_memory() -> None:
    x = values(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert DecodeCast(EncodeCast(x)).stride() == x.stride()


@pytest.mark.parametrize("block", [0, 16, 256])
@pytest.mark.parametrize("shape", [(7, 100), (256,), (3, 5, 2)])
def test_an_error_of_int8_is_at_most_half_a_step(shape: tuple[int, ...], block: int) -> None:
    x = values(*shape)
    found, rest = sent_int8(x, torch.zeros_like(x), block)
    size = block or x.numel()
    flat, error = x.flatten(), (found - x).flatten().abs()
    for start in range(0, x.numel(), size):
        step = flat[start : start + size].abs().max() / 127
        assert error[start : start + size].max() <= step * 0.5001
    assert torch.equal(rest, x - found)


def test_top_k_sends_the_largest_and_keeps_the_others() -> None:
    x = values(20, 10)
    found, rest = sent_topk(x, torch.zeros_like(x))
    assert found.count_nonzero() == 10
    assert found.abs()[found != 0].min() >= rest.abs().max()
    assert torch.equal(found + rest, x)


@pytest.mark.parametrize("sent", [sent_int8, sent_topk])
def test_what_is_not_sent_is_sent_later(sent) -> None:
    """Over many iterations, all that was decoded plus the residual is all that was to be sent."""
    residual = torch.zeros(40, 30)
    wanted, received = torch.zeros(40, 30).double(), torch.zeros(40, 30).double()
    for _ in range(50):
        x = values(40, 30)
        decoded, residual = sent(x, residual)
        wanted += x
        received += decoded
    torch.testing.assert_close(received + residual, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("sent", [sent_int8, sent_topk])
@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_what_is_not_finite_is_seen_and_not_kept(sent, wrong: float) -> None:
    x = values(30, 10)
    x[3, 4] = wrong
    decoded, residual = sent(x, torch.zeros_like(x))
    assert not decoded.isfinite().all()
    assert residual.isfinite().all()


def test_zeros_stay_zeros() -> None:
    x = torch.zeros(300)
    for sent in (sent_int8, sent_topk):
        decoded, residual = sent(x, x)
        assert not decoded.any()
        assert not residual.any()
