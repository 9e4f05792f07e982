"""Gradients of convolution filters as products of matrices, on CPUs and over few pixels.

The library's kernel for these gradients makes them in blocks of 16 by 16 channels, and then they
are laid out anew. Where images and batches are small, as in the micro-batches of a pipeline, little
is computed for each number of a filter, and that takes as long as the sums. There the pixels under
each point of the filters are written side by side, as columns, and one product makes the gradient.

The choice depends on an op and on the shapes of its blobs alone, never on values or times: the same
graph gets the same kernels, and so the same bits, in every run. Numbers differ from those of the
library by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from purine.graph import CHANNELS_LAST, NOTHING, Attribute, Blob, Op
from purine.registry.aten import device_of

__all__ = ["in_parts", "pair"]

_KIND = "aten.convolution_backward"
_BLOCK = 16
"""The library has other kernels for channels that do not fill its blocks."""
_DTYPES = ("float32",)
"""Of other numbers torch makes a product itself, or the library has quicker kernels."""


@dataclass(frozen=True, slots=True)
class Quicker:
    """Forms for which products are quicker.

    Filters stand at no more than so many `places` in all images of a batch. There are at least so
    many `filters`, over so many `channels`, which are squares of these `sides`. A row of gradients
    has at least this `width`.
    """

    places: int
    filters: int
    channels: int
    sides: tuple[int, ...]
    width: int = 1


_QUICKER: Mapping[str, Sequence[Quicker]] = {
    CHANNELS_LAST: (Quicker(100, 128, 64, (1, 3, 5)), Quicker(200, 512, 512, (1, 3))),
    "": (Quicker(100, 384, 128, (1, 3), width=3),),
}
"""By layout, as measured on one core. Channels that lie side by side, or long rows, are quicker to
write as columns, and the more filters there are, the less the columns matter."""


def in_parts(op: Op, blobs: Mapping[str, Blob]) -> tuple[Op, ...]:
    """The ATen ops that run in place of an op, in their order: for most the op itself alone.

    They have the op's name and location, read its inputs and write its outputs.
    """
    return _Product(op, blobs).ops() if _pays(op, blobs) else (op,)


def _pays(op: Op, blobs: Mapping[str, Blob]) -> bool:
    """Whether an op is the gradient of filters that a product makes quicker."""
    if op.kind != _KIND or device_of(op.location).type != "cpu" or len(op.outputs) != 3:
        return False
    if op.outputs[0] != NOTHING or op.outputs[1] == NOTHING:
        return False
    gradient, _, weight = (blobs[name] for name in op.inputs)
    filters, images = weight.shape, gradient.shape
    if filters is None or images is None or len(filters) != 4:
        return False
    simple = op.attributes["groups"] == 1 and not op.attributes["transposed"]
    if not simple or set(pair(op, "dilation")) != {1}:
        return False
    if any(blobs[name].dtype not in _DTYPES for name in op.inputs):
        return False
    if images[0] == 1 or (filters[2:] == (1, 1) and pair(op, "stride") == (1, 1)):
        return False  # products already, inside the library or in torch
    places = images[0] * math.prod(images[2:])
    count, channels, high, wide = filters
    if high != wide or count % _BLOCK or channels % _BLOCK:
        return False
    return any(
        places <= form.places
        and count >= form.filters
        and channels >= form.channels
        and high in form.sides
        and images[3] >= form.width
        for form in _QUICKER[weight.layout]
    )


def pair(op: Op, name: str) -> tuple[int, int]:
    """A setting for both axes of an image, where it may be given once for both."""
    value = op.attributes[name]
    assert isinstance(value, tuple)
    return (value[0], value[-1])  # type: ignore[return-value]


class _Product:
    """The ops that make the gradient of one filter, while they are written."""

    def __init__(self, op: Op, blobs: Mapping[str, Blob]) -> None:
        self.op = op
        self.parts: list[Op] = []
        self.gradient, self.images, weight = op.inputs
        shape = blobs[weight].shape
        assert shape is not None
        self.filters, self.channels, *self.points = shape
        self.last = blobs[weight].layout == CHANNELS_LAST

    def ops(self) -> tuple[Op, ...]:
        _, weight, bias = self.op.outputs
        if bias != NOTHING:
            self._add("sum.dim_IntList", self.gradient, dim=(0, 2, 3), result=bias)
        if self.last:
            self._of_pixels(weight)
        else:
            self._of_channels(weight)
        return tuple(self.parts)

    def _of_channels(self, weight: str) -> None:
        """Each channel of the gradient times each channel under each point of the filters."""
        padded = self._padded(self.images, places=2)
        moved = self._add("permute", self._windows(padded, axis=2), dims=(1, 4, 5, 0, 2, 3))
        columns = self._add("reshape", moved, shape=(self.channels * math.prod(self.points), -1))
        turned = self._add("transpose.int", self.gradient, dim0=0, dim1=1)
        rows = self._add("reshape", turned, shape=(self.filters, -1))
        made = self._add("mm", rows, self._add("t", columns))
        self._add("reshape", made, shape=(self.filters, self.channels, *self.points), result=weight)

    def _of_pixels(self, weight: str) -> None:
        """The same for channels that lie side by side, here and in the gradient of the filters."""
        pixels = self._add("permute", self.images, dims=(0, 2, 3, 1))
        padded = self._padded(pixels, places=1)
        moved = self._add("permute", self._windows(padded, axis=1), dims=(0, 1, 2, 4, 5, 3))
        columns = self._add("reshape", moved, shape=(-1, self.channels * math.prod(self.points)))
        turned = self._add("permute", self.gradient, dims=(0, 2, 3, 1))
        rows = self._add("reshape", turned, shape=(-1, self.filters))
        made = self._add("mm", self._add("t", rows), columns)
        points = self._add("reshape", made, shape=(self.filters, *self.points, self.channels))
        self._add("permute", points, dims=(0, 3, 1, 2), result=weight)

    def _padded(self, images: str, *, places: int) -> str:
        """Images with zeros around them; `places` is 1 where channels are the last axis, else 2."""
        high, wide = pair(self.op, "padding")
        if high == wide == 0:
            return images
        behind = (0, 0) if places == 1 else ()
        return self._add(
            "constant_pad_nd", images, pad=(*behind, wide, wide, high, high), value=0.0
        )

    def _windows(self, images: str, *, axis: int) -> str:
        """What lies under the filters wherever these stand: two axes more, no copy."""
        for number, (size, step) in enumerate(
            zip(self.points, pair(self.op, "stride"), strict=True)
        ):
            images = self._add("unfold", images, dimension=axis + number, size=size, step=step)
        return images

    def _add(self, kind: str, *inputs: str, result: str = "", **settings: Attribute) -> str:
        """One more op, which writes a blob of its own unless `result` names one."""
        made = result or f"{self.op.name}/part{len(self.parts)}"
        self.parts.append(
            replace(
                self.op, kind=f"aten.{kind}", inputs=inputs, outputs=(made,), attributes=settings
            )
        )
        return made
