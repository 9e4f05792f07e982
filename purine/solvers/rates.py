"""Learning-rate policies as values, and their text form.

`add_rate` adds the op of a policy, a kind in `purine.kinds.rates`, with its fields as attributes.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import TypeAlias

import purine.kinds.rates  # noqa: F401  (registers the kinds)
from purine.arguments import at_least, check_fields, checked, not_negative, positive, wrong_value
from purine.errors import ConfigError, given_twice
from purine.graph import Attribute, Builder
from purine.nearest import nearest_name, unknown_name
from purine.registry.clock import ITERATION, add_clock

__all__ = [
    "POLICIES",
    "Cosine",
    "Exp",
    "Fixed",
    "Inv",
    "MultiStep",
    "Poly",
    "Rate",
    "Sigmoid",
    "Step",
    "Warmup",
    "add_rate",
    "parse_rate",
]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same rate in all iterations."""

    lr: float

    def __post_init__(self) -> None:
        positive("lr", self.lr)


@dataclass(frozen=True, slots=True)
class Step:
    """The rate times `gamma` after every `step` iterations."""

    lr: float
    _: KW_ONLY
    step: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        at_least("step", self.step, 1)
        positive("gamma", self.gamma)


@dataclass(frozen=True, slots=True)
class MultiStep:
    """The rate times `gamma` at each of the iterations `steps`."""

    lr: float
    _: KW_ONLY
    steps: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        positive("lr", self.lr)
        positive("gamma", self.gamma)
        for step in self.steps:
            at_least("a step of steps", step, 1)
        if list(self.steps) != sorted(set(self.steps)) or not self.steps:
            raise ConfigError(
                f"steps are {self.steps!r}",
                expected="one or more iterations, each later than the one before",
                found=repr(self.steps),
                remedy="write them in order, for example (1000, 2000)",
            )


@dataclass(frozen=True, slots=True)
class Exp:
    """The rate times `gamma` after every iteration."""

    lr: float
    _: KW_ONLY
    gamma: float

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        positive("gamma", self.gamma)


@dataclass(frozen=True, slots=True)
class Inv:
    """lr * (1 + gamma * iteration) ^ -power."""

    lr: float
    _: KW_ONLY
    gamma: float
    power: float

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        not_negative("gamma", self.gamma)
        not_negative("power", self.power)


@dataclass(frozen=True, slots=True)
class Poly:
    """Down to 0 at `max_iterations` along a power of what is left: a line where `power` is 1."""

    lr: float
    _: KW_ONLY
    max_iterations: int
    power: float = 1.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        at_least("max_iterations", self.max_iterations, 1)
        positive("power", self.power)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """lr / (1 + exp(-gamma * (iteration - step))); falls where gamma is negative."""

    lr: float
    _: KW_ONLY
    gamma: float
    step: int

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        at_least("step", self.step, 0)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from the rate down to `floor` at `max_iterations`."""

    lr: float
    _: KW_ONLY
    max_iterations: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        at_least("max_iterations", self.max_iterations, 1)
        not_negative("floor", self.floor)


@dataclass(frozen=True, slots=True)
class Warmup:
    """Another policy, times a factor that grows from `start` to 1 over the first iterations.

    >>> Warmup(Fixed(0.1), iterations=100)
    Warmup(rate=Fixed(lr=0.1), iterations=100, start=0.0)
    """

    rate: Rate
    _: KW_ONLY
    iterations: int
    start: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("iterations", self.iterations, 1)
        not_negative("start", self.start)


Rate: TypeAlias = Fixed | Step | MultiStep | Exp | Inv | Poly | Sigmoid | Cosine | Warmup
"""Any learning-rate policy."""

Policy: TypeAlias = type[Fixed | Step | MultiStep | Exp | Inv | Poly | Sigmoid | Cosine]

POLICIES: Mapping[str, Policy] = {
    policy.__name__.lower(): policy
    for policy in (Fixed, Step, MultiStep, Exp, Inv, Poly, Sigmoid, Cosine)
}
"""The policies by the names that `parse_rate` knows."""


@checked
def add_rate(builder: Builder, rate: float | Rate, *, name: str = "lr") -> str:
    """Add the op that makes the rate of each iteration in blob `name`, and return that name."""
    if isinstance(rate, int | float):
        rate = Fixed(float(rate))
    add_clock(builder)
    location = builder.blobs[ITERATION].location
    inputs, settings = [ITERATION], _settings(rate)
    if isinstance(rate, Warmup):
        inputs.insert(0, add_rate(builder, rate.rate, name=f"{name}/base"))
    builder.blob(name, (), "float64", location)
    kind = f"{type(rate).__name__}Rate"
    builder.op(name, kind, inputs, [name], settings, location=location)
    return name


@checked
def parse_rate(text: str, *, lr: float, iterations: int) -> Rate:
    """The policy that a text such as `step:step=1000,gamma=0.1` names.

    `iterations` is the length of the run, for policies that end with it. Any policy takes
    `warmup=N` as well. A list is written with bars: `multistep:steps=100|200`.

    >>> parse_rate("poly:power=0.5,warmup=10", lr=0.1, iterations=100)
    Warmup(rate=Poly(lr=0.1, max_iterations=100, power=0.5), iterations=10, start=0.0)
    """
    name, _, rest = text.partition(":")
    policy = POLICIES.get(name)
    if policy is None:
        raise unknown_name(ConfigError, "learning-rate policy", name, POLICIES, found=repr(text))
    types = {**typing.get_type_hints(policy), "warmup": int}
    del types["lr"]
    types.pop("_", None)
    values: dict[str, typing.Any] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in types:
            raise ConfigError(
                f"policy {name!r} has no setting {key!r}",
                expected=f"settings of {name}: {', '.join(types)}",
                found=repr(text),
                remedy=nearest_name(key, types, "use one of these", cutoff=0.5),
            )
        if key in values:
            raise given_twice(ConfigError, key, "setting", found=repr(text))
        values[key] = _value(key, value, types[key])
    warmup = values.pop("warmup", 0)
    at_least("warmup", warmup, 0)
    if "max_iterations" in types:
        values.setdefault("max_iterations", iterations)
    needed = [item.name for item in fields(policy) if item.default is MISSING][1:]
    missing = [key for key in needed if key not in values]
    if missing:
        raise ConfigError(
            f"policy {name!r} needs {' and '.join(missing)}",
            expected=f"{name}:{','.join(f'{key}=...' for key in needed)}",
            found=repr(text),
            remedy=f"add {missing[0]}=...",
        )
    rate: Rate = policy(lr, **values)
    return Warmup(rate, iterations=warmup) if warmup else rate


def _settings(rate: Rate) -> dict[str, Attribute]:
    """The fields that differ from their defaults, as attributes of the op."""
    values = {item.name: (getattr(rate, item.name), item.default) for item in fields(rate)}
    return {key: v for key, (v, default) in values.items() if v != default and key != "rate"}


def _value(key: str, text: str, hint: object) -> int | float | tuple[int, ...]:
    try:
        if hint is int:
            return int(text)
        if hint is float:
            return float(text)
        return tuple(int(item) for item in text.split("|"))
    except ValueError:
        forms: dict[object, tuple[str, str]] = {
            int: ("a whole number", "1"),
            float: ("a number", "1"),
        }
        expected, example = forms.get(hint, ("whole numbers with bars between them", "100|200"))
        remedy = f"write for example {key}={example}"
        raise wrong_value(ConfigError, key, text, expected, remedy=remedy) from None
