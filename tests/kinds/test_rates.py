"""The formulas of the learning-rate policies."""

from __future__ import annotations

import math

import pytest
import torch

from purine.kinds import rates

CASES = {
    "FixedRate": ({"lr": 0.1}, lambda i: 0.1),
    "StepRate": ({"lr": 0.1, "gamma": 0.5, "step": 4}, lambda i: 0.1 * 0.5 ** (i // 4)),
    "MultiStepRate": (
        {"lr": 0.1, "gamma": 0.5, "steps": (3, 7)},
        lambda i: 0.1 * 0.5 ** ((i >= 3) + (i >= 7)),
    ),
    "ExpRate": ({"lr": 0.1, "gamma": 0.9}, lambda i: 0.1 * 0.9**i),
    "InvRate": (
        {"lr": 0.1, "gamma": 0.01, "power": 0.75},
        lambda i: 0.1 * (1 + 0.01 * i) ** -0.75,
    ),
    "PolyRate": (
        {"lr": 0.1, "power": 0.5, "max_iterations": 10},
        lambda i: 0.1 * max(0.0, 1 - i / 10) ** 0.5,
    ),
    "SigmoidRate": (
        {"lr": 0.1, "gamma": -0.5, "step": 6},
        lambda i: 0.1 / (1 + math.exp(0.5 * (i - 6))),
    ),
    "CosineRate": (
        {"lr": 0.1, "max_iterations": 10, "floor": 0.02},
        lambda i: 0.02 + 0.08 * (1 + math.cos(math.pi * min(i, 10) / 10)) / 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rate_follows_its_formula(name):
    settings, formula = CASES[name]
    for iteration in range(15):
        rate = getattr(rates, name)(torch.tensor(iteration), **settings)
        assert rate.dtype == torch.float64
        assert rate.shape == ()
        assert rate.item() == pytest.approx(formula(iteration), rel=1e-12, abs=1e-15)


def test_warmup_grows_to_the_whole_rate():
    rate = torch.tensor(0.1, dtype=torch.float64)
    found = [
        rates.WarmupRate(rate, torch.tensor(i), iterations=4, start=0.2).item() for i in range(6)
    ]
    assert found == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1], rel=1e-12)
