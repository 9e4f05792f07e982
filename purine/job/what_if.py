"""Sizes of memory and rates of links as text, and the hypothetical machines of `--what-if`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from purine.errors import ConfigError
from purine.job.foresee import WhatIf
from purine.nearest import unknown_name
from purine.placement.devices import parse_devices
from purine.simulator.machine import TRANSPORTS
from purine.simulator.network import Link

__all__ = ["parse_rate", "parse_size", "parse_what_if"]

_KEYS = ("devices", "latency", "link", "slow", "transport")
_RATE = re.compile(r"([0-9.]+) *(k|m|g|t)(bit|byte)(?:/s)?", re.IGNORECASE)
_TIME = re.compile(r"([0-9.]+) *(us|µs|ms|s)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(k|m|g|t)?b(?:ytes?)?", re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DEFAULT = Link("link", 1.25e9, 50e-6)


def parse_what_if(items: Sequence[str]) -> tuple[WhatIf, str | None]:
    """The machine that the items describe, and the devices if one names them.

    >>> what_if, devices = parse_what_if(["link=1gbit", "slow=cpu:2@0.5", "devices=cpu:0-3"])
    >>> what_if.link.rate, what_if.slow, devices
    (125000000.0, {('', 'cpu:2'): 0.5}, 'cpu:0-3')
    """
    link: Link | None = None
    slow: dict[tuple[str, str], float] = {}
    devices, transport = None, "tcp"
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not value:
            expected = "key=value, such as link=10gbit or slow=cpu:2@0.5"
            raise ConfigError(f"--what-if is {item!r}", expected, item, "write key=value")
        if key not in _KEYS:
            raise unknown_name(ConfigError, "--what-if", key, _KEYS)
        if key == "devices":
            parse_devices(value)
            devices = value
        elif key == "link":
            link = replace(link or _DEFAULT, rate=parse_rate(value))
        elif key == "latency":
            link = replace(link or _DEFAULT, latency=_time(value))
        elif key == "transport":
            if value not in TRANSPORTS:
                raise unknown_name(ConfigError, "transport", value, TRANSPORTS)
            transport = value
        else:
            slow |= _slow(value)
    return WhatIf(link, slow, transport), devices


def parse_rate(text: str) -> float:
    """Bytes per second from the text of a rate.

    >>> parse_rate("200mbit"), parse_rate("10gbit"), parse_rate("1gbyte/s")
    (25000000.0, 1250000000.0, 1000000000.0)
    """
    parts = _RATE.fullmatch(text.strip())
    if parts is None or not float(parts[1]) > 0:
        expected = "a number with a unit: 200mbit, 10gbit, 1gbyte"
        raise ConfigError(f"{text!r} is no rate of a link", expected, text, "write link=10gbit")
    return float(parts[1]) * _UNITS[parts[2].lower()] / (8 if parts[3].lower() == "bit" else 1)


def parse_size(text: str) -> int:
    """The bytes of a size of memory, from its text.

    >>> parse_size("16gb"), parse_size("1.5 MB")
    (16000000000, 1500000)
    """
    parts = _SIZE.fullmatch(text.strip())
    size = 0 if parts is None else int(float(parts[1]) * _UNITS[(parts[2] or "").lower()])
    if size <= 0:
        expected = "a number above zero with a unit: 800mb, 16gb"
        raise ConfigError(f"{text!r} is no size of memory", expected, text, "write 16gb")
    return size


def _time(text: str) -> float:
    parts = _TIME.fullmatch(text.strip())
    if parts is None:
        expected = "a number with a unit: 50us, 1ms"
        raise ConfigError(f"{text!r} is no latency", expected, text, "write latency=50us")
    return float(parts[1]) * _SECONDS[parts[2].lower()]


def _slow(text: str) -> dict[tuple[str, str], float]:
    """`cpu:2@0.5`: a device has half of its speed, on all hosts or on one (`host1:cpu:2@0.5`)."""
    device, sign, speed = text.partition("@")
    try:
        value = float(speed)
        if not sign or not 0 < value <= 100:
            raise ValueError(speed)
    except ValueError as error:
        expected = "a device and its speed: cpu:2@0.5 is half as fast"
        remedy = "write slow=cpu:2@0.5"
        raise ConfigError(f"slow is {text!r}", expected, text, remedy) from error
    speeds: dict[tuple[str, str], float] = {}
    for name in parse_devices(device):
        host, _, rest = name.rpartition(":")
        number = f"{host.rpartition(':')[2]}:{rest}"
        speeds[host.rpartition(":")[0], number] = value
    return speeds
