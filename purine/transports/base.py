"""The interface of all transports: one-sided puts with notification.

A receiver has a few slots of memory for each blob that comes from another host. The sender puts a
value into the slot of its *version*, the iteration, and the receiver is notified. The receiver
reports how many iterations it has completed, which returns the slots of these iterations.
`HostCore` makes no put without a free slot, so a transport never has to hold one back.

A transport moves bytes and reports events. It decides nothing.
"""

from __future__ import annotations

import ctypes
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from purine.analysis.infer import size_in_bytes
from purine.errors import RunError
from purine.graph import CHANNELS_LAST, Blob
from purine.lowering.hosts import Channel
from purine.registry.aten import dtype_of

__all__ = [
    "ENDED",
    "FAREWELL",
    "PATIENCE",
    "Arrived",
    "Board",
    "Channels",
    "Event",
    "Granted",
    "Hosts",
    "Lost",
    "Region",
    "Slots",
    "Store",
    "Transport",
    "bytes_of",
    "none_connected",
    "own_address",
    "regions_of",
    "shaped",
]

Hosts: TypeAlias = Sequence[str]
Channels: TypeAlias = Sequence[Channel]
ENDED = "it has ended"
"""Why a host is lost that said goodbye."""
PATIENCE = 60.0
"""Seconds that a host waits for the others to connect."""
FAREWELL = 5.0
"""Seconds that a host waits at the end for its peers to end too."""
_ALIGNMENT = 64
"""Slots begin at multiples of this, the size of a cache line."""
# Events are made for every message. They are not frozen, since that takes three times as long.


@dataclass(slots=True)
class Arrived:
    """A value of a channel is in its slot."""

    peer: str
    channel: int
    version: int


@dataclass(slots=True)
class Granted:
    """A peer has completed the iterations below `completed`. It repeats this as a heartbeat.

    `sent` is the number of values that it has put to this host so far; 0 if the transport does not
    count them.
    """

    peer: str
    completed: int
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """A peer is gone; no more events come from it."""

    peer: str
    why: str


Event: TypeAlias = Arrived | Granted | Lost


class Store(Protocol):
    """The part of the store of `torch.distributed` that a transport needs: texts that others wait
    for."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Region:
    """The memory of a receiver for the values of one sender, and the offset of each slot in it.

    Both ends compute the same offsets from the channels between them.
    """

    def __init__(self, channels: Channels, slots: int) -> None:
        self.slots = slots
        self._blobs = {channel.number: channel.blob for channel in channels}
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}
        """By channel and number of a slot its first byte, and the one behind its last."""
        self.size = 0
        for number in sorted(self._blobs):
            blob = self._blobs[number]
            if blob is not None:
                size = size_in_bytes(blob)
                stride = -(-size // _ALIGNMENT) * _ALIGNMENT
                for slot in range(slots):
                    start = self.size + slot * stride
                    self._spans[number, slot] = start, start + size
                self.size += stride * slots

    def offset(self, channel: int, version: int) -> int:
        """Where the slot of a version begins."""
        return self._spans[channel, version % self.slots][0]

    @property
    def channels(self) -> Collection[int]:
        """The numbers of the channels."""
        return self._blobs.keys()

    def length(self, channel: int) -> int:
        """The bytes of a value; 0 for a signal."""
        start, end = self.span(channel, 0)
        return end - start

    def span(self, channel: int, version: int) -> tuple[int, int]:
        """The first byte of the value of a version, and the one behind its last."""
        return self._spans.get((channel, version % self.slots), (0, 0))

    def blob(self, channel: int) -> Blob | None:
        """The blob that a channel carries; None for a signal."""
        return self._blobs[channel]

    def ordered(self, channel: int, value: Tensor) -> Tensor:
        """A tensor whose memory has the bytes of a value in the order in which the slot has them.

        It is the value itself where that has them so, and else a copy.
        """
        blob = self._blobs[channel]
        if blob is not None and blob.layout == CHANNELS_LAST:
            value = value.movedim(1, -1)
        return value if _is_plain(value) else _plain(value)

    def flat(self, channel: int, value: Tensor) -> Tensor:
        """The bytes of a value in the order in which the slot has them."""
        return bytes_of(self.ordered(channel, value))


class Board(Region):
    """The memory that all hosts share: for each version all posted values, at the offsets that
    lowering chose. The number of a channel on the board is this offset."""

    def __init__(self, channels: Channels, slots: int) -> None:
        self.slots = slots
        self._blobs = {channel.board or 0: channel.blob for channel in channels}
        sizes = {start: 0 if b is None else size_in_bytes(b) for start, b in self._blobs.items()}
        end = max((start + size for start, size in sizes.items()), default=0)
        whole = -(-end // _ALIGNMENT) * _ALIGNMENT
        self._spans = {
            (start, slot): (slot * whole + start, slot * whole + start + size)
            for start, size in sizes.items()
            for slot in range(slots)
        }
        self.size = whole * slots


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot, as a tensor with the form of its blob and as bytes."""

    shaped: Tensor
    line: Tensor
    dtype: torch.dtype
    size: int
    address: int
    dense: bool
    """Whether its elements are in the order of a contiguous value."""


class Slots:
    """The slots of a region in memory of this process.

    Each is created once, because creating one takes longer than copying 64 KiB.
    """

    def __init__(self, region: Region, memory: Tensor) -> None:
        self.region = region
        self._memory = memory
        self._count = region.slots
        self._known: dict[tuple[int, int], _Slot | None] = {}

    def value(self, channel: int, version: int) -> Tensor | None:
        """The slot of a version, in the form of its blob; None for a signal."""
        slot = self._at(channel, version)
        return None if slot is None else slot.shaped

    def bytes_of(self, channel: int, version: int) -> Tensor | None:
        """The bytes of the slot of a version; None for a signal or without any."""
        slot = self._at(channel, version)
        return None if slot is None or not slot.size else slot.line

    def fill(self, channel: int, version: int, value: Tensor) -> None:
        """Copy a value into its slot."""
        slot = self._at(channel, version)
        if slot is None:
            return
        size = slot.size
        if slot.dense and value.dtype is slot.dtype and value.nbytes == size and _is_plain(value):
            # quicker than torch, by 1 us and from 1 MiB up by a third
            ctypes.memmove(slot.address, value.data_ptr(), size)
        else:
            slot.shaped.copy_(value.detach() if value.requires_grad else value)

    def addresses(self, channel: int) -> list[tuple[torch.dtype | None, int, int]]:
        """Of each slot of a channel its dtype, its bytes and its address; nothing for a signal.

        The dtype is None where a plain copy of bytes would not do: the slots of another order than
        that of a contiguous value, and complex numbers, which may be lazy conjugates.
        """
        slots = [self._at(channel, number) for number in range(self._count)]
        return [
            (s.dtype if s.dense and not s.dtype.is_complex else None, s.size, s.address)
            for s in slots
            if s is not None
        ]

    def write(self, channel: int, version: int, address: int) -> None:
        """Copy the bytes of a value from somewhere in memory into its slot."""
        slot = self._at(channel, version)
        if slot is not None:
            ctypes.memmove(slot.address, address, slot.size)

    def _at(self, channel: int, version: int) -> _Slot | None:
        key = channel, version % self._count
        try:
            return self._known[key]
        except KeyError:
            blob = self.region.blob(channel)
            slot = None if blob is None else self._slot(blob, *self.region.span(*key))
            return self._known.setdefault(key, slot)

    def _slot(self, blob: Blob, start: int, end: int) -> _Slot:
        line, dtype = self._memory[start:end], dtype_of(blob.dtype)
        value, dense = shaped(line.view(dtype), blob), blob.layout != CHANNELS_LAST
        return _Slot(value, line, dtype, end - start, line.data_ptr(), dense)


def regions_of(channels: Channels, slots: int, *, by_source: bool) -> Mapping[str, Region]:
    """The region of each peer that sends values to this host (`by_source`) or receives them."""
    groups: dict[str, list[Channel]] = {}
    for channel in channels:
        groups.setdefault(channel.source if by_source else channel.target, []).append(channel)
    return {peer: Region(group, slots) for peer, group in groups.items()}


class Transport(ABC):
    """The connection of one host to the others, over one engine.

    `open` is called once, before anything else. `put` is called by one thread for each peer, `wait`
    by one thread; `credit` and `wake` by any.
    """

    prompt = False
    """Once it is open: whether a put is over as soon as the value is copied, and waits for nobody.
    Then the thread that computes may put and receive itself."""

    @abstractmethod
    def open(self, peers: Hosts, incoming: Channels, outgoing: Channels, slots: int) -> None:
        """Register the slots of all channels and connect with the peers."""

    @abstractmethod
    def slot(self, peer: str, channel: int, version: int) -> Tensor | None:
        """The slot that holds a version from a peer; None for a signal."""

    @abstractmethod
    def put(self, peer: str, channel: int, version: int, value: Tensor | None) -> None:
        """Write a value into its slot at a peer and notify it. The value may change afterwards."""

    def posted(self, peer: str, channel: int, version: int, value: Tensor) -> Tensor:
        """The memory in which this host reads a value that it has posted, as the others do."""
        return value.clone()

    @abstractmethod
    def credit(self, peer: str, completed: int, sent: int = 0) -> None:
        """Send a peer the number of iterations that are complete here, and of values put to it.

        Never blocks.
        """

    @abstractmethod
    def wait(self, timeout: float) -> list[Event]:
        """The events since the last call; if there are none, waits for one until the timeout."""

    @abstractmethod
    def wake(self) -> None:
        """Let `wait` return."""

    @abstractmethod
    def close(self, lost: Collection[str] = ()) -> None:
        """Release memory and connections; peers then see that this host is gone.

        Peers that are `lost` are not waited for.
        """


def bytes_of(value: Tensor) -> Tensor:
    """The bytes of a value in one dimension: its own memory, or that of a contiguous copy.

    An expanded value of one element is contiguous with a stride of 0, which a view of its bytes may
    not have.
    """
    plain = value.detach() if _is_plain(value) else _plain(value)
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def shaped(line: Tensor, blob: Blob) -> Tensor:
    """A line of elements, in the order of a blob's layout, as the value of the blob."""
    shape = blob.shape or ()
    if blob.layout != CHANNELS_LAST:
        return line.view(shape)
    batch, channels, *points = shape
    return line.view(batch, *points, channels).movedim(-1, 1)


def none_connected(who: str, missing: Iterable[str]) -> RunError:
    """The error of a host for which others have not come in time."""
    return RunError(
        f"{who} waited {PATIENCE:.0f} s for other hosts",
        expected=f"connections from {', '.join(missing)}",
        found="none",
        remedy="see why they did not start, and start all hosts again",
    )


def own_address(address: str, port: int) -> str:
    """The address of this host: PURINE_ADDRESS, or the one in the network towards another host."""
    told = os.environ.get("PURINE_ADDRESS")
    if told:
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((address, port))
        return str(probe.getsockname()[0])


def _is_plain(value: Tensor) -> bool:
    """Whether the elements of a value are contiguous in memory, and are its values."""
    return value.is_cpu and value.is_contiguous() and not value.is_neg() and not value.is_conj()


def _plain(value: Tensor) -> Tensor:
    """A value whose elements are contiguous in memory: itself or a copy."""
    return value.detach().cpu().resolve_conj().resolve_neg().contiguous()
