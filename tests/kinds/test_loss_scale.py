"""Loss scales: what is finite, and how the scale changes."""

from __future__ import annotations

import pytest
import torch

from purine.kinds.loss_scale import AllTrue, CountGood, LossScaleUpdate, Unscale


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_unscale_sees_one_value_that_is_not_finite(bad: float) -> None:
    gradient = torch.full((3, 4), 8.0)
    unscaled, finite = Unscale(gradient, torch.tensor(4.0))
    assert torch.equal(unscaled, torch.full((3, 4), 2.0))
    assert finite
    gradient[2, 3] = bad
    assert not Unscale(gradient, torch.tensor(4.0))[1]


def test_unscale_keeps_the_dtype_of_the_gradient() -> None:
    assert Unscale(torch.ones(2).double(), torch.tensor(2.0))[0].dtype == torch.float64


def test_one_flag_counts_for_all() -> None:
    yes, no = torch.tensor(True), torch.tensor(False)
    assert AllTrue(yes, yes)
    assert not AllTrue(yes, no, yes)


def test_the_scale_is_doubled_every_interval_and_halved_at_once() -> None:
    scale, good, interval = torch.tensor(8.0), torch.tensor(0), torch.tensor(3)
    found = []
    for finite in map(torch.tensor, [True, True, True, True, False, True, True, True]):
        scale, good = (
            LossScaleUpdate(scale, good, interval, finite),
            CountGood(good, interval, finite),
        )
        found.append((float(scale), int(good)))
    assert found == [(8, 1), (8, 2), (16, 0), (16, 1), (8, 0), (8, 1), (8, 2), (16, 0)]
    assert scale.dtype == torch.float32
    assert good.dtype == torch.int64


def test_the_scale_has_bounds() -> None:
    good, interval = torch.tensor(0), torch.tensor(1)
    least, most = torch.tensor(1.0), torch.tensor(2.0**24)
    assert LossScaleUpdate(least, good, interval, torch.tensor(False)) == 1.0
    assert LossScaleUpdate(most, good, interval, torch.tensor(True)) == 2.0**24
