"""Sources of samples, the order in which they are read, and an embedded sample data set.

A batch is a function of (seed, iteration): resuming gives the batches of an undisturbed run, and
reading ahead changes nothing.
"""

from purine.data.arrays import ArraySource
from purine.data.convert import as_dataset
from purine.data.hdf5 import Hdf5Source, hdf5_dataset
from purine.data.idx import fashion_mini, idx_dataset, read_idx
from purine.data.image_list import ImageListSource, image_list_dataset
from purine.data.lmdb import LmdbSource, lmdb_dataset
from purine.data.npz import npy_dataset, npz_dataset
from purine.data.open import open_data
from purine.data.order import Order, Reader
from purine.data.prepare import prepare
from purine.data.source import DataSet, Field, Source
from purine.data.synthetic import (
    SyntheticImages,
    SyntheticMasks,
    SyntheticTokens,
    synthetic_images,
    synthetic_masks,
    synthetic_tokens,
)
from purine.data.tensors import TensorSource, tensors
from purine.data.torch_dataset import IterableSource, TorchSource

__all__ = [
    "ArraySource",
    "DataSet",
    "Field",
    "Hdf5Source",
    "ImageListSource",
    "IterableSource",
    "LmdbSource",
    "Order",
    "Reader",
    "Source",
    "SyntheticImages",
    "SyntheticMasks",
    "SyntheticTokens",
    "TensorSource",
    "TorchSource",
    "as_dataset",
    "fashion_mini",
    "hdf5_dataset",
    "idx_dataset",
    "image_list_dataset",
    "lmdb_dataset",
    "npy_dataset",
    "npz_dataset",
    "open_data",
    "prepare",
    "read_idx",
    "synthetic_images",
    "synthetic_masks",
    "synthetic_tokens",
    "tensors",
]
