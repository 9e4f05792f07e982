"""Decoding pictures as Caffe does: channels first, in the order blue, green, red."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from purine.data._files import extra
from purine.data.source import NumpyArray
from purine.errors import DataError, in_a_line

__all__ = ["decode_image"]


def decode_image(
    data: bytes | Path,
    *,
    where: str,
    color: bool | None = None,
    size: tuple[int, int] | None = None,
) -> npt.NDArray[np.uint8]:
    """A compressed picture (PNG, JPEG, ...) as uint8 [C, H, W].

    `color` asks for three channels or for one; None keeps grey pictures grey. `size` is the height
    and width to resize it to, by bilinear interpolation as in Caffe.
    """
    images = extra("PIL.Image", "images", "decoding pictures")
    try:
        with images.open(data if isinstance(data, Path) else io.BytesIO(data)) as picture:
            grey = picture.mode in ("1", "L") if color is None else not color
            array = np.array(picture.convert("L" if grey else "RGB"))
    except Exception as error:  # decoders raise nearly anything for damaged bytes
        what, expected = "the picture cannot be decoded", "a picture, such as PNG or JPEG"
        cause, remedy = in_a_line(error), "check the path, or make the picture again"
        raise DataError(what, expected, cause, remedy, where=where) from error
    planes = array[None] if array.ndim == 2 else np.moveaxis(array[:, :, ::-1], 2, 0)
    return np.ascontiguousarray(planes if size is None else _resized(planes, size))


def _resized(planes: NumpyArray, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    if planes.shape[1:] == size:
        return planes
    batch = torch.from_numpy(np.ascontiguousarray(planes))[None].to(torch.float64)
    scaled = torch.nn.functional.interpolate(batch, size, mode="bilinear", align_corners=False)
    resized: npt.NDArray[np.uint8] = scaled[0].round().clamp(0, 255).to(torch.uint8).numpy()
    return resized
