"""Messages against bytes that are written by hand, so that field numbers are tested too."""

from __future__ import annotations

import builtins
import struct

import pytest

from purine.data import messages
from purine.data._files import extra
from purine.data.messages import Damaged, decode, shape_of, values_of
from purine.errors import ConfigError


def chunk(number: int, content: bytes) -> bytes:
    """A field with a length: a text, bytes, a message or packed numbers."""
    assert len(content) < 128
    key = number << 3 | 2
    return (bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])) + (
        bytes([len(content)]) + content
    )


def test_a_datum() -> None:
    data = b"\x08\x01\x10\x02\x18\x03" + chunk(4, bytes(range(6))) + b"\x28\x07"
    found = decode("Datum", data)
    assert (found.channels, found.height, found.width, found.label) == (1, 2, 3, 7)
    assert found.data == bytes(range(6))
    assert not found.encoded
    assert decode("Datum", b"\x38\x01").encoded


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_may_be_packed_or_not(packed: bool) -> None:
    values = [struct.pack("<f", value) for value in (0.5, -2.0)]
    key = bytes([6 << 3 | 5])
    data = chunk(6, b"".join(values)) if packed else b"".join(key + value for value in values)
    assert list(decode("Datum", data).float_data) == [0.5, -2.0]


def test_blobs_of_both_ages() -> None:
    numbers = struct.pack("<2f", 1.5, 2.5)
    blob = decode("BlobProto", chunk(7, chunk(1, b"\x02\x01")) + chunk(5, numbers))
    assert (shape_of(blob), values_of(blob).tolist()) == ((2, 1), [1.5, 2.5])
    doubles = struct.pack("<2d", 1.5, 2.5)
    blob = decode("BlobProto", b"\x08\x01\x10\x01\x18\x02\x20\x01" + chunk(8, doubles))
    assert (shape_of(blob), values_of(blob).tolist()) == ((1, 1, 2, 1), [1.5, 2.5])
    assert values_of(blob).dtype == "float64"


def test_fields_that_are_not_known_are_skipped() -> None:
    assert decode("NetParameter", chunk(3, b"data") + chunk(1, b"net")).name == b"net"


def test_damaged_bytes() -> None:
    with pytest.raises(Damaged):
        decode("Datum", b"\x22\x10abc")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs no_such_package") as caught:
        extra("no_such_package.part", "lmdb", "reading")
    assert caught.value.remedy == 'pip install "purine[lmdb]"'
    messages._classes.cache_clear()
    found = builtins.__import__
    monkeypatch.setattr(
        "importlib.import_module", lambda name: found("no_" + name.replace(".", "_"))
    )
    with pytest.raises(ConfigError, match="needs google") as caught:
        decode("Datum", b"")
    assert caught.value.remedy == 'pip install "purine[caffe]"'
