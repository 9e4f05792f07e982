from __future__ import annotations

import numpy as np
import pytest

import purine.data
from purine.data import ArraySource, DataSet
from purine.errors import DataError


def test_all_is_sorted_and_complete() -> None:
    assert purine.data.__all__ == sorted(purine.data.__all__)
    assert all(hasattr(purine.data, name) for name in purine.data.__all__)


def test_training_and_test_have_to_agree_in_form() -> None:
    labels = np.arange(3)
    train = ArraySource(np.zeros((3, 8, 8), np.uint8), labels)
    test = ArraySource(np.zeros((3, 9, 9), np.uint8), labels)
    with pytest.raises(DataError, match="differ in form") as caught:
        DataSet("digits", train, test)
    assert caught.value.where == "digits"
    assert caught.value.expected == "image: uint8 1x8x8, label: int64 scalar as in training"
    assert caught.value.found == "image: uint8 1x9x9, label: int64 scalar"
