from __future__ import annotations

import numpy as np
import pytest
import torch

from purine.data import (
    Field,
    Source,
    SyntheticImages,
    SyntheticMasks,
    SyntheticTokens,
    synthetic_images,
    synthetic_masks,
    synthetic_tokens,
)
from purine.errors import DataError


def images(*, seed: int = 0, dtype: str = "float32", first: int = 0) -> SyntheticImages:
    return SyntheticImages((3, 9, 12), classes=4, count=400, seed=seed, dtype=dtype, first=first)


def masks(*, seed: int = 0, first: int = 0) -> SyntheticMasks:
    return SyntheticMasks((3, 9, 12), classes=4, count=400, seed=seed, first=first)


def tokens(*, seed: int = 0, first: int = 0) -> SyntheticTokens:
    return SyntheticTokens(16, vocabulary=50, count=400, seed=seed, first=first)


@pytest.mark.parametrize("source", [images(), images(dtype="uint8"), masks(), tokens()])
def test_batches_have_the_form_of_the_fields(source: Source) -> None:
    for count in (0, 1, 7):
        batch = source.batch(np.arange(count))
        for values, field in zip(batch, source.fields, strict=True):
            assert tuple(values.shape) == (count, *field.shape)
            assert values.dtype == getattr(torch, field.dtype)
            assert values.is_contiguous()


@pytest.mark.parametrize("make", [images, masks, tokens])
def test_a_sample_is_a_function_of_seed_and_number(make: type[Source]) -> None:
    whole = make().batch(np.arange(20))
    for values, again in zip(whole, make().batch(np.array([13, 2])), strict=True):
        assert torch.equal(again, values[[13, 2]])
    assert not torch.equal(make(seed=1).batch(np.arange(20))[0], whole[0])


@pytest.mark.parametrize("make", [images, masks, tokens])
def test_first_moves_along_the_samples(make: type[Source]) -> None:
    moved = make(first=5).batch(np.arange(3))
    for values, same in zip(moved, make().batch(np.arange(5, 8)), strict=True):
        assert torch.equal(values, same)


def test_batches_are_fresh() -> None:
    for source in (images(), masks(), tokens()):
        for values in source.batch(np.array([1])):
            values.fill_(77)
        first, second = source.batch(np.array([1]))
        assert not (first == 77).all()
        first.fill_(78)
        assert not (second == 78).any()


def test_images_are_standard_normal() -> None:
    image, label = SyntheticImages((3, 32, 32), classes=100, count=1000).batch(np.arange(1000))
    assert abs(image.mean().item()) < 0.05
    assert abs(image.std().item() - 1) < 0.05
    assert label.bincount().tolist() == [10] * 100


def test_uint8_images_use_the_range() -> None:
    image, _ = images(dtype="uint8").batch(np.arange(400))
    assert image.dtype == torch.uint8
    assert image.min() < 30
    assert image.max() > 225


def test_classes_can_be_told_apart() -> None:
    data = synthetic_images((1, 28, 28), classes=10, count=500)
    assert data.test is not None
    image, label = data.train.batch(np.arange(500))
    means = torch.stack([image[label == k].mean(0).flatten() for k in range(10)])
    image, label = data.test.batch(np.arange(50))
    nearest = torch.cdist(image.flatten(1), means).argmin(1)
    assert (nearest == label).float().mean() > 0.95


def test_pixels_can_be_told_apart_by_their_colour() -> None:
    data = synthetic_masks((3, 20, 24), classes=3, count=100)
    assert data.test is not None
    image, label = data.train.batch(np.arange(100))
    assert label.unique().tolist() == [0, 1, 2]
    pixels = image.movedim(1, -1)
    means = torch.stack([pixels[label == k].mean(0) for k in range(3)])
    image, label = data.test.batch(np.arange(10))
    nearest = torch.cdist(image.movedim(1, -1).flatten(0, 2), means).argmin(1)
    assert (nearest == label.flatten()).float().mean() > 0.6


def test_tokens_mostly_follow_from_the_one_before() -> None:
    data = synthetic_tokens(32, vocabulary=20, count=1000)
    assert data.train.fields == (Field("tokens", (32,), "int64"), Field("targets", (32,), "int64"))
    before, after = data.train.batch(np.arange(1000))
    assert torch.equal(before[:, 1:], after[:, :-1])
    assert before.min() == 0
    assert before.max() == 19
    pairs = torch.zeros(20, 20)
    pairs.index_put_((before.flatten(), after.flatten()), torch.tensor(1.0), accumulate=True)
    likely = pairs.topk(4, dim=1).values.sum() / pairs.sum()
    assert likely > 0.9


def test_wrong_sizes() -> None:
    with pytest.raises(DataError, match="classes is 0"):
        SyntheticImages((1, 2, 2), classes=0, count=1)
    with pytest.raises(DataError, match="classes is 0"):
        SyntheticMasks((1, 2, 2), classes=0, count=1)
    with pytest.raises(DataError, match="height is 0"):
        SyntheticImages((1, 0, 2), classes=1, count=1)
    with pytest.raises(DataError, match="seed is -1"):
        SyntheticTokens(4, vocabulary=2, count=1, seed=-1)
    with pytest.raises(DataError, match="cannot be float64"):
        SyntheticImages((1, 2, 2), classes=1, count=1, dtype="float64")
    with pytest.raises(DataError, match="no sample 400"):
        tokens().batch(np.array([400]))
