"""Convolutions on CPUs that read filters in oneDNN's own blocked layout.

torch converts the filters of a convolution to that layout in every call. Where many calls read the
same filters, as the micro-batches of a step do, `pack` converts them once. At stride 1 the gradient
of the images is a convolution too, of the output's gradient with filters that are rotated by 180
degrees; with these packed it is faster than oneDNN's own kernel for that gradient.

Results differ from torch's by rounding at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from purine.graph import NOTHING, Attribute, Blob, Op
from purine.registry.aten import device_of

__all__ = ["PACKED", "TURNED", "can_pack", "pack", "with_packed"]

PACKED, TURNED = "packed", "turned"
"""The layouts of packed filters: as they are, or rotated for a gradient."""
_CONVOLUTION = "mkldnn._convolution_pointwise"
_PLAIN: Mapping[str, Attribute] = {"groups": 1, "attr": "none", "scalars": (), "algorithm": ""}
"""Its arguments for a convolution without a fused activation."""
_FILTERS = {"aten.convolution": 1, "aten.convolution_backward": 2}
"""Kinds that read filters, and the position of that input."""
_SMALL = 20480
"""For images of at most this many elements torch may use kernels of its own."""


def can_pack(op: Op, blobs: Mapping[str, Blob]) -> tuple[str, str] | None:
    """The filters that an op could read packed, and the layout they would have."""
    index = _FILTERS.get(op.kind)
    if index is None or device_of(op.location).type != "cpu":
        return None
    is_available: Callable[[], bool] = torch.backends.mkldnn.is_available
    if not (is_available() and torch.backends.mkldnn.enabled):
        return None
    images, weight = blobs[op.inputs[0]], blobs[op.inputs[index]]
    filters = weight.shape
    if filters is None or images.shape is None or len(filters) != 4 or not weight.layout:
        return None
    if 1 in filters[:2] or op.inputs.count(weight.name) > 1:
        return None  # a single channel has no layout, and oneDNN is wrong for single filters
    if any(blobs[name].dtype != "float32" for name in op.inputs):
        return None
    if op.attributes["groups"] != 1 or op.attributes["transposed"]:
        return None
    if set(_pair(op, "dilation")) != {1} or math.prod(images.shape) <= _SMALL:
        return None
    if op.kind == "aten.convolution":
        return weight.name, PACKED
    turnable = _pair(op, "stride") == (1, 1) and min(_turned_padding(op, filters)) >= 0
    alone = op.outputs[0] != NOTHING and set(op.outputs[1:]) == {NOTHING}
    return (weight.name, TURNED) if turnable and alone else None


def pack(op: Op, blobs: Mapping[str, Blob], filters: Tensor) -> Tensor:
    """The packed filters for an op that `can_pack`, and for others with inputs of its shape."""
    given, settings = blobs[op.inputs[0]].sizes, _settings(op, blobs)
    if op.kind != "aten.convolution":
        turned = filters.flip(2, 3) if filters.shape[2:] != (1, 1) else filters
        filters = turned.transpose(0, 1).contiguous(memory_format=torch.channels_last)
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        filters, settings["padding"], settings["stride"], settings["dilation"], 1, given
    )
    return packed


def with_packed(op: Op, blobs: Mapping[str, Blob]) -> Op:
    """The op that runs instead of one whose filters are packed; for others the op itself."""
    index = _FILTERS.get(op.kind)
    if index is None or blobs[op.inputs[index]].layout not in (PACKED, TURNED):
        return op
    images, filters = op.inputs[0], op.inputs[index]
    more = op.inputs[2:] if op.kind == "aten.convolution" else ()
    absent = {} if more else {"B": None}
    settings: dict[str, Attribute] = {**_settings(op, blobs), **_PLAIN, **absent}
    inputs, outputs = (images, filters, *more), op.outputs[:1]
    return replace(op, kind=_CONVOLUTION, inputs=inputs, outputs=outputs, attributes=settings)


def _settings(op: Op, blobs: Mapping[str, Blob]) -> dict[str, tuple[int, int]]:
    """Padding, stride and dilation of the convolution that runs."""
    stride, padding = _pair(op, "stride"), _pair(op, "padding")
    if op.kind != "aten.convolution":
        padding = _turned_padding(op, blobs[op.inputs[2]].sizes)
    return {"padding": padding, "stride": stride, "dilation": (1, 1)}


def _turned_padding(op: Op, filters: tuple[int, ...]) -> tuple[int, int]:
    high, wide = _pair(op, "padding")
    return filters[2] - 1 - high, filters[3] - 1 - wide


def _pair(op: Op, name: str) -> tuple[int, int]:
    """An attribute for both axes of an image; one value may stand for both."""
    values = op.items(name)
    return values[0], values[-1]
