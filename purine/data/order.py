"""The order in which samples are read.

Position p belongs to epoch p // N and is sample p % N of that epoch's permutation, which is a
function of (seed, epoch) alone. A batch may span two epochs, so no sample is dropped, and a run
that resumes reads what an undisturbed run would have read.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch

from purine.arguments import at_least, checked
from purine.data.source import Indices, Source
from purine.errors import ConfigError, DataError

__all__ = ["Order", "Reader"]


class Order:
    """The numbers of the samples along an endless stream of epochs.

    Permutations of the last two epochs asked for are kept.

    >>> order = Order(4, seed=0, shuffle=False)
    >>> order.indices(2, 5)
    array([2, 3, 0, 1, 2])
    """

    @checked
    def __init__(self, length: int, *, seed: int, shuffle: bool = True) -> None:
        at_least("the number of samples", length, 1)
        at_least("seed", seed, 0)
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self._permutation = lru_cache(maxsize=2)(partial(_draw_permutation, length, seed))

    def indices(self, start: int, count: int) -> Indices:
        """The samples at positions start to start + count - 1."""
        at_least("start", start, 0)
        at_least("count", count, 0)
        if not self.shuffle:
            return np.arange(start, start + count, dtype=np.int64) % self.length
        pieces = [np.empty(0, dtype=np.int64)]
        end = start + count
        while start < end:
            epoch, offset = divmod(start, self.length)
            pieces.append(self._permutation(epoch)[offset : offset + end - start])
            start += len(pieces[-1])
        return np.concatenate(pieces)


class Reader:
    """Reads the batches of one source, each a function of the iteration.

    Where several readers share the work, each reads its own part of a `whole` batch, from sample
    `offset` on: together they read the stream that one reader with a batch of `whole` reads.
    """

    @checked
    def __init__(
        self,
        source: Source,
        *,
        batch: int,
        seed: int,
        shuffle: bool,
        offset: int = 0,
        whole: int | None = None,
    ) -> None:
        at_least("batch", batch, 1)
        whole = offset + batch if whole is None else whole
        if not 0 <= offset <= whole - batch:
            what = f"a part of {batch} samples begins at {offset} of {whole}"
            remedy = "let the parts lie within the whole batch"
            raise ConfigError(what, f"an offset of 0 to {whole - batch}", str(offset), remedy)
        if source.sequential and shuffle:
            what = "a sequential source cannot be shuffled"
            remedy = "pass shuffle=False and let the iterable choose its order"
            raise DataError(what, "shuffle=False", "shuffle=True", remedy)
        self.source = source.for_reader()
        self.batch = batch
        self.offset = offset
        self.whole = whole
        self._order = None if source.sequential else Order(len(source), seed=seed, shuffle=shuffle)

    def read(self, iteration: int) -> tuple[torch.Tensor, ...]:
        """The batch of this iteration, a tensor per field of the source."""
        at_least("iteration", iteration, 0)
        start = iteration * self.whole + self.offset
        if self._order is None:
            return self.source.batch(np.arange(start, start + self.batch, dtype=np.int64))
        return self.source.batch(self._order.indices(start, self.batch))


def _draw_permutation(length: int, seed: int, epoch: int) -> Indices:
    """Sort by random keys: raw bits stay the same over numpy's releases, `permutation` need not."""
    generator = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    return np.argsort(generator.random_raw(length), kind="stable").astype(np.int64, copy=False)
