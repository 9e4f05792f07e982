"""Samples made from numbers alone, for trials and benchmarks.

Sample i is a function of (seed, i). Something can be learnt from them: the images of a class share
a pattern of coarse squares, each class of pixels has a colour, and each token mostly follows from
the one before. They are quick to make: the noise of an image is a window of one pool of random
numbers, at a place hashed from its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from purine.arguments import checked, wrong_value
from purine.data.source import DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError

__all__ = [
    "SyntheticImages",
    "SyntheticMasks",
    "SyntheticTokens",
    "synthetic_images",
    "synthetic_masks",
    "synthetic_tokens",
]

_POOL = 1 << 20
_SQUARES = 7
_SUCCESSORS = 4
_SURPRISE = 16


class SyntheticImages(Source):
    """Images of mean 0 and variance 1 (float32) or of 0 to 255 (uint8); label i % classes.

    `first` is the number of the first sample, so that two sources of one seed share no sample.

    >>> source = SyntheticImages((3, 8, 8), classes=10, count=100)
    >>> image, label = source.batch(np.array([7, 12]))
    >>> list(image.shape), label.tolist()
    ([2, 3, 8, 8], [7, 2])
    """

    @checked
    def __init__(
        self,
        image: tuple[int, int, int],
        *,
        classes: int,
        count: int,
        seed: int = 0,
        dtype: str = "float32",
        first: int = 0,
    ) -> None:
        sizes = {"channels": image[0], "height": image[1], "width": image[2]}
        _require(sizes | {"classes": classes, "count": count}, seed)
        if dtype not in ("float32", "uint8"):
            what = f"synthetic images cannot be {dtype}"
            raise DataError(what, "float32 or uint8", dtype, "use float32, or cast in the graph")
        self.fields = (Field("image", tuple(image), dtype), Field("label", (), "int64"))
        self.classes = self._classes = classes
        self._count = count
        self._seed = seed
        self._first = first
        self._size = math.prod(image)
        generator = np.random.Generator(np.random.Philox(seed))
        squares = (classes, image[0], min(_SQUARES, image[1]), min(_SQUARES, image[2]))
        patterns: NumpyArray
        self._pool: NumpyArray
        if dtype == "uint8":
            # 0 to 127 and 0 to 128: their sum needs no clipping
            patterns = generator.integers(0, 128, squares, dtype=np.uint8)
            self._pool = generator.integers(0, 129, _POOL + self._size, dtype=np.uint8)
        else:
            scale = np.float32(math.sqrt(0.5))
            patterns = scale * generator.standard_normal(squares, dtype=np.float32)
            self._pool = scale * generator.standard_normal(_POOL + self._size, dtype=np.float32)
        self._patterns = torch.from_numpy(patterns)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, self._count)
        numbers = indices + self._first
        shape = self.fields[0].shape
        labels = torch.from_numpy(numbers % self._classes)
        images = np.empty((len(numbers), self._size), self._pool.dtype)
        starts = (_hash(self._seed, numbers) % np.uint64(_POOL)).astype(np.int64)
        for row, start in zip(images, starts, strict=True):
            row[:] = self._pool[start : start + self._size]
        batch = torch.from_numpy(images.reshape(-1, *shape))
        if len(numbers):
            batch += torch.nn.functional.interpolate(self._patterns[labels], size=shape[1:])
        return batch, labels


class SyntheticMasks(Source):
    """float32 images whose coarse squares are each of a class, and the class of every pixel.

    `first` is as for `SyntheticImages`.

    >>> image, label = SyntheticMasks((3, 16, 8), classes=4, count=10).batch(np.array([7, 2]))
    >>> list(image.shape), list(label.shape), bool((label < 4).all())
    ([2, 3, 16, 8], [2, 16, 8], True)
    """

    @checked
    def __init__(
        self,
        image: tuple[int, int, int],
        *,
        classes: int,
        count: int,
        seed: int = 0,
        first: int = 0,
    ) -> None:
        self._noise = SyntheticImages(image, classes=1, count=count, seed=seed, first=first)
        _require({"classes": classes}, seed)
        self.fields = (self._noise.fields[0], Field("label", tuple(image[1:]), "int64"))
        self.classes = self._classes = classes
        self._seed = seed
        self._first = first
        generator = np.random.Generator(np.random.Philox(seed))
        colours = generator.standard_normal((classes, image[0]), dtype=np.float32)
        self._colours = torch.from_numpy(colours)

    def __len__(self) -> int:
        return len(self._noise)

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        images, _ = self._noise.batch(indices)
        height, width = self.fields[1].shape
        rows, columns = min(_SQUARES, height), min(_SQUARES, width)
        squares = np.arange(rows * columns).reshape(rows, columns)
        numbers = (indices + self._first)[:, None, None] * squares.size + squares
        classes = (_hash(self._seed, numbers) >> np.uint64(16)) % np.uint64(self._classes)
        down, across = np.arange(height) * rows // height, np.arange(width) * columns // width
        spread = classes.astype(np.int64)[:, down[:, None], across]
        labels = torch.from_numpy(np.ascontiguousarray(spread))
        images += self._colours[labels].movedim(-1, 1)
        return images, labels


class SyntheticTokens(Source):
    """Sequences in which one of four known tokens follows a token, but for one time in 16.

    `targets` are the tokens one place later. `first` is as for `SyntheticImages`.

    >>> source = SyntheticTokens(5, vocabulary=16, count=100)
    >>> tokens, targets = source.batch(np.array([3]))
    >>> bool((tokens[:, 1:] == targets[:, :-1]).all())
    True
    """

    @checked
    def __init__(
        self, length: int, *, vocabulary: int, count: int, seed: int = 0, first: int = 0
    ) -> None:
        _require({"length": length, "vocabulary": vocabulary, "count": count}, seed)
        self.fields = (Field("tokens", (length,), "int64"), Field("targets", (length,), "int64"))
        self.classes = vocabulary
        self._count = count
        self._seed = seed
        self._first = first
        generator = np.random.Generator(np.random.Philox(seed))
        self._successors = generator.integers(0, vocabulary, (vocabulary, _SUCCESSORS))

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, self._count)
        places = self.fields[0].shape[0] + 1
        numbers = (indices + self._first)[None, :] * places + np.arange(places)[:, None]
        bits = _hash(self._seed, numbers)
        anything = ((bits >> np.uint64(16)) % np.uint64(len(self._successors))).astype(np.int64)
        choice = (bits % np.uint64(_SUCCESSORS)).astype(np.int64)
        surprise = (bits >> np.uint64(8)) % np.uint64(_SURPRISE) == 0
        sequence = np.empty((places, len(indices)), np.int64)
        sequence[0] = anything[0]
        for at in range(1, places):
            expected = self._successors[sequence[at - 1], choice[at]]
            sequence[at] = np.where(surprise[at], anything[at], expected)
        tokens, targets = sequence[:-1].T.copy(), sequence[1:].T.copy()
        return torch.from_numpy(tokens), torch.from_numpy(targets)


@checked
def synthetic_images(
    image: tuple[int, int, int] = (3, 224, 224),
    *,
    classes: int = 1000,
    count: int = 1280,
    seed: int = 0,
    dtype: str = "float32",
) -> DataSet:
    """`count` images to train on and a tenth as many others to test on."""
    make = partial(SyntheticImages, image, classes=classes, seed=seed, dtype=dtype)
    return _both_parts("synthetic", make, count)


@checked
def synthetic_masks(
    image: tuple[int, int, int] = (3, 64, 64), *, classes: int = 4, count: int = 320, seed: int = 0
) -> DataSet:
    """`count` images with classes of pixels to train on and a tenth as many others to test on."""
    make = partial(SyntheticMasks, image, classes=classes, seed=seed)
    return _both_parts("synthetic-masks", make, count)


@checked
def synthetic_tokens(
    length: int = 64, *, vocabulary: int = 256, count: int = 1280, seed: int = 0
) -> DataSet:
    """`count` sequences to train on and a tenth as many others to test on."""
    make = partial(SyntheticTokens, length, vocabulary=vocabulary, seed=seed)
    return _both_parts("synthetic-tokens", make, count)


def _both_parts(name: str, make: Callable[..., Source], count: int) -> DataSet:
    return DataSet(name, make(count=count), make(count=max(1, count // 10), first=count))


def _hash(seed: int, numbers: Indices) -> npt.NDArray[np.uint64]:
    """64 well mixed bits for each number: the finaliser of SplitMix64."""
    bits = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    value = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + bits
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


def _require(sizes: dict[str, int], seed: int) -> None:
    for name, value, least in [("seed", seed, 0), *((n, v, 1) for n, v in sizes.items())]:
        if value < least:
            remedy = f"use {name}={least} or more"
            raise wrong_value(DataError, name, value, f"{least} or more", remedy=remedy)
        bits = 63 if name in ("seed", "count") else 24  # a side of an image is no longer
        if value >= 2**bits:
            digits, remedy = f"a number of {len(str(value))} digits", f"use a smaller {name}"
            raise DataError(f"{name} is too large", f"a number below 2^{bits}", digits, remedy)
