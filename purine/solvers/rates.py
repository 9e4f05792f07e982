"""Learning-rate policies as values, and their text form.

`add_rate` adds the op of a policy, a kind in `purine.kinds.rates`, with its fields as attributes.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import partial
from typing import Annotated, TypeAlias

import purine.kinds.rates  # noqa: F401  (registers the kinds)
from purine.arguments import at_least, check_fields, checked, not_negative, positive, wrong_value
from purine.errors import ConfigError, given_twice
from purine.graph import Builder
from purine.nearest import nearest_name, unknown_name
from purine.registry.clock import ITERATION, add_clock

_FROM_ONE = partial(at_least, least=1)


@dataclass(frozen=True, slots=True)
class _Policy:
    """A policy with the rate that it starts from; the annotation of a field has its check."""

    lr: Annotated[float, positive]

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            for check in getattr(hint, "__metadata__", ()):
                check(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Fixed(_Policy):
    """The same rate in all iterations."""


@dataclass(frozen=True, slots=True)
class Step(_Policy):
    """The rate times `gamma` after every `step` iterations."""

    _: KW_ONLY
    step: Annotated[int, _FROM_ONE]
    gamma: Annotated[float, positive] = 0.1


@dataclass(frozen=True, slots=True)
class MultiStep(_Policy):
    """The rate times `gamma` at each of the iterations `steps`."""

    _: KW_ONLY
    steps: tuple[int, ...]
    gamma: Annotated[float, positive] = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        _Policy.__post_init__(self)
        for step in self.steps:
            at_least("a step of steps", step, 1)
        if list(self.steps) != sorted(set(self.steps)) or not self.steps:
            expected = "one or more iterations, each later than the one before"
            remedy = "write them in order, for example (1000, 2000)"
            raise ConfigError(f"steps are {self.steps!r}", expected, repr(self.steps), remedy)


@dataclass(frozen=True, slots=True)
class Exp(_Policy):
    """The rate times `gamma` after every iteration."""

    _: KW_ONLY
    gamma: Annotated[float, positive]


@dataclass(frozen=True, slots=True)
class Inv(_Policy):
    """lr * (1 + gamma * iteration) ^ -power."""

    _: KW_ONLY
    gamma: Annotated[float, not_negative]
    power: Annotated[float, not_negative]


@dataclass(frozen=True, slots=True)
class Poly(_Policy):
    """Down to 0 at `max_iterations` along a power of what is left: a line where `power` is 1."""

    _: KW_ONLY
    max_iterations: Annotated[int, _FROM_ONE]
    power: Annotated[float, positive] = 1.0


@dataclass(frozen=True, slots=True)
class Sigmoid(_Policy):
    """lr / (1 + exp(-gamma * (iteration - step))); falls where gamma is negative."""

    _: KW_ONLY
    gamma: float
    step: Annotated[int, partial(at_least, least=0)]


@dataclass(frozen=True, slots=True)
class Cosine(_Policy):
    """Half a cosine from the rate down to `floor` at `max_iterations`."""

    _: KW_ONLY
    max_iterations: Annotated[int, _FROM_ONE]
    floor: Annotated[float, not_negative] = 0.0


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


_Base: TypeAlias = Fixed | Step | MultiStep | Exp | Inv | Poly | Sigmoid | Cosine
Rate: TypeAlias = _Base | Warmup
"""A learning-rate policy."""

POLICIES: Mapping[str, type[_Base]] = {
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
    location, inputs = builder.blobs[ITERATION].location, [ITERATION]
    values = {item.name: (getattr(rate, item.name), item.default) for item in fields(rate)}
    settings = {key: v for key, (v, default) in values.items() if v != default and key != "rate"}
    if isinstance(rate, Warmup):
        inputs.insert(0, add_rate(builder, rate.rate, name=f"{name}/base"))
    builder.blob(name, (), "float64", location)
    builder.op(name, f"{type(rate).__name__}Rate", inputs, [name], settings, location=location)
    return name


@checked
def parse_rate(text: str, *, lr: float, iterations: int) -> Rate:
    """The policy that a text such as `step:step=1000,gamma=0.1` names.

    `iterations` is the length of the run, for policies that end with it. All policies take
    `warmup=N` as well. A list is written with bars: `multistep:steps=100|200`.

    >>> parse_rate("poly:power=0.5,warmup=10", lr=0.1, iterations=100)
    Warmup(rate=Poly(lr=0.1, max_iterations=100, power=0.5), iterations=10, start=0.0)
    """
    name, _, rest = text.partition(":")
    policy = POLICIES.get(name)
    if policy is None:
        raise unknown_name(ConfigError, "learning-rate policy", name, POLICIES, found=repr(text))
    hints = typing.get_type_hints(policy)
    types = {**{key: hints[key] for key in hints if key not in ("lr", "_")}, "warmup": int}
    values: dict[str, typing.Any] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in types:
            what = f"policy {name!r} has no setting {key!r}"
            remedy = nearest_name(key, types, "use one of these", cutoff=0.5)
            raise ConfigError(what, f"settings of {name}: {', '.join(types)}", repr(text), remedy)
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
        what = f"policy {name!r} needs {' and '.join(missing)}"
        expected = f"{name}:{','.join(f'{key}=...' for key in needed)}"
        raise ConfigError(what, expected, repr(text), f"add {missing[0]}=...")
    rate: Rate = policy(lr, **values)
    return Warmup(rate, iterations=warmup) if warmup else rate


def _value(key: str, text: str, hint: object) -> int | float | tuple[int, ...]:
    try:
        if hint in (int, float):
            return float(text) if hint is float else int(text)
        return tuple(int(item) for item in text.split("|"))
    except ValueError:
        expected, example = _FORMS.get(hint, ("whole numbers with bars between them", "100|200"))
        remedy = f"write for example {key}={example}"
        raise wrong_value(ConfigError, key, text, expected, remedy=remedy) from None


_FORMS: Mapping[object, tuple[str, str]] = {int: ("a whole number", "1"), float: ("a number", "1")}
"""By type of a setting, what is expected of its text, and an example."""
