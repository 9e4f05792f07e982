"""The cost model: flops and bytes of an op, and its time on a machine that a profile describes.

Every decision that compares costs uses it: stages of a pipeline, segments, fused ops, recomputed
blocks, and the heap. Decisions depend on ratios, so the default profile only has rough guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from purine.analysis import tracing
from purine.analysis.infer import op_key, size_in_bytes, spec_of
from purine.errors import ConfigError, in_a_line
from purine.graph import NOTHING, Blob, Op
from purine.registry.lookup import lookup

__all__ = ["PROFILE", "Cost", "Profile", "Rates", "cost", "load_profile", "seconds"]


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


@dataclass(frozen=True, slots=True)
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


PROFILE = Profile()
"""The profile in use."""

_FLOPS: dict[tuple[object, ...], int] = {}


def cost(op: Op, blobs: Mapping[str, Blob]) -> Cost:
    """The cost of one op, from the blobs of its graph."""
    touched = [*dict.fromkeys(op.inputs), *(name for name in op.outputs if name != NOTHING)]
    moved = sum(size_in_bytes(blobs[name]) for name in touched)
    kind = lookup(op)
    if kind.function is None or not tracing.has_flops(kind.function):
        return Cost(0, moved)
    inputs = [spec_of(blobs[name]) for name in op.inputs]
    key = op_key(op, inputs)
    if key not in _FLOPS:
        _FLOPS[key] = tracing.count_flops(kind.bind(op), inputs)
    return Cost(_FLOPS[key], moved)


def seconds(op: Op, blobs: Mapping[str, Blob], profile: Profile = PROFILE) -> float:
    """About how long an op takes on a device; views and data cost nothing."""
    if op.kind == "Data" or lookup(op).view or op.attributes.get("alias"):
        return 0.0
    return profile.device.seconds(cost(op, blobs))


def load_profile(path: str | Path) -> Profile:
    """Read a profile from a YAML file; what it leaves out is as in the default profile.

    Rates are written as `device: {flops: 2e12, bytes: 1e11}`.
    """
    values = {field.name: getattr(PROFILE, field.name) for field in fields(Profile)}
    values["name"] = Path(path).stem
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        for key, value in dict(content).items():
            if isinstance(values[key], Rates):
                values[key] = Rates(**{name: float(rate) for name, rate in dict(value).items()})
            else:
                values[key] = type(values[key])(value)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        what = f"the machine profile {str(path)!r} cannot be used"
        expected = f"a YAML file with numbers for some of {', '.join(values)}"
        remedy = "write rates as {flops: 1e11, bytes: 1e10, overhead: 0}, the rest as numbers"
        raise ConfigError(what, expected, in_a_line(error), remedy, where=path) from error
    return Profile(**values)
