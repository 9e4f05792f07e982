from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from purine.data import Field, IterableSource, Reader, TorchSource
from purine.errors import DataError


class Counting(IterableDataset[Any]):
    """Gives (0.5 * i, i) for i below a length, and counts what was read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            self.read += 1
            yield torch.full((2,), 0.5 * number), number


def labels(source: IterableSource, start: int, count: int) -> list[int]:
    result: list[int] = source.batch(np.arange(start, start + count))[1].tolist()
    return result


def test_map_style() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    source = TorchSource(TensorDataset(images, torch.arange(6, dtype=torch.int32)))
    assert source.fields == (Field("image", (1, 2, 2), "uint8"), Field("label", (), "int64"))
    assert len(source) == 6
    image, label = source.batch(np.array([4, 1]))
    assert image.tolist() == images[[4, 1]].tolist()
    assert label.dtype == torch.int64
    assert label.tolist() == [4, 1]


def test_arrays_and_numbers() -> None:
    samples = [(np.full((2, 2), i, np.float32), np.int32(i), 0.5 * i) for i in range(3)]
    source = TorchSource(samples, names=("image", "label", "weight"), classes=3)
    assert [field.dtype for field in source.fields] == ["float32", "int64", "float32"]
    assert source.batch(np.array([2]))[2].tolist() == [1.0]
    assert source.classes == 3


def test_a_sample_may_be_one_tensor() -> None:
    source = TorchSource(torch.arange(6.0).reshape(3, 2), names=("row",))
    assert source.batch(np.array([1]))[0].tolist() == [[2.0, 3.0]]


def test_classes_as_torchvision_names_them() -> None:
    dataset = TensorDataset(torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64))
    dataset.classes = ["cat", "dog"]
    assert TorchSource(dataset).classes == 2


def test_batches_are_fresh() -> None:
    images = torch.zeros(2, 1, 2, 2)
    TorchSource(TensorDataset(images, torch.arange(2))).batch(np.array([0]))[0].fill_(1)
    assert images.max() == 0


@pytest.mark.parametrize(
    ("samples", "what", "expected", "found"),
    [
        ([], "no samples", "one sample or more", "an empty list"),
        ([(1, 2, 3)], "3 values for 2 fields", "a tuple of image, label", "3 values"),
        ([("cat", 1)], "image of a sample", "a number, or a tensor", "str"),
        ([({}, 1)], "image of a sample", "a number, or a tensor", "dict"),
        ([(np.array([None]), 1)], "image of a sample", "a number, or a tensor", "object"),
        ([(torch.zeros(2).bfloat16(), 1)], "image of a sample", "float32", "bfloat16"),
    ],
)
def test_wrong_samples(samples: list[Any], what: str, expected: str, found: str) -> None:
    for source in (TorchSource, IterableSource):
        with pytest.raises(DataError) as caught:
            source(samples)
        assert what in caught.value.what
        assert expected in str(caught.value.expected)
        assert caught.value.found == found


@pytest.mark.parametrize(
    ("odd", "expected", "found"),
    [
        ((torch.zeros(3), 1), "image: float32 2", "image: float32 3"),
        ((torch.zeros(2).int(), 1), "image: float32 2", "image: int32 2"),
        ((torch.zeros(2),), "2 values", "1 values"),
    ],
)
def test_a_sample_unlike_the_first(odd: tuple[Any, ...], expected: str, found: str) -> None:
    samples = [(torch.zeros(2), 0), (torch.zeros(2), 1), odd]
    for source in (TorchSource(samples), IterableSource(samples)):
        with pytest.raises(DataError, match="sample 2 differs in form") as caught:
            source.batch(np.arange(3))
        assert caught.value.expected == expected
        assert caught.value.found == found


def test_iterable_starts_again_when_it_ends() -> None:
    source = IterableSource(Counting(5))
    assert source.fields == (Field("image", (2,), "float32"), Field("label", (), "int64"))
    assert [labels(source, 4 * i, 4) for i in range(3)] == [
        [0, 1, 2, 3],
        [4, 0, 1, 2],
        [3, 4, 0, 1],
    ]


@pytest.mark.parametrize("iteration", [0, 1, 2, 7, 40])
def test_iterable_resumes_by_skipping(iteration: int) -> None:
    resumed = Reader(IterableSource(Counting(5)), batch=3, seed=0, shuffle=False)
    for later in (iteration, iteration + 1):
        expected = [position % 5 for position in range(3 * later, 3 * later + 3)]
        assert resumed.read(later)[1].tolist() == expected


def test_going_on_reads_each_sample_once() -> None:
    counting = Counting(100)
    source = IterableSource(counting)
    counting.read = 0
    for start in range(0, 90, 10):
        labels(source, start, 10)
    assert counting.read == 90


def test_going_far_costs_two_passes_at_most() -> None:
    counting = Counting(10)
    source = IterableSource(counting)
    counting.read = 0
    assert labels(source, 1_000_008, 1) == [8]
    assert counting.read <= 30


def test_iterable_goes_back() -> None:
    source = IterableSource(Counting(5))
    assert labels(source, 13, 2) == [3, 4]
    assert labels(source, 2, 2) == [2, 3]
    assert labels(source, 0, 1) == [0]


def test_length_of_an_iterable() -> None:
    assert len(IterableSource(Counting(5), length=5)) == 5
    with pytest.raises(DataError, match="not known") as caught:
        len(IterableSource(Counting(5)))
    assert "length=N" in str(caught.value.remedy)


@pytest.mark.parametrize(("length", "found"), [(4, "more than 4"), (6, "5")])
def test_wrong_length_of_an_iterable(length: int, found: str) -> None:
    source = IterableSource(Counting(5), length=length)
    with pytest.raises(DataError, match="another length") as caught:
        labels(source, 0, 10)
    assert caught.value.found == found


def test_a_generator_cannot_start_again() -> None:
    with pytest.raises(DataError, match="only once") as caught:
        IterableSource(iter([(1, 2)]))
    assert caught.value.found == "list_iterator"


def test_only_consecutive_positions() -> None:
    with pytest.raises(DataError, match="its own order"):
        IterableSource(Counting(5)).batch(np.array([0, 2]))


def test_an_iterable_that_raises_is_read_again_from_its_start() -> None:
    class Failing(Counting):
        broken = True

        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                if self.broken and sample[1] == 3:
                    raise OSError("disk")
                yield sample

    failing = Failing(5)
    source = IterableSource(failing)
    with pytest.raises(OSError, match="disk"):
        labels(source, 2, 2)
    failing.broken = False
    assert labels(source, 2, 5) == [2, 3, 4, 0, 1]
