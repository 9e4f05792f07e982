"""Files in Caffe's forms, written for tests."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt
from PIL import Image

from purine.data.messages import new_message

__all__ = ["datum", "encoded", "picture", "write_lmdb"]


def datum(image: npt.NDArray[np.uint8] | npt.NDArray[np.float32], label: int) -> bytes:
    """A stored image [C, H, W] with its label."""
    message = new_message("Datum")
    message.channels, message.height, message.width = image.shape
    message.label = label
    if image.dtype == np.uint8:
        message.data = image.tobytes()
    else:
        message.float_data.extend(image.reshape(-1).tolist())
    return bytes(message.SerializeToString())


def encoded(data: bytes, label: int) -> bytes:
    """A stored picture file with its label."""
    message = new_message("Datum")
    message.data, message.label, message.encoded = data, label, True
    return bytes(message.SerializeToString())


def picture(array: npt.NDArray[np.uint8]) -> bytes:
    """A PNG of [H, W] or of [H, W, 3] with red first."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return file.getvalue()


def write_lmdb(path: Path, values: Iterable[bytes]) -> Path:
    environment = lmdb.open(str(path), map_size=1 << 24)
    with environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(f"{number:08}".encode(), value)
    environment.close()
    return path
