from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from purine.errors import KindError
from purine.kinds import Net, dropout
from purine.kinds.random import (
    Dropout,
    RandomExponential,
    RandomIntegers,
    RandomMask,
    RandomNormal,
    RandomUniform,
    random_bits,
)


def number(value: int) -> torch.Tensor:
    return torch.tensor(value)


def test_bits_are_a_function_of_seed_stream_iteration_and_index() -> None:
    first = random_bits(number(1), number(2), 1000, stream="a")
    assert torch.equal(first, random_bits(number(1), number(2), 1000, stream="a"))
    assert torch.equal(first[300:], random_bits(number(1), number(2), 700, stream="a", offset=300))
    for other in (
        random_bits(number(2), number(2), 1000, stream="a"),
        random_bits(number(1), number(3), 1000, stream="a"),
        random_bits(number(1), number(2), 1000, stream="b"),
    ):
        assert (first == other).sum() < 3


def test_every_bit_is_set_half_of_the_time() -> None:
    bits = random_bits(number(0), number(0), 1 << 16, stream="a")
    for place in range(32):
        share = ((bits >> place) & 1).double().mean().item()
        assert abs(share - 0.5) < 0.01, place


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 1.0])
def test_a_mask_keeps_its_share_and_its_mean(keep: float) -> None:
    mask = RandomMask(number(0), number(0), shape=(200, 200), keep=keep, stream="a")
    assert mask.unique().tolist() == pytest.approx([1.0] if keep == 1 else [0.0, 1 / keep])
    assert abs(mask.mean().item() - 1) < 0.1


def test_a_part_of_a_batch_is_treated_as_in_the_whole() -> None:
    x = torch.ones(8, 3, 4)
    whole = Dropout(x, number(3), number(4), stream="drop")
    part = Dropout(x[5:], number(3), number(4), stream="drop", offset=5)
    assert torch.equal(whole[5:], part)


def test_a_part_along_another_axis_is_drawn_as_in_the_whole() -> None:
    settings = {"keep": 0.5, "stream": "a"}
    whole = RandomMask(number(1), number(2), shape=(6, 5, 7, 2), **settings)
    part = RandomMask(
        number(1),
        number(2),
        shape=(3, 5, 4, 2),
        offset=2,
        part=(2, 7, 0, 1, 3, 6),
        **settings,
    )
    assert torch.equal(part, whole[2:5][:, :, [0, 3, 4, 5]])
    with pytest.raises(ValueError, match="does not describe a mask"):
        RandomMask(number(1), number(2), shape=(3, 5), part=(1, 7, 0, 4), **settings)


def test_a_dropout_layer_draws_under_its_own_name() -> None:
    net = Net()
    x = net.input("x", (2, 3))
    dropout(x, name="drop1")
    dropout(x, name="drop2")
    streams = {op.attributes["stream"] for op in net.graph().ops.values() if op.kind == "Dropout"}
    assert streams == {"drop1", "drop2"}
    with pytest.raises(KindError, match="at least 0 and below 1"):
        dropout(x, ratio=1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_numbers_stay_below_their_end(dtype: str) -> None:
    drawn = RandomUniform(number(0), number(0), shape=(300, 300), stream="a", dtype=dtype)
    assert drawn.dtype == getattr(torch, dtype)
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() < 1
    assert abs(drawn.double().mean().item() - 0.5) < 0.01


def test_normal_numbers_have_the_shares_of_their_distribution() -> None:
    drawn = RandomNormal(number(0), number(0), shape=(400, 500), stream="a", mean=1.0, std=2.0)
    for deviations, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        found = ((drawn - 1).abs() < 2 * deviations).double().mean().item()
        assert abs(found - share) < 0.003
    neighbours = torch.corrcoef(torch.stack([drawn.flatten()[:-1], drawn.flatten()[1:]]))
    assert neighbours[0, 1].abs() < 0.01


def test_exponential_and_whole_numbers() -> None:
    waited = RandomExponential(number(0), number(0), shape=(90_000,), stream="a", rate=2.0)
    assert waited.min() > 0
    assert abs((waited > 1).double().mean().item() - 0.1353) < 0.005
    thrown = RandomIntegers(number(0), number(0), shape=(60_000,), stream="a", low=1, high=7)
    assert ((thrown.bincount()[1:] / 10_000 - 1).abs() < 0.04).all()
    with pytest.raises(ValueError, match="1 to 2"):
        RandomIntegers(number(0), number(0), shape=(2,), stream="a", low=3, high=3)


@pytest.mark.parametrize("draw", [RandomUniform, RandomNormal, RandomExponential])
def test_parts_of_a_batch_draw_what_the_whole_draws(draw: Callable[..., torch.Tensor]) -> None:
    whole = draw(number(1), number(2), shape=(6, 5), stream="a")
    assert torch.equal(draw(number(1), number(2), shape=(2, 5), stream="a", offset=3), whole[3:5])
