"""The steps of a batch norm over parts of a batch against the whole one."""

from __future__ import annotations

import pytest
import torch

from purine.kinds.average import Average
from purine.kinds.norm import BatchNormTest
from purine.kinds.sync_norm import (
    BatchNormGradient,
    BatchNormStatistics,
    BatchNormSums,
    CombineStatistics,
)

SIZES = (2, 5)
EPS, MOMENTUM = 1e-3, 0.2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_parts_are_normalised_as_the_whole(layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(7, 4, 6, 5, generator=generator).contiguous(memory_format=layout)
    gradient = torch.randn(x.shape, generator=generator).contiguous(memory_format=layout)
    weight, bias, mean, variance = torch.rand(4, 4, generator=generator)
    y, saved_mean, saved_invstd, mean_next, variance_next = (
        torch.ops.aten._native_batch_norm_legit_functional(
            x, weight, bias, mean, variance, True, MOMENTUM, EPS
        )
    )
    expected, weight_gradient, bias_gradient = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, mean, variance, saved_mean, saved_invstd, True, EPS, [True] * 3
    )

    parts = x.split(SIZES)
    statistics = [value for part in parts for value in BatchNormStatistics(part)]
    counts = tuple(part.numel() // 4 for part in parts)
    centre, spread, *following = CombineStatistics(
        mean, variance, *statistics, counts=counts, momentum=MOMENTUM
    )
    found = [BatchNormTest(part, weight, bias, centre, spread, eps=EPS) for part in parts]
    torch.testing.assert_close(torch.cat(found), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(following, [mean_next, variance_next])

    # Each part's loss is a mean over its own samples: its gradients are larger than those of the
    # whole by the inverse of its share.
    shares = tuple(size / sum(SIZES) for size in SIZES)
    own = [part / share for part, share in zip(gradient.split(SIZES), shares, strict=True)]
    sums = [
        value
        for part, given in zip(parts, own, strict=True)
        for value in BatchNormSums(given, part, centre, spread, eps=EPS)
    ]
    totals = Average(*sums, weights=shares, groups=2)
    torch.testing.assert_close(totals, (weight_gradient, bias_gradient), rtol=1e-4, atol=1e-4)
    pulled = [
        share * BatchNormGradient(given, part, weight, centre, spread, *totals, eps=EPS)
        for part, given, share in zip(parts, own, shares, strict=True)
    ]
    assert all(part.is_contiguous(memory_format=layout) for part in pulled)
    torch.testing.assert_close(torch.cat(pulled), expected, rtol=1e-4, atol=1e-5)


def test_statistics_of_the_wrong_number_of_parts() -> None:
    value = torch.ones(3)
    with pytest.raises(ValueError, match="2 statistics are not those of 2 parts"):
        CombineStatistics(value, value, value, value, counts=(1, 1))
