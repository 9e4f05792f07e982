from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from purine.data import ArraySource, Field
from purine.errors import ConfigError, DataError

IMAGES = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.uint8)


@pytest.mark.parametrize("convert", [lambda array: array, torch.from_numpy])
def test_numpy_and_torch_give_the_same(convert: Callable[[Any], Any]) -> None:
    source = ArraySource(convert(IMAGES), convert(LABELS))
    assert source.fields == (Field("image", (1, 4, 5), "uint8"), Field("label", (), "int64"))
    assert len(source) == 6
    assert source.classes == 3
    image, label = source.batch(np.array([5, 0, 5]))
    assert image.dtype == torch.uint8
    assert label.dtype == torch.int64
    assert image.numpy().tolist() == IMAGES[[5, 0, 5]][:, None].tolist()
    assert label.tolist() == [2, 0, 2]


def test_batches_are_fresh_and_contiguous() -> None:
    images = np.moveaxis(np.zeros((4, 6, 6, 3), np.float32), -1, 1)
    source = ArraySource(images, np.arange(4))
    image, label = source.batch(np.arange(4))
    assert image.is_contiguous()
    image.fill_(1)
    label.fill_(9)
    again, labels = source.batch(np.arange(4))
    assert again.max() == 0
    assert labels.tolist() == [0, 1, 2, 3]


def test_other_byte_order_is_read() -> None:
    source = ArraySource(np.arange(3, dtype=">i4"), names=("value",))
    assert source.fields == (Field("value", (), "int32"),)
    assert source.batch(np.array([2, 1]))[0].tolist() == [2, 1]


def test_fields_of_other_names_are_left_alone() -> None:
    tokens = np.arange(12).reshape(3, 4)
    source = ArraySource(tokens, tokens + 1, names=("tokens", "targets"))
    assert source.fields == (Field("tokens", (4,), "int64"), Field("targets", (4,), "int64"))
    assert source.classes is None


def test_classes_can_exceed_the_largest_label() -> None:
    assert ArraySource(IMAGES, LABELS, classes=10).classes == 10


@pytest.mark.parametrize(
    ("images", "labels", "what", "expected", "found"),
    [
        (IMAGES, LABELS[:5], "number of labels differs", "6, as in image", "5"),
        (IMAGES, LABELS.astype(float), "not class labels", "integers of shape [N]", "float64"),
        (IMAGES, LABELS[:, None], "not class labels", "integers of shape [N]", "[6, 1]"),
        (IMAGES, LABELS > 0, "not class labels", "integers of shape [N]", "bool"),
        (IMAGES, np.array([0, 1, -7, 0, 0, 0]), "label -7", "0 or more", "-7 at sample 2"),
        (IMAGES[:, 0], LABELS, "images have 2 axes", "[N, C, H, W]", "[6, 5]"),
        (np.zeros((6, 8, 8, 3), np.uint8), LABELS, "last axis", "[N, C, H, W]", "[6, 8, 8, 3]"),
        (IMAGES.astype(object), LABELS, "cannot be object", "one of bool", "object"),
        (IMAGES.astype(complex), LABELS, "cannot be complex128", "one of bool", "complex128"),
        (torch.zeros(6, 4, 5).bfloat16(), LABELS, "cannot be bfloat16", "float32", "bfloat16"),
        (IMAGES[:0], LABELS[:0], "no samples", "one row or more", "[0, 4, 5]"),
    ],
)
def test_wrong_arrays(images: Any, labels: Any, what: str, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        ArraySource(images, labels)
    error = caught.value
    assert what in error.what
    assert expected in str(error.expected)
    assert found in str(error.found)
    assert error.where in ("image", "label")
    assert error.remedy


def test_lists_are_no_arrays() -> None:
    with pytest.raises(ConfigError, match=r"arrays\[1\] is \[0, 1\]") as caught:
        ArraySource(IMAGES[:2], [0, 1])  # type: ignore[arg-type]
    assert caught.value.expected == "a numpy array or a tensor"
    assert caught.value.remedy == "convert it with numpy.asarray"


def test_label_beyond_the_classes() -> None:
    with pytest.raises(DataError, match="label 2 is out of range") as caught:
        ArraySource(IMAGES, LABELS, classes=2)
    assert caught.value.expected == "0 to 1"
    assert caught.value.found == "2 at sample 2"


def test_a_name_for_each_array() -> None:
    with pytest.raises(DataError, match="1 arrays for 2 fields"):
        ArraySource(IMAGES)


@pytest.mark.parametrize("index", [-1, 6])
def test_no_such_sample(index: int) -> None:
    with pytest.raises(DataError, match=f"no sample {index}") as caught:
        ArraySource(IMAGES, LABELS).batch(np.array([0, index]))
    assert caught.value.expected == "0 to 5"
