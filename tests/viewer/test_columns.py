"""Columns read back to the numbers that were packed, and are short."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from purine.viewer.columns import packed, unpacked

WHOLE = st.integers(-(2**61), 2**61)


@given(st.lists(WHOLE))
def test_columns_come_back(values: list[int]) -> None:
    assert unpacked(packed(values)).tolist() == values


def test_a_column_of_growing_times_takes_few_bytes() -> None:
    steps = np.random.default_rng(0).integers(1_000, 200_000, 50_000)
    assert len(packed(np.cumsum(steps))) < 5 * len(steps)
