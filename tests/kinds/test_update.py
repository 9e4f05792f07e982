"""The variants that write in place against the pure kinds.

The pure kinds are compared with `torch.optim` in tests/solvers.
"""

from __future__ import annotations

import pytest
import torch

from purine.graph import Op
from purine.kinds import update
from purine.registry.lookup import kinds, lookup

LR = torch.tensor(0.05, dtype=torch.float64)
CASES = [
    ("SgdUpdate", 0, {}),
    ("SgdUpdate", 0, {"weight_decay": 0.1, "lr_mult": 2.0}),
    ("MomentumUpdate", 1, {"momentum": 0.9}),
    ("MomentumUpdate", 1, {"momentum": 0.9, "weight_decay": 0.1, "lr_mult": 2.0}),
    ("MomentumUpdate", 1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("MomentumUpdate", 1, {"momentum": 0.9, "lr_in_momentum": True, "weight_decay": 0.1}),
    (
        "MomentumUpdate",
        1,
        {"momentum": 0.9, "lr_in_momentum": True, "nesterov": True, "lr_mult": 2.0},
    ),
    ("AdaGradUpdate", 1, {"weight_decay": 0.1, "lr_mult": 2.0}),
    ("RmsPropUpdate", 1, {"weight_decay": 0.1, "lr_mult": 2.0}),
    ("AdaDeltaUpdate", 2, {"weight_decay": 0.1, "lr_mult": 2.0}),
    ("AdamUpdate", 2, {"weight_decay": 0.1, "lr_mult": 2.0}),
    ("AdamUpdate", 2, {"weight_decay": 0.1, "decoupled": True}),
    ("AdamUpdate", 2, {"weight_decay": 0.1, "correct_eps": True, "eps": 0.1}),
    ("LarsUpdate", 1, {"weight_decay": 0.1, "lr_mult": 2.0}),
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SHAPES = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
}


def inputs_of(name, slots, dtype, shape=(7, 5)):
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2 + slots)]
    states = [item.abs() + 0.1 for item in draw[2:]]
    clock = [torch.tensor(4)] if "iteration" in kinds()[name].inputs else []
    return [*draw[:2], *states, LR.clone(), *clock]


def overwrite(name, inputs, settings):
    op = Op("update", name, tuple("abcdef"[: len(inputs)]), (), settings)
    return lookup(op).bind_overwrite(op)(*inputs)


def as_tuple(results):
    return (results,) if isinstance(results, torch.Tensor) else results


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("weight_layout", SHAPES)
@pytest.mark.parametrize("gradient_layout", SHAPES)
@pytest.mark.parametrize(("name", "slots", "settings"), CASES)
def test_overwriting_gives_the_same_numbers_in_place(
    name, slots, settings, gradient_layout, weight_layout, dtype
):
    inputs = inputs_of(name, slots, dtype)
    inputs[0] = SHAPES[weight_layout](inputs[0])
    inputs[1] = SHAPES[gradient_layout](inputs[1])
    expected = as_tuple(getattr(update, name)(*inputs, **settings))
    before = [item.clone() for item in inputs]
    found = as_tuple(overwrite(name, inputs, settings))
    over = kinds()[name].variants.over
    assert len(found) == len(expected) == len(over)
    for result, wanted, place in zip(found, expected, over, strict=True):
        assert result.data_ptr() == inputs[place].data_ptr()
        torch.testing.assert_close(
            inputs[place], wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
        assert not torch.equal(inputs[place], before[place])
    for place, (now, then) in enumerate(zip(inputs, before, strict=True)):
        if place not in over:
            assert torch.equal(now, then)


@pytest.mark.parametrize("gradient_last", [True, False], ids=["alike", "other gradient"])
@pytest.mark.parametrize(("name", "slots", "settings"), CASES)
def test_filters_may_lie_channels_last(name, slots, settings, gradient_last):
    inputs = inputs_of(name, slots, torch.float64, (6, 4, 3, 3))
    expected = as_tuple(getattr(update, name)(*inputs, **settings))
    for place in (0, *range(1 if gradient_last else 2, 2 + slots)):
        inputs[place] = inputs[place].contiguous(memory_format=torch.channels_last)
    found = as_tuple(overwrite(name, inputs, settings))
    for result, wanted, place in zip(found, expected, kinds()[name].variants.over, strict=True):
        assert result.data_ptr() == inputs[place].data_ptr()
        assert result.shape == wanted.shape
        assert inputs[place].is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(inputs[place], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize(("name", "slots", "settings"), CASES)
def test_results_keep_the_dtype_and_shape_of_the_weight(name, slots, settings, shape, dtype):
    inputs = inputs_of(name, slots, dtype, shape)
    inputs[1] = inputs[1].to(torch.float32)
    expected = as_tuple(getattr(update, name)(*inputs, **settings))
    found = as_tuple(overwrite(name, inputs, settings))
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype == dtype
        assert one.shape == other.shape == shape
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_lars_trusts_fully_where_a_norm_is_zero(zero):
    weight, gradient = torch.ones(3), torch.full((3,), 2.0)
    (weight if zero == "weight" else gradient).zero_()
    inputs = [weight, gradient, torch.zeros(3), LR]
    after, velocity = update.LarsUpdate(*inputs, weight_decay=0.5)
    torch.testing.assert_close(velocity, gradient + 0.5 * weight)
    torch.testing.assert_close(after, weight - 0.05 * velocity)


def test_decay_is_not_lost_to_rounding():
    """A factor 1 - lr * decay would have to be rounded to float32 first."""
    weight = torch.full((1000,), 0.7, dtype=torch.float64)
    inputs = [weight.float(), torch.zeros(1000), torch.zeros(1000), torch.zeros(1000)]
    clock = [torch.tensor(1e-3, dtype=torch.float64), torch.tensor(0)]
    settings = {"weight_decay": 1e-2, "decoupled": True}
    found = update.AdamUpdate(*inputs, *clock, **settings)[0]
    torch.testing.assert_close(found.double(), weight * (1 - 1e-5), rtol=1e-7, atol=0)


def test_clipping_in_place():
    gradients = [torch.randn(3, 4), torch.randn(5, dtype=torch.float64), torch.tensor(2.0)]
    norm = update.GlobalNorm(*gradients)
    assert norm.item() == pytest.approx(
        torch.cat([g.flatten().double() for g in gradients]).norm().item()
    )
    for gradient in gradients:
        expected = update.ClipGradient(gradient, norm, max_norm=0.5)
        found = overwrite("ClipGradient", [gradient, norm], {"max_norm": 0.5})
        assert found is gradient
        assert torch.equal(found, expected)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_sum_grows_in_place(scale):
    total, part = torch.randn(6), torch.randn(6)
    expected = update.AddScaled(total, part, scale=scale)
    torch.testing.assert_close(expected, (total + part) * scale)
    found = overwrite("AddScaled", [total, part], {"scale": scale})
    assert found is total
    assert torch.equal(found, expected)
