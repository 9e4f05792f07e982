from __future__ import annotations

import pytest
import torch

from purine.errors import KindError
from purine.kinds import Net, global_pool, pool
from purine.kinds.pool import GlobalPool, Pool

SQUARE = torch.arange(16.0).reshape(1, 1, 4, 4)


def test_maximum_and_average_of_windows() -> None:
    assert Pool(SQUARE, kernel=2, stride=2).flatten().tolist() == [5, 7, 13, 15]
    averages = Pool(SQUARE, method="average", kernel=2, stride=2)
    assert averages.flatten().tolist() == [2.5, 4.5, 10.5, 12.5]


def test_the_size_is_rounded_down_unless_asked() -> None:
    x = torch.zeros(1, 1, 6, 6)
    assert Pool(x, kernel=3, stride=2).shape[2:] == (2, 2)
    assert Pool(x, kernel=3, stride=2, ceil=True).shape[2:] == (3, 3)


def test_padding_counts_in_averages_unless_told_otherwise() -> None:
    x = torch.ones(1, 1, 2, 2)
    assert Pool(x, method="average", kernel=3, pad=1).flatten().tolist() == pytest.approx(
        [4 / 9] * 4
    )
    assert Pool(x, method="average", kernel=3, pad=1, count_pad=False).unique().tolist() == [1.0]


def test_global_pooling_leaves_one_value_a_channel() -> None:
    assert GlobalPool(SQUARE).tolist() == [[[[7.5]]]]
    assert GlobalPool(SQUARE, method="max").tolist() == [[[[15.0]]]]
    with pytest.raises(ValueError, match="4"):
        GlobalPool(torch.zeros(2, 3))


def test_layers() -> None:
    x = Net().input("x", (2, 3, 8, 6))
    assert pool(x, kernel=(3, 2), stride=(2, 1), name="pool1").shape == (2, 3, 3, 5)
    assert global_pool(x).name == "global_pool"
    with pytest.raises(KindError, match="op 'pool2'"):
        pool(x, kernel=2, pad=3, name="pool2")
