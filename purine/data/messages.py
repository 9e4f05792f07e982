"""Caffe's binary messages that hold samples, means and weights.

They are declared here by their field numbers, so that no file of Caffe is needed; other fields are
skipped when a message is read. Names are declared as bytes, which are encoded like strings: a
damaged name is then a wrong name rather than an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from purine.data._files import extra
from purine.data.source import NumpyArray

__all__ = ["Damaged", "Message", "append", "decode", "new_message", "shape_of", "values_of"]

Message: TypeAlias = Any
"""A protobuf message; its class is made at run time."""

_FIELDS = """
BlobShape: dim=1:int64**
BlobProto: num=1:int32 channels=2:int32 height=3:int32 width=4:int32 data=5:float**
    shape=7:BlobShape double_data=8:double**
Datum: channels=1:int32 height=2:int32 width=3:int32 data=4:bytes label=5:int32
    float_data=6:float* encoded=7:bool
LayerParameter: name=1:bytes type=2:bytes bottom=3:bytes* top=4:bytes* blobs=7:BlobProto*
V0LayerParameter: name=1:bytes blobs=50:BlobProto*
V1LayerParameter: layer=1:V0LayerParameter name=4:bytes blobs=6:BlobProto*
NetParameter: name=1:bytes layers=2:V1LayerParameter* layer=100:LayerParameter*
"""
"""One line per message: `field=number:type`, with * where it is repeated and ** where packed."""

_SCALARS = {"double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "bytes": 12}
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3
_CHUNK = 1 << 20


class Damaged(ValueError):
    """Bytes that are no message of the type asked for."""


def new_message(type: str) -> Message:
    """An empty message of a type.

    >>> datum = new_message("Datum")
    >>> datum.label = 3
    >>> datum.SerializeToString()
    b'(\\x03'
    """
    return _classes()[type]()


def decode(type: str, data: bytes) -> Message:
    """The message that the bytes hold; raises `Damaged` where they hold none.

    >>> decode("Datum", b"(\\x03").label
    3
    """
    message = new_message(type)
    try:
        message.ParseFromString(data)
    except extra("google.protobuf.message", "caffe", "a message").DecodeError as error:
        raise Damaged(str(error) or "bytes that do not form a message") from error
    return message


def shape_of(blob: Message) -> tuple[int, ...]:
    """The shape of a BlobProto: four sizes in the older form, any number in today's."""
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(name) for name in legacy):
        return tuple(getattr(blob, name) for name in legacy)
    return tuple(blob.shape.dim)


def values_of(blob: Message) -> NumpyArray:
    """The values of a BlobProto, in one row."""
    if len(blob.double_data):
        return np.fromiter(blob.double_data, np.float64, len(blob.double_data))
    return np.fromiter(blob.data, np.float32, len(blob.data))


def append(repeated: Message, values: NumpyArray) -> None:
    """Put numbers at the end of a repeated field."""
    flat = values.reshape(-1)
    # As Python numbers all values of a large layer would take ten times their memory.
    for start in range(0, len(flat), _CHUNK):
        repeated.extend(flat[start : start + _CHUNK].tolist())


@cache
def _classes() -> Mapping[str, Callable[[], Message]]:
    what = "reading and writing Caffe's binary files"
    pb2 = extra("google.protobuf.descriptor_pb2", "caffe", what)
    pool = extra("google.protobuf.descriptor_pool", "caffe", what).DescriptorPool()
    factory = extra("google.protobuf.message_factory", "caffe", what)
    file = pb2.FileDescriptorProto(name="purine/caffe.proto", package="purine.caffe")
    file.syntax = "proto2"
    lines = _FIELDS.strip().replace("\n    ", " ").splitlines()
    names = [line.partition(":")[0] for line in lines]
    for name, line in zip(names, lines, strict=True):
        message = file.message_type.add(name=name)
        for item in line.partition(":")[2].split():
            label, _, rest = item.partition("=")
            number, _, kind = rest.partition(":")
            type, stars = kind.rstrip("*"), kind.count("*")
            field = message.field.add(name=label, number=int(number))
            field.label = _REPEATED if stars else _OPTIONAL
            field.type = _SCALARS.get(type, _MESSAGE)
            if type not in _SCALARS:
                field.type_name = f".purine.caffe.{type}"
            field.options.packed = stars == 2
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: factory.GetMessageClass(find(f"purine.caffe.{name}")) for name in names}
