"""Gradients of convolution filters as im2col and one matrix product, on CPUs and over few pixels.

oneDNN computes these gradients in blocks of 16 by 16 channels and then converts them to the layout
of the filters. For small images and batches, such as the micro-batches of a pipeline, there is
little to add up for each element of a filter, and the conversion takes as long as the sums. Im2col
and one product need no conversion.

The choice depends on the op and the shapes of its blobs alone, never on values or times: the same
graph gets the same kernels, and so the same bits, in every run. Results differ from oneDNN's by
rounding.

Few ops have such shapes: of GoogLeNet in micro-batches of two images, two convolutions. There the
CPU time of a whole step is the same with and without, to within the noise of one percent.
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
"""oneDNN has other kernels for channels that do not fill its blocks."""
_DTYPES = ("float32",)
"""For other dtypes torch uses a product itself, or oneDNN has faster kernels."""


@dataclass(frozen=True, slots=True)
class Quicker:
    """Shapes for which products are faster.

    The gradient has at most `places` pixels in all images of a batch, and rows of at least `width`.
    There are at least `filters` filters over at least `channels` channels. They are squares, with
    one of these `sides`.
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
"""By layout, as measured on one core. Im2col is faster for channels-last or long rows, and matters
less the more filters there are."""


def in_parts(op: Op, blobs: Mapping[str, Blob]) -> tuple[Op, ...]:
    """The ATen ops that run instead of an op, in order; for most ops the op itself.

    They have the op's name and location, read its inputs and write its outputs.
    """
    return _Product(op, blobs).ops() if _pays(op, blobs) else (op,)


def _pays(op: Op, blobs: Mapping[str, Blob]) -> bool:
    """Whether an op is the gradient of filters for which a product is faster."""
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
        return False  # these are products already, inside oneDNN or in torch
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
    """An attribute for both axes of an image; one value may stand for both."""
    value = op.attributes[name]
    assert isinstance(value, tuple)
    return (value[0], value[-1])  # type: ignore[return-value]


class _Product:
    """Builds the ops that compute the gradient of one filter."""

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
        """Channels first: rows of the gradient by channel times columns of im2col."""
        padded = self._padded(self.images, places=2)
        moved = self._add("permute", self._windows(padded, axis=2), dims=(1, 4, 5, 0, 2, 3))
        columns = self._add("reshape", moved, shape=(self.channels * math.prod(self.points), -1))
        turned = self._add("transpose.int", self.gradient, dim0=0, dim1=1)
        rows = self._add("reshape", turned, shape=(self.filters, -1))
        product = self._add("mm", rows, self._add("t", columns))
        self._add(
            "reshape", product, shape=(self.filters, self.channels, *self.points), result=weight
        )

    def _of_pixels(self, weight: str) -> None:
        """Channels last: the same, with a result that is channels-last too."""
        pixels = self._add("permute", self.images, dims=(0, 2, 3, 1))
        padded = self._padded(pixels, places=1)
        moved = self._add("permute", self._windows(padded, axis=1), dims=(0, 1, 2, 4, 5, 3))
        columns = self._add("reshape", moved, shape=(-1, self.channels * math.prod(self.points)))
        turned = self._add("permute", self.gradient, dims=(0, 2, 3, 1))
        rows = self._add("reshape", turned, shape=(-1, self.filters))
        product = self._add("mm", self._add("t", rows), columns)
        points = self._add("reshape", product, shape=(self.filters, *self.points, self.channels))
        self._add("permute", points, dims=(0, 3, 1, 2), result=weight)

    def _padded(self, images: str, *, places: int) -> str:
        """Images padded with zeros; `places` is 1 where channels are the last axis, else 2."""
        high, wide = pair(self.op, "padding")
        if high == wide == 0:
            return images
        behind = (0, 0) if places == 1 else ()
        return self._add(
            "constant_pad_nd", images, pad=(*behind, wide, wide, high, high), value=0.0
        )

    def _windows(self, images: str, *, axis: int) -> str:
        """The pixels under the filters at each place: a view with two more axes."""
        for number, (size, step) in enumerate(
            zip(self.points, pair(self.op, "stride"), strict=True)
        ):
            images = self._add("unfold", images, dimension=axis + number, size=size, step=step)
        return images

    def _add(self, kind: str, *inputs: str, result: str = "", **settings: Attribute) -> str:
        """Append an op, which writes a new blob unless `result` names one."""
        output = result or f"{self.op.name}/part{len(self.parts)}"
        self.parts.append(
            replace(
                self.op, kind=f"aten.{kind}", inputs=inputs, outputs=(output,), attributes=settings
            )
        )
        return output
