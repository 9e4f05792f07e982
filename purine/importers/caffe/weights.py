"""Weights in Caffe's binary form: read into the states of a net, and written from them.

Layers are matched by name, as in Caffe: those that only the file has are skipped, those that only
the net has keep their fillers, and those in both have to agree in every size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from purine.data.messages import Damaged, Message, append, decode, new_message, shape_of, values_of
from purine.errors import ConfigError, FormatError
from purine.files import write_whole
from purine.importers.caffe.files import read_bytes

__all__ = [
    "Slot",
    "StoredLayer",
    "read_file",
    "read_mean",
    "read_weights",
    "weights_bytes",
    "write_weights",
]

_HDF5 = b"\x89HDF\r\n\x1a\n"
_LARGEST = 2**31 - 1
"""The most bytes that a message may have."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a stored blob belongs: a state, and the shape that the layer gives it."""

    state: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer with parameters, by its name in Caffe; layers that share one have equal slots."""

    name: str
    type: str
    slots: tuple[Slot, ...]


def read_weights(
    paths: Sequence[Path], layers: Sequence[StoredLayer], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], list[str]]:
    """The values of states from files, of which later ones win, and what there is to note.

    `shapes` are those of the states, which differ from a slot's where one is shared.
    """
    values: dict[str, Tensor] = {}
    notes = []
    for path in paths:
        own, more = read_file(path, layers, shapes)
        values |= own
        notes += more
    unset = [item.name for item in layers if any(slot.state not in values for slot in item.slots)]
    if unset:
        files = ", ".join(map(str, paths))
        notes.append(f"{files}: no weights for layers {_list(unset)}; they keep their fillers")
    return values, notes


def read_file(
    path: Path, layers: Sequence[StoredLayer], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], list[str]]:
    """The values of states from one file, and a note of the layers that only the file has."""
    known = {layer.name: layer for layer in reversed(layers)}  # the first of a name counts
    values: dict[str, Tensor] = {}
    left_out = []
    for name, blobs in _stored(path):
        layer_of_net = known.get(name)
        if layer_of_net is not None:
            for slot, value in _matched(path, layer_of_net, blobs):
                values[slot.state] = value.reshape(shapes[slot.state])
        elif blobs:
            left_out.append(name)
    if not left_out:
        return values, []
    return values, [f"{path}: the net has no layers {_list(left_out)}; they are passed over"]


def read_mean(path: Path) -> Tensor:
    """The mean image in a binaryproto file, [C, H, W]."""
    blob = _message("BlobProto", path, "a mean image (binaryproto)")
    shape, values = shape_of(blob), values_of(blob)
    if len(shape) == 4 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 3 or min(shape) < 1 or math.prod(shape) != len(values):
        expected = "as many values as one image has, [channels, height, width]"
        actual = f"{len(values)} values of shape {list(shape)}"
        remedy = "make the file again with compute_image_mean"
        raise FormatError("the file holds no mean image", expected, actual, remedy, where=path)
    return torch.from_numpy(values.reshape(shape))


def write_weights(
    path: Path, name: str, layers: Sequence[StoredLayer], states: Mapping[str, Tensor]
) -> None:
    """Write the values of states as a caffemodel, which appears whole or not at all."""
    write_whole(path, weights_bytes(name, layers, states, where=path))


def weights_bytes(
    name: str,
    layers: Sequence[StoredLayer],
    states: Mapping[str, Tensor],
    *,
    where: Path | None = None,
) -> bytes:
    """The values of states as the content of a caffemodel."""
    message = new_message("NetParameter")
    message.name = _encoded(name)
    size = 0
    for layer in layers:
        entry = message.layer.add(name=_encoded(layer.name), type=_encoded(layer.type))
        for slot in layer.slots:
            value = _state(states, layer, slot)
            size += value.numel() * value.element_size()
            if size > _LARGEST:
                what, remedy = "the net is too large for a caffemodel", "write a checkpoint instead"
                raise ConfigError(what, f"at most {_LARGEST:,} bytes", "more", remedy, where=where)
            blob = entry.blobs.add()
            blob.shape.dim.extend(slot.shape)
            field = blob.double_data if value.dtype == torch.float64 else blob.data
            append(field, value.numpy())
    data: bytes = message.SerializeToString()
    return data


def _stored(path: Path) -> list[tuple[str, Sequence[Message]]]:
    """The names of the layers of a file and their blobs, in the current and the older formats."""
    net = _message("NetParameter", path, "weights (caffemodel)")
    layers = [(layer.name, layer.blobs) for layer in net.layer]
    for old in net.layers:
        first = old.layer if old.HasField("layer") else old
        layers.append((first.name or old.name, first.blobs or old.blobs))
    if not layers:
        raise _damaged(path, "weights (caffemodel)", "no layers")
    return [(name.decode("utf-8", "replace"), blobs) for name, blobs in layers]


def _message(type: str, path: Path, expected: str) -> Message:
    data = read_bytes(path, expected, _LARGEST)
    if data.startswith(_HDF5):
        raise _damaged(path, expected, "an HDF5 file")
    try:
        return decode(type, data)
    except Damaged as error:
        raise _damaged(path, expected, f"{len(data)} bytes; {error}") from error


def _damaged(path: Path, expected: str, found: str) -> FormatError:
    what, remedy = "the file is damaged, or of another kind", "fetch or write the file again"
    return FormatError(what, where=path, expected=expected, found=found, remedy=remedy)


def _matched(
    path: Path, layer: StoredLayer, blobs: Sequence[Message]
) -> Iterator[tuple[Slot, Tensor]]:
    if len(blobs) != len(layer.slots):
        expected = f"{len(layer.slots)} blobs: {_list([list(slot.shape) for slot in layer.slots])}"
        stored = f"{len(blobs)} blobs: {_list([list(shape_of(blob)) for blob in blobs])}"
        raise _misfit(path, layer, expected, stored)
    for index, (slot, blob) in enumerate(zip(layer.slots, blobs, strict=True)):
        shape, values = shape_of(blob), values_of(blob)
        # Older files have four sizes for every blob, with ones before those that count.
        padded = (1,) * (4 - len(slot.shape)) + slot.shape
        if shape not in (slot.shape, padded):
            expected = f"blob {index} of shape {list(slot.shape)}"
            raise _misfit(path, layer, expected, str(list(shape)))
        if len(values) != math.prod(slot.shape):
            expected = f"{math.prod(slot.shape)} values in blob {index} of {list(slot.shape)}"
            raise _misfit(path, layer, expected, f"{len(values)} values")
        yield slot, torch.from_numpy(values)


def _misfit(path: Path, layer: StoredLayer, expected: str, found: str) -> FormatError:
    what, op = f"the weights of layer {layer.name!r} ({layer.type}) do not fit the net", layer.name
    remedy = "take the weights of this net; or rename the layer, and it keeps its fillers"
    return FormatError(what, where=path, op=op, expected=expected, found=found, remedy=remedy)


def _state(states: Mapping[str, Tensor], layer: StoredLayer, slot: Slot) -> Tensor:
    value = states.get(slot.state)
    if value is None or value.numel() != math.prod(slot.shape):
        what = f"the run has no weights for layer {layer.name!r}"
        expected = f"state {slot.state!r} of shape {list(slot.shape)}"
        actual = "none" if value is None else str(list(value.shape))
        remedy = "give the run of a step that was made from this net"
        raise ConfigError(what, blob=slot.state, expected=expected, found=actual, remedy=remedy)
    value = value.detach().cpu().contiguous()
    return value if value.dtype == torch.float64 else value.to(torch.float32)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "replace")


def _list(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[:8])) or "none"
    return shown + (f" and {len(items) - 8} more" if len(items) > 8 else "")
