"""The cost model: flops and bytes of an op, and its time on a machine that a profile describes.

Every decision that compares costs uses it: stages of a pipeline, segments, fused ops, recomputed
blocks, the heap, and predictions. Decisions depend on ratios, so the default profile only has rough
guesses. `purine calibrate` writes one with measured times. Predictions read it wherever it is kept;
decisions that make a graph do where `PURINE_PROFILE` names it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from purine.analysis import tracing
from purine.analysis.infer import op_key, size_in_bytes, spec_of
from purine.analysis.measured import Kernels, Point
from purine.errors import ConfigError, in_a_line
from purine.graph import Blob, Op
from purine.registry.lookup import lookup

__all__ = [
    "PROFILE",
    "PROFILE_VARIABLE",
    "VERSION",
    "Cost",
    "Profile",
    "Rates",
    "cost",
    "load_profile",
    "point_of",
    "seconds",
]

VERSION = 1
"""Of the form of a profile's file. It counts up when older files cannot be read any more."""
PROFILE_VARIABLE = "PURINE_PROFILE"
"""The environment variable with the file of the profile in use."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an op takes: floating-point operations, and bytes of the blobs it reads and writes."""

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast something computes: flops and bytes per second, and seconds for each op."""

    flops: float
    bytes: float
    overhead: float = 0.0

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.bytes > 0 and self.overhead >= 0):
            raise ValueError(f"rates are above zero, and not {self}")

    def seconds(self, cost: Cost) -> float:
        """The time of an op, as if it computed and moved its bytes one after the other."""
        return cost.flops / self.flops + cost.bytes / self.bytes + self.overhead


@dataclass(frozen=True)
class Profile:
    """The numbers of the cost model for one machine.

    `fused` and `recomputed` only divide ops into parts of equal cost, so their unit is arbitrary:
    one byte and one flop.
    """

    name: str = "default"
    device: Rates = Rates(1e11, 1e10)
    """A device with all its cores: stages of a pipeline, the order in the memory forecast."""
    core: Rates = Rates(5e10, 1e10, 2e-6)
    """One core that is given ops one by one: segments."""
    fused: Rates = Rates(50.0, 1.0, 1.0)
    """Compiled kernels: pieces of equal cost."""
    recomputed: Rates = Rates(1.0, 0.2)
    """Ops of a forward that is computed again: blocks of equal cost."""
    dispatch_matters: float = 1e-4
    """Seconds of an op below which ops are put together into segments."""
    mapped_bytes_per_flop: float = 10e-3
    """Bytes of large results per flop up to which mapping each of them from the system pays."""
    threads: int = 1
    """Threads of a kernel on a device with all its cores."""
    dispatch: float = 12e-6
    """Seconds between two ops of a lane."""
    hop: float = 15e-6
    """Seconds until a lane that sleeps begins an op."""
    crowding: float = 0.0
    """By how much each other core that computes slows a core."""
    spread: float = 0.05
    """The standard deviation of the logarithm of times of an op."""
    wires: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """By transport: seconds of a message, bytes per second, and seconds of CPU time for a byte,
    between two hosts of this machine."""
    kernels: Kernels = field(default_factory=Kernels)
    """Measured times."""

    def speedup(self, threads: int) -> float:
        """How much faster kernels of work worth sharing are with some threads than with one."""
        known = self.device.flops / self.core.flops
        if self.threads < 2:
            return math.pow(max(1, threads), 0.9)
        return math.pow(known, math.log(max(1, threads)) / math.log(self.threads))


_FLOPS: dict[tuple[object, ...], int] = {}


def point_of(op: Op, blobs: Mapping[str, Blob], threads: int, seconds: float) -> Point:
    """What a measured op says of its kind."""
    work = cost(op, blobs)
    return Point(op.kind, _sizes(op, blobs), threads, work.flops, work.bytes, seconds)


def _sizes(op: Op, blobs: Mapping[str, Blob]) -> tuple[int, ...]:
    """The extents of the first two inputs and the first output, which tell ops of a kind apart."""
    names = (*op.inputs[:2], *op.results)[:3]
    return tuple(extent for name in names for extent in blobs[name].shape or ())


def cost(op: Op, blobs: Mapping[str, Blob]) -> Cost:
    """The cost of one op, from the blobs of its graph."""
    moved = sum(size_in_bytes(blobs[name]) for name in (*dict.fromkeys(op.inputs), *op.results))
    kind = lookup(op)
    if kind.function is None or not tracing.has_flops(kind.function):
        return Cost(0, moved)
    inputs = [spec_of(blobs[name]) for name in op.inputs]
    key = op_key(op, inputs)
    if key not in _FLOPS:
        _FLOPS[key] = tracing.count_flops(kind.bind(op), inputs)
    return Cost(_FLOPS[key], moved)


def seconds(
    op: Op, blobs: Mapping[str, Blob], profile: Profile | None = None, *, threads: int | None = None
) -> float:
    """About how long an op takes on a device; views cost nothing.

    `threads` are those of a kernel (`GPU`: of a GPU), by default as many as on a device with all
    its cores. Data costs nothing where the profile has no times of it.
    """
    profile = profile or PROFILE
    if lookup(op).view or op.attributes.get("alias"):
        return 0.0
    work = cost(op, blobs)
    threads = profile.threads if threads is None else threads
    rates = profile.core if 0 < threads < profile.threads else profile.device
    if profile.kernels.points:
        what, size = (op.kind, _sizes(op, blobs), threads), (work.flops, work.bytes)
        known = profile.kernels.seconds(*what, *size, lambda f, b: rates.seconds(Cost(f, b)))
        if known is not None:
            return known
    return 0.0 if op.kind == "Data" else rates.seconds(work)


def load_profile(path: str | Path) -> Profile:
    """Read a profile from a YAML file; what it leaves out is as in the default profile.

    Rates are written as `device: {flops: 2e12, bytes: 1e11}`. A point of `kernels` is `[kind,
    sizes, threads, flops, bytes, seconds]`.
    """
    default = Profile()
    values = {item.name: getattr(default, item.name) for item in fields(Profile)}
    values["name"] = Path(path).stem
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), _LOADER)
        content = dict(content)
        version = content.pop("version", VERSION)
        if version != VERSION:
            raise ValueError(f"version {version}; this is a file of version {VERSION} or none")
        for key, value in content.items():
            values[key] = _read(values[key], value)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        what = f"the machine profile {str(path)!r} cannot be used"
        expected = f"a YAML file with numbers for some of {', '.join(values)}"
        remedy = "write rates as {flops: 1e11, bytes: 1e10, overhead: 0}, the rest as numbers; "
        remedy += "purine calibrate writes one"
        raise ConfigError(what, expected, in_a_line(error), remedy, where=path) from error
    return Profile(**values)


def _read(default: object, value: Any) -> object:
    """A value of a profile's file, of the type that the default has."""
    if isinstance(default, Rates):
        return Rates(**{name: float(rate) for name, rate in dict(value).items()})
    if isinstance(default, Kernels):
        return Kernels(tuple(_point(*row) for row in value))
    if isinstance(default, Mapping):
        return {str(name): _three(*row) for name, row in dict(value).items()}
    return type(default)(value)  # type: ignore[call-arg]


def _three(*numbers: float) -> tuple[float, float, float]:
    first, second, third = map(float, numbers)
    return first, second, third


def _point(
    kind: str, sizes: Sequence[int], threads: int, flops: int, moved: int, seconds: float
) -> Point:
    if not float(seconds) > 0:
        raise ValueError(f"a kernel takes {seconds} s")
    extents = tuple(int(size) for size in sizes)
    return Point(str(kind), extents, int(threads), int(flops), int(moved), float(seconds))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_named = os.environ.get(PROFILE_VARIABLE)
PROFILE = load_profile(_named) if _named else Profile()
"""The profile in use."""
