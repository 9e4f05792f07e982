"""What users have as data, as a data set: the one place that knows all forms.

Tensors, arrays and lists go to the inputs of the net by position, and so do the values of the
samples of PyTorch's data sets. Nothing is scaled or converted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from purine.arguments import checked, wrong_value
from purine.data.open import open_data
from purine.data.source import DataSet, Source
from purine.data.tensors import TensorSource, columns_source
from purine.data.torch_dataset import IterableSource, TorchSource, is_map_dataset, item_names
from purine.errors import DataError

__all__ = ["DataLike", "as_dataset"]

DataLike: TypeAlias = object
"""What `as_dataset` takes."""


@checked
def as_dataset(data: DataLike, *, test: DataLike | None = None) -> DataSet:
    """A data set of what is given, and of what to `test` on.

    Either may be tensors or arrays (one, or a tuple of them, for the inputs of the net by
    position), a data set of PyTorch or another sequence of samples, an iterable data set of
    PyTorch, a `DataLoader`, a source, or a name or path as job files have it. Of a `DataLoader` its
    data set is used: batch size and order are those of the run, and a loader that changes samples
    (a `collate_fn`) or chooses them (a sampler of its own) is refused.

    >>> import torch
    >>> as_dataset((torch.zeros(4, 8), [0, 1, 0, 1])).train.fields[1].dtype
    'int64'
    """
    if isinstance(data, str | os.PathLike):
        data = open_data(os.fspath(data))
    if isinstance(data, DataSet):
        return data if test is None else replace(data, test=_source(test))
    name = "tensors" if isinstance(data, tuple | list) else type(data).__name__
    return DataSet(name, _source(data), None if test is None else _source(test))


def _source(data: object) -> Source:
    if isinstance(data, str | os.PathLike):
        data = open_data(os.fspath(data))
    if isinstance(data, DataSet):
        return data.train if data.test is None else data.test
    if isinstance(data, Source):
        return data
    if isinstance(data, Tensor | np.ndarray | tuple | list):
        return columns_source(data)
    if isinstance(data, DataLoader):
        return _source(_dataset_of(data))
    if isinstance(data, TensorDataset) and type(data) is TensorDataset:
        return TensorSource(*data.tensors)
    if isinstance(data, IterableDataset):
        return IterableSource(data, names=item_names(data))
    if not is_map_dataset(data) or isinstance(data, Mapping):
        expected = (
            "tensors or arrays, a data set of PyTorch, a DataLoader, or a data set of pu.data"
        )
        remedy = "pass a tuple with a tensor for each input of the net, in the net's order"
        raise wrong_value(DataError, "data", data, f"{expected} or its name", remedy=remedy)
    return TorchSource(data, names=item_names(data))


def _dataset_of(loader: DataLoader[object]) -> object:
    """The data set of a loader that only batches it and chooses an order."""
    for what, given, plain in (
        ("collate_fn", loader.collate_fn, loader.collate_fn is default_collate),
        ("batch_sampler", loader.batch_sampler, type(loader.batch_sampler) is BatchSampler),
        ("sampler", loader.sampler, _takes_all(loader)),
    ):
        if not plain and not (isinstance(loader.dataset, IterableDataset) and "sampler" in what):
            name = getattr(given, "__name__", type(given).__name__)
            actual = f"{what} {name}" if given is not None else "no batch size"
            what = f"the DataLoader has a {what} of its own, which a run would leave out"
            expected = "all samples in batches: a run uses the data set, in its own order"
            remedy = "let the data set give the samples as wanted, and pass it: data=loader.dataset"
            raise DataError(what, expected, actual, remedy)
    return loader.dataset


def _takes_all(loader: DataLoader[object]) -> bool:
    """Whether a loader's sampler gives every sample once, in order or shuffled."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler
