"""Policies as values: their checks, their text form, and the ops they become."""

from __future__ import annotations

import pytest

from purine.analysis.infer import check
from purine.errors import ConfigError
from purine.graph import Builder
from purine.solvers.rates import (
    POLICIES,
    Cosine,
    Exp,
    Fixed,
    Inv,
    MultiStep,
    Poly,
    Sigmoid,
    Step,
    Warmup,
    add_rate,
    parse_rate,
)
from tests.reference import run

RATES = [
    Fixed(0.1),
    Step(0.1, step=5),
    MultiStep(0.1, steps=(2, 4), gamma=0.5),
    Exp(0.1, gamma=0.9),
    Inv(0.1, gamma=0.1, power=0.75),
    Poly(0.1, max_iterations=10, power=0.5),
    Sigmoid(0.1, gamma=-0.5, step=3),
    Cosine(0.1, max_iterations=10),
    Warmup(Warmup(Cosine(0.1, max_iterations=10), iterations=4), iterations=2, start=0.5),
]


@pytest.mark.parametrize("rate", RATES, ids=lambda rate: type(rate).__name__)
def test_every_policy_becomes_a_good_graph(rate):
    builder = Builder()
    assert add_rate(builder, rate) == "lr"
    values = run(check(builder.graph()))
    assert values["lr"].shape == ()
    assert 0 <= values["lr"].item() <= 0.1


def test_every_policy_is_tested():
    assert {type(rate) for rate in RATES} == {*POLICIES.values(), Warmup}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("fixed", Fixed(0.1)),
        ("step:gamma=0.5,step=1000", Step(0.1, step=1000, gamma=0.5)),
        ("multistep:steps=100|200", MultiStep(0.1, steps=(100, 200))),
        ("exp:gamma=0.99", Exp(0.1, gamma=0.99)),
        ("inv:gamma=1e-4,power=0.75", Inv(0.1, gamma=1e-4, power=0.75)),
        ("poly:power=0.5", Poly(0.1, max_iterations=500, power=0.5)),
        ("sigmoid:gamma=-0.1,step=50", Sigmoid(0.1, gamma=-0.1, step=50)),
        ("cosine", Cosine(0.1, max_iterations=500)),
        ("cosine:max_iterations=90", Cosine(0.1, max_iterations=90)),
        ("fixed:warmup=100", Warmup(Fixed(0.1), iterations=100)),
        ("fixed:warmup=0", Fixed(0.1)),
    ],
)
def test_text_names_a_policy(text, rate):
    assert parse_rate(text, lr=0.1, iterations=500) == rate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "did you mean 'cosine'"),
        ("zzz", "one of fixed, step, multistep, exp, inv, poly, sigmoid, cosine"),
        ("step:stp=3", "did you mean 'step'"),
        ("poly:zzz=3", "settings of poly: max_iterations, power, warmup"),
        ("step", "policy 'step' needs step"),
        ("step:step=two", "a whole number"),
        ("step:step", "a whole number"),
        ("exp:gamma=x", "a number"),
        ("multistep:steps=1,2", "has no setting '2'"),
        ("multistep:steps=a|b", "whole numbers with bars between them"),
        ("fixed:warmup=-1", "warmup is -1"),
    ],
)
def test_text_that_names_none_is_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_rate(text, lr=0.1, iterations=500)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0.0),
        lambda: Step(-1.0, step=3),
        lambda: Step(0.1, step=0),
        lambda: Step(0.1, step=2.5),
        lambda: MultiStep(0.1, steps=()),
        lambda: MultiStep(0.1, steps=(3, 2)),
        lambda: Exp(0.1, gamma=0.0),
        lambda: Inv(0.1, gamma=-1.0, power=1.0),
        lambda: Poly(0.1, max_iterations=0),
        lambda: Poly(0.1, max_iterations=5, power=0.0),
        lambda: Sigmoid(0.1, gamma=0.1, step=-1),
        lambda: Cosine(0.1, max_iterations=5, floor=-0.1),
        lambda: Warmup(Fixed(0.1), iterations=0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.expected
    assert caught.value.found
