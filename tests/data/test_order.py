from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purine.data import ArraySource, IterableSource, Order, Reader
from purine.errors import ConfigError, DataError

NUMBERS = ArraySource(np.arange(10), names=("number",))
GOLDEN = [1, 4, 5, 6, 2, 0, 3, 7, 7, 6, 2, 3, 1, 0, 4, 5]


def test_each_epoch_is_a_permutation() -> None:
    order = Order(50, seed=3)
    epochs = [order.indices(50 * epoch, 50).tolist() for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_same_seed_same_order_other_seed_other_order() -> None:
    first = Order(50, seed=3).indices(0, 200).tolist()
    assert Order(50, seed=3).indices(0, 200).tolist() == first
    assert Order(50, seed=4).indices(0, 200).tolist() != first


def test_a_wide_seed_is_not_a_later_epoch_of_a_small_one() -> None:
    wide, small = Order(50, seed=2**32), Order(50, seed=0)
    assert wide.indices(0, 50).tolist() != small.indices(50, 50).tolist()


def test_the_order_is_fixed_for_all_time() -> None:
    """Checkpoints of other hosts and releases rely on these numbers."""
    assert Order(8, seed=0).indices(0, 16).tolist() == GOLDEN


def test_without_shuffle_in_order() -> None:
    assert Order(4, seed=0, shuffle=False).indices(3, 6).tolist() == [3, 0, 1, 2, 3, 0]


def test_order_does_not_depend_on_what_was_read_before() -> None:
    order = Order(7, seed=1)
    late = order.indices(70, 14).tolist()
    order.indices(0, 40)
    assert order.indices(70, 14).tolist() == late


@given(
    length=st.integers(1, 12),
    start=st.integers(0, 60),
    counts=st.lists(st.integers(0, 30), max_size=5),
    seed=st.integers(0, 2**70),
    shuffle=st.booleans(),
)
def test_any_split_of_a_range_agrees(
    length: int, start: int, counts: list[int], seed: int, shuffle: bool
) -> None:
    whole = Order(length, seed=seed, shuffle=shuffle).indices(start, sum(counts))
    order, pieces = Order(length, seed=seed, shuffle=shuffle), []
    for count in counts:
        pieces += order.indices(start, count).tolist()
        start += count
    assert whole.tolist() == pieces


@pytest.mark.parametrize(("parts", "batch"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_parts_tile_the_stream(parts: int, batch: int) -> None:
    whole = Reader(NUMBERS, batch=6, seed=5, shuffle=True)
    readers = [
        Reader(NUMBERS, batch=batch, seed=5, shuffle=True, offset=part * batch, whole=6)
        for part in range(parts)
    ]
    for iteration in range(5):
        pieces = torch.cat([reader.read(iteration)[0] for reader in readers])
        assert pieces.tolist() == whole.read(iteration)[0].tolist()


def test_resuming_reads_what_an_undisturbed_run_reads() -> None:
    undisturbed = Reader(NUMBERS, batch=4, seed=5, shuffle=True)
    batches = [undisturbed.read(iteration)[0].tolist() for iteration in range(12)]
    resumed = Reader(NUMBERS, batch=4, seed=5, shuffle=True)
    assert [resumed.read(i)[0].tolist() for i in range(7, 12)] == batches[7:]


def test_a_batch_may_be_larger_than_the_source() -> None:
    (batch,) = Reader(NUMBERS, batch=25, seed=0, shuffle=False).read(1)
    assert batch.tolist() == [(25 + j) % 10 for j in range(25)]


def test_parts_of_a_sequential_source_tile_its_stream() -> None:
    source = IterableSource([(number,) for number in range(5)], names=("number",))
    readers = [
        Reader(source, batch=2, seed=0, shuffle=False, offset=2 * part, whole=4)
        for part in range(2)
    ]
    read = [readers[part].read(iteration)[0].tolist() for iteration in (0, 1) for part in (1, 0)]
    assert read == [[2, 3], [0, 1], [1, 2], [4, 0]]


def test_a_sequential_source_cannot_be_shuffled() -> None:
    source = IterableSource([(1,)], names=("number",))
    with pytest.raises(DataError, match="cannot be shuffled"):
        Reader(source, batch=1, seed=0, shuffle=True)


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="batch is 0"):
        Reader(NUMBERS, batch=0, seed=0, shuffle=True)
    with pytest.raises(ConfigError, match="a part of 1 samples begins at 2 of 2"):
        Reader(NUMBERS, batch=1, seed=0, shuffle=True, offset=2, whole=2)
    with pytest.raises(ConfigError, match="seed is -1"):
        Order(3, seed=-1)
    with pytest.raises(ConfigError, match="number of samples is 0"):
        Order(0, seed=0)
    with pytest.raises(ConfigError, match="iteration is -1"):
        Reader(NUMBERS, batch=1, seed=0, shuffle=True).read(-1)
