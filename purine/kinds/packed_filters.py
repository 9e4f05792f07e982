"""Convolutions on CPUs whose filters lie as the library's kernels want them.

torch lays the filters of a convolution out anew in every call, in blocks of channels that fill the
registers. Where many calls read the same filters, as the micro-batches of a step do, that is done
once (`pack`), and the calls read what it gives. The gradient of images whose filters stand at every
pixel is a convolution too, of the gradient with filters that are turned around: with these packed
it is quicker than the library's own kernel for it.

Numbers differ from those of torch by rounding at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from purine.graph import NOTHING, Attribute, Blob, Op
from purine.kinds.filter_products import pair
from purine.registry.aten import device_of

__all__ = ["PACKED", "TURNED", "can_pack", "pack", "with_packed"]

PACKED, TURNED = "packed", "turned"
"""The layouts of filters that are packed: as they are, or turned around for a gradient."""
_CONVOLUTION = "mkldnn._convolution_pointwise"
_PLAIN: Mapping[str, Attribute] = {"groups": 1, "attr": "none", "scalars": (), "algorithm": ""}
"""What it is told where nothing else is to be done with its results."""
_FILTERS = {"aten.convolution": 1, "aten.convolution_backward": 2}
"""Kinds that read filters, and at which input."""
_SMALL = 20480
"""Images of no more numbers than this may stay with torch's own kernels."""


def can_pack(op: Op, blobs: Mapping[str, Blob]) -> tuple[str, str] | None:
    """The filters that an op could read in packed form, and in which."""
    place = _FILTERS.get(op.kind)
    if place is None or device_of(op.location).type != "cpu":
        return None
    is_available: Callable[[], bool] = torch.backends.mkldnn.is_available
    if not (is_available() and torch.backends.mkldnn.enabled):
        return None
    images, weight = blobs[op.inputs[0]], blobs[op.inputs[place]]
    filters = weight.shape
    if filters is None or images.shape is None or len(filters) != 4 or not weight.layout:
        return None
    if 1 in filters[:2] or op.inputs.count(weight.name) > 1:
        return None  # a single channel has no layout, and the library errs on single filters
    if any(blobs[name].dtype != "float32" for name in op.inputs):
        return None
    if op.attributes["groups"] != 1 or op.attributes["transposed"]:
        return None
    if set(pair(op, "dilation")) != {1} or math.prod(images.shape) <= _SMALL:
        return None
    if op.kind == "aten.convolution":
        return weight.name, PACKED
    turnable = pair(op, "stride") == (1, 1) and min(_turned_padding(op, filters)) >= 0
    alone = op.outputs[0] != NOTHING and set(op.outputs[1:]) == {NOTHING}
    return (weight.name, TURNED) if turnable and alone else None


def pack(op: Op, blobs: Mapping[str, Blob], filters: Tensor) -> Tensor:
    """The filters of an op that can have them packed, for images like its own."""
    given, settings = blobs[op.inputs[0]].shape, _settings(op, blobs)
    assert given is not None
    if op.kind != "aten.convolution":
        turned = filters.flip(2, 3) if filters.shape[2:] != (1, 1) else filters
        filters = turned.transpose(0, 1).contiguous(memory_format=torch.channels_last)
    made: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        filters, settings["padding"], settings["stride"], settings["dilation"], 1, given
    )
    return made


def with_packed(op: Op, blobs: Mapping[str, Blob]) -> Op:
    """The op that runs in place of one whose filters are packed: for others the op itself."""
    place = _FILTERS.get(op.kind)
    if place is None or blobs[op.inputs[place]].layout not in (PACKED, TURNED):
        return op
    images, filters = op.inputs[0], op.inputs[place]
    more = op.inputs[2:] if op.kind == "aten.convolution" else ()
    attributes: dict[str, Attribute] = {**_settings(op, blobs), **_PLAIN}
    if not more:
        attributes["B"] = None
    inputs = (images, filters, *more)
    return replace(
        op, kind=_CONVOLUTION, inputs=inputs, outputs=op.outputs[:1], attributes=attributes
    )


def _settings(op: Op, blobs: Mapping[str, Blob]) -> dict[str, tuple[int, int]]:
    """Where the filters stand."""
    stride, padding = pair(op, "stride"), pair(op, "padding")
    if op.kind != "aten.convolution":
        filters = blobs[op.inputs[2]].shape
        assert filters is not None
        padding = _turned_padding(op, filters)
    return {"padding": padding, "stride": stride, "dilation": (1, 1)}


def _turned_padding(op: Op, filters: tuple[int, ...]) -> tuple[int, int]:
    high, wide = pair(op, "padding")
    return filters[2] - 1 - high, filters[3] - 1 - wide
