"""The data set that comes with the package, so that a first run needs no download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from purine.arguments import checked
from purine.data.idx import idx_dataset
from purine.data.source import DataSet

__all__ = ["fashion_mini"]

_FOLDER = Path(__file__).parent / "fashion_mini"


@checked
def fashion_mini() -> DataSet:
    """6,000 training and 1,000 test images of Fashion-MNIST, the same number of each class.

    >>> data = fashion_mini()
    >>> print(len(data.train), *data.train.fields, sep=", ")
    6000, image: uint8 1x28x28, label: int64 scalar
    """
    return replace(idx_dataset(_FOLDER, classes=10), name="fashion-mini")
