"""Which devices a graph is on, and how people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from purine.arguments import checked, shown
from purine.errors import ConfigError
from purine.graph import Graph, Location

_SPAN = re.compile(r"(cpu|cuda):([0-9]{1,3})(?:-([0-9]{1,3}))?")


@checked
def parse_devices(text: str) -> tuple[str, ...]:
    """Devices as people write them.

    >>> parse_devices("cpu:0-2,cuda:1")
    ('cpu:0', 'cpu:1', 'cpu:2', 'cuda:1')
    """
    names: list[str] = []
    for item in text.split(","):
        span = _SPAN.fullmatch(item.strip())
        first, last = (int(span[2]), int(span[3] or span[2])) if span else (1, 0)
        if not span or last < first:
            expected = "cpu:K, cuda:K or spans such as cpu:0-3, with commas between them"
            remedy, found = "write for example --devices cpu:0-3", shown(item.strip())
            what, expected = f"devices are {shown(text)}", f"{expected}; K is below 1000"
            raise ConfigError(what, expected=expected, found=found, remedy=remedy)
        names += [f"{span[1]}:{number}" for number in range(first, last + 1)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise wrong_devices(f"device {twice} is named twice", "each device once", text)
    return tuple(names)


def as_location(device: str | Location) -> Location:
    return device if isinstance(device, Location) else Location(device=device)


def as_locations(devices: str | Iterable[str | Location]) -> tuple[Location, ...]:
    """Locations from a text such as `cpu:0-3`, or from devices one by one."""
    if isinstance(devices, str):
        devices = parse_devices(devices)
    return tuple(as_location(device) for device in devices)


def refuse_repeated(places: Sequence[Location], remedy: str = "name every device once") -> None:
    """An error where a device is among the places twice."""
    if len(set(places)) != len(places):
        raise wrong_devices("a device is named twice", "each device once", places, remedy)


def wrong_devices(
    what: str,
    expected: str,
    devices: str | Iterable[Location],
    remedy: str = "name every device once",
) -> ConfigError:
    """The error for devices, as text or one by one, that are too few, too many or repeated."""
    if not isinstance(devices, str):
        devices = ", ".join(location.device for location in devices) or "none"
    return ConfigError(what, expected=expected, found=devices, remedy=remedy)


@checked
def devices_of(graph: Graph) -> tuple[Location, ...]:
    """The locations of a graph's ops, in order of host, kind and number."""
    return tuple(sorted({op.location for op in graph.ops.values()}, key=_order))


def shares_memory(one: Location, other: Location) -> bool:
    """Whether two locations can read each other's blobs in place.

    >>> shares_memory(Location(device="cpu:0"), Location(device="cpu:1"))
    True
    """
    return one.host == other.host and (
        one.device == other.device or (is_cpu(one) and is_cpu(other))
    )


def is_cpu(location: Location) -> bool:
    """Whether a location is a set of cores."""
    return location.device.startswith("cpu:")


def _order(location: Location) -> tuple[str, str, int]:
    kind, number = location.device.split(":")
    return location.host, kind, int(number)
