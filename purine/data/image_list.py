"""Pictures named by a text file, as Caffe's ImageData reads them: a path and a label in each line.

Pictures are decoded when they are asked for, with the channels in Caffe's order (blue first).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch

from purine.arguments import checked
from purine.data.decoding import decode_image
from purine.data.source import DataSet, Field, Indices, NumpyArray, Source, check_indices
from purine.errors import DataError

__all__ = ["ImageListSource", "image_list_dataset"]

_LABEL = re.compile("-?[0-9]{1,10}")


class ImageListSource(Source):
    """The pictures and labels of a list.

    `size` is the height and width that all are brought to; without it they have to be of one size.
    `root` is put before each path as it is written; without it relative paths begin at the current
    folder, or at the list's where there is no such file. Without `labels` there are images only.
    """

    @checked
    def __init__(
        self,
        path: str | Path,
        *,
        size: tuple[int, int] | None = None,
        color: bool = True,
        root: str | Path | None = None,
        labels: bool = True,
    ) -> None:
        self.path = Path(path)
        self._size = size
        self._color = color
        self._has_labels = labels
        self._root = root
        self._names, numbers = _read_list(self.path)
        self._labels = np.array(numbers, np.int64)
        self.classes = int(self._labels.max()) + 1 if self._labels.min() >= 0 else None
        shape = (3 if color else 1, *size) if size else self._picture(0).shape
        image = Field("image", shape, "uint8")
        self.fields = (image, Field("label", (), "int64")) if labels else (image,)

    def __len__(self) -> int:
        return len(self._names)

    def batch(self, indices: Indices) -> tuple[torch.Tensor, ...]:
        check_indices(indices, len(self))
        images = np.empty((len(indices), *self.fields[0].shape), np.uint8)
        for row, number in enumerate(indices):
            picture = self._picture(int(number))
            if picture.shape != images.shape[1:]:
                what, where = "a picture differs in size from the first", self._located(int(number))
                expected, size = str(list(images.shape[1:])), str(list(picture.shape))
                remedy = "give a size (in Caffe new_height and new_width) for all of them"
                raise DataError(what, expected, size, remedy, where=where)
            images[row] = picture
        columns = (torch.from_numpy(images), torch.from_numpy(self._labels[indices]))
        return columns if self._has_labels else columns[:1]

    def _picture(self, number: int) -> NumpyArray:
        path = self._located(number)
        return decode_image(Path(path), where=path, color=self._color, size=self._size)

    def _located(self, number: int) -> str:
        """The path of a picture; Caffe joins root and name as texts, whatever is between them."""
        name = self._names[number]
        paths = [name, str(self.path.parent / name)]
        if self._root is not None:
            paths = [f"{self._root}{name}", os.path.join(self._root, name)]
        return next((path for path in paths if os.path.exists(path)), paths[-1])


@checked
def image_list_dataset(train: str | Path, test: str | Path | None = None) -> DataSet:
    """The data set of one list, or of one for training and one for testing."""
    sources = [ImageListSource(path) for path in (train, test) if path is not None]
    return DataSet(Path(train).stem, *sources)


def _read_list(path: Path) -> tuple[list[str], list[int]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong_list(str(path), str(error)) from error
    names, labels = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        # Only the last space parts them: paths may hold spaces.
        name, _, label = line.strip().replace("\t", " ").rpartition(" ")
        if not name or not _LABEL.fullmatch(label):
            raise _wrong_list(f"{path}:{number}", repr(line[:80]))
        names.append(name.strip())
        labels.append(int(label))
    if not names:
        raise _wrong_list(str(path), "no lines")
    return names, labels


def _wrong_list(where: str, found: str) -> DataError:
    expected = "a text file with a path, a space and a whole number as label in each line"
    remedy = "correct the list or its path"
    return DataError("the list of pictures cannot be read", expected, found, remedy, where=where)
