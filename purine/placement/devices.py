"""Which devices a graph is on, and how people write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from purine.arguments import checked, shown
from purine.errors import ConfigError
from purine.graph import Graph, Location

_SPAN = re.compile(
    r"(?:([A-Za-z_.]+)(?:([0-9]{1,4})(?:-([0-9]{1,4}))?)?:)?"
    r"(cpu|cuda):([0-9]{1,3})(?:-([0-9]{1,3}))?"
)
"""A host or a span of hosts, which may be missing; a device or a span of devices."""
_HERE = Location().host


@checked
def parse_devices(text: str) -> tuple[str, ...]:
    """Devices as people write them; those of named hosts have the host in front.

    >>> parse_devices("cpu:0-2,cuda:1")
    ('cpu:0', 'cpu:1', 'cpu:2', 'cuda:1')
    >>> parse_devices("host0-1:cpu:0-1")
    ('host0:cpu:0', 'host0:cpu:1', 'host1:cpu:0', 'host1:cpu:1')
    """
    return tuple(
        at.device if at.host == _HERE else f"{at.host}:{at.device}" for at in _parsed(text)
    )


def _parsed(text: str) -> list[Location]:
    locations: list[Location] = []
    for item in text.split(","):
        span = _SPAN.fullmatch(item.strip())
        hosts = _hosts(span[1], span[2], span[3]) if span else []
        first, last = (int(span[5]), int(span[6] or span[5])) if span else (1, 0)
        if not span or not hosts or last < first:
            expected = "cpu:K, cuda:K or spans such as cpu:0-3, with commas between them"
            remedy, found = "write for example --devices cpu:0-3", shown(item.strip())
            what, expected = f"devices are {shown(text)}", f"{expected}; K is below 1000"
            raise ConfigError(what, expected=expected, found=found, remedy=remedy)
        numbers = range(first, last + 1)
        locations += [Location(host, f"{span[4]}:{n}") for host in hosts for n in numbers]
    twice = next((at for at, count in Counter(locations).items() if count > 1), None)
    if twice is not None:
        raise wrong_devices(f"device {twice.device} is named twice", "each device once", text)
    return locations


def _hosts(name: str | None, first: str | None, last: str | None) -> list[str]:
    """The hosts of a span such as `host0-3`."""
    if name is None or first is None:
        return [name or _HERE]
    return [f"{name}{number}" for number in range(int(first), int(last or first) + 1)]


def as_location(device: str | Location) -> Location:
    if isinstance(device, Location):
        return device
    host = device.rpartition(":")[0].rpartition(":")[0]
    return Location(host, device.removeprefix(f"{host}:")) if host else Location(device=device)


def as_locations(devices: str | Iterable[str | Location]) -> tuple[Location, ...]:
    """Locations from a text such as `cpu:0-3` or `host0-1:cpu:0`, or from devices one by one."""
    if isinstance(devices, str):
        return tuple(_parsed(devices))
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
    return ConfigError(what, expected, devices, remedy)


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
