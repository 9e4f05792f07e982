"""A scheme of asynchronous training with its settings, as a value.

`RULES` is the table: which settings each scheme takes, and their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from purine.arguments import check_fields, wrong_value
from purine.errors import ConfigError
from purine.nearest import unknown_name

__all__ = ["RULES", "Asynchronous", "Bound", "Setting"]

Bound: TypeAlias = int | Literal["any"]
"""How stale what a worker reads may be, in its own iterations."""
Setting: TypeAlias = int | float | bool | str
Clock: TypeAlias = Literal["tickets", "steps"]

RULES: Mapping[str, Mapping[str, Setting | None]] = {
    "ssp": {"staleness": 3, "stale_rate": False},
    "downpour": {"staleness": "any", "push": 1, "fetch": 1, "stale_rate": False, "servers": 0},
    "hogwild": {"staleness": "any", "stale_rate": False},
    "easgd": {"every": 4, "alpha": None, "servers": 0},
    "gossip": {"every": 4, "partners": 0},
    "local": {"staleness": "any", "every": 8, "servers": 0},
    "diloco": {
        "staleness": "any",
        "every": 8,
        "outer_lr": 0.5,
        "outer_momentum": 0.5,
        "servers": 0,
    },
}
"""By scheme its own settings and their defaults; None is decided by the number of workers."""

_COUNTS = ("push", "fetch", "every")
_FRACTIONS = ("alpha", "outer_lr", "outer_momentum")
_MOST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """How workers train one net without waiting for each other; None is the scheme's default.

    `ssp`: workers read and update one copy of the parameters, and a worker may be ahead of the
    slowest by `staleness` iterations. `downpour`: the same without a bound; a worker reads every
    `fetch` iterations and sends the sum of its gradients every `push`. `hogwild`: the same in every
    iteration, with a state of the solver for each worker. `easgd`: each worker has parameters of
    its own; after `every` iterations they and a shared center move towards each other by `alpha` of
    their difference, by default 0.9 divided by the number of workers. `gossip`: each worker
    averages its parameters with those it received, and after `every` iterations sends half of its
    weight to another one, drawn by the seed `partners`.
    `local`: a worker reads the shared parameters, takes `every` steps and adds its change, divided
    by the number of workers. `diloco`: the same with Nesterov momentum.

    If all workers update one value, the rate of an update is divided by the number of workers, or
    with `stale_rate` by 1 + the number of updates since the parameters were read.
    Over hosts the first device has the shared states, and with `servers=1` no worker.
    Rate policies count `tickets`, the batches of all workers, or a worker's `steps`.

    >>> Asynchronous(scheme="ssp", staleness=2).value("staleness")
    2
    >>> Asynchronous(scheme="easgd").value("every")
    4
    """

    scheme: str
    staleness: Bound | None = None
    push: int | None = None
    fetch: int | None = None
    every: int | None = None
    alpha: float | None = None
    outer_lr: float | None = None
    outer_momentum: float | None = None
    stale_rate: bool | None = None
    partners: int | None = None
    servers: int | None = None
    rates: Clock = "tickets"

    def __post_init__(self) -> None:
        if self.scheme not in RULES:
            raise unknown_name(ConfigError, "asynchronous scheme", self.scheme, RULES)
        self._refuse_foreign()
        bound = self.staleness
        if not (bound is None or bound == "any" or (type(bound) is int and 0 <= bound <= _MOST)):
            raise wrong_value(ConfigError, "staleness", bound, "a whole number, 0 or more, or any")
        for name in (*_COUNTS, "partners", "servers"):
            value, least = getattr(self, name), int(name in _COUNTS)
            if value is not None and not (type(value) is int and least <= value <= _MOST):
                raise wrong_value(ConfigError, name, value, f"a whole number, {least} or more")
        for name in _FRACTIONS:
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (0 < value <= 1 or (name == "outer_momentum" and value == 0)):
                expected = "0 or more, and at most 1" if "momentum" in name else "above 0, up to 1"
                raise wrong_value(ConfigError, name, value, expected)
        if self.stale_rate is not None and type(self.stale_rate) is not bool:
            raise wrong_value(ConfigError, "stale_rate", self.stale_rate, "true or false")
        if self.rates not in ("tickets", "steps"):
            raise unknown_name(ConfigError, "rates", str(self.rates), ("tickets", "steps"))
        check_fields(self)

    def _refuse_foreign(self) -> None:
        """Refuse settings of other schemes."""
        own = RULES[self.scheme]
        for item in fields(self):
            name = item.name
            if name in ("scheme", "rates", *own) or getattr(self, name) is None:
                continue
            takers = [scheme for scheme, settings in RULES.items() if name in settings]
            raise ConfigError(
                f"{name} is no setting of {self.scheme}",
                expected=f"for {self.scheme}: {', '.join((*own, 'rates'))}",
                found=f"{name}={getattr(self, name)}",
                remedy=f"leave {name} out, or train with {' or '.join(takers)}",
            )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the settings, besides that of the scheme."""
        return tuple(item.name for item in fields(cls) if item.name != "scheme")

    @classmethod
    def of(cls, scheme: str, settings: Mapping[str, object]) -> Asynchronous:
        """A scheme from settings by name, whose values may be texts."""
        return cls(scheme=scheme, **{name: _read(name, settings[name]) for name in settings})

    @property
    def settings(self) -> dict[str, Setting]:
        """The scheme and what differs from the defaults, by name."""
        given = {name: getattr(self, name) for name in self.names()}
        own = {"rates": "tickets"}
        kept = {name: value for name, value in given.items() if value not in (None, own.get(name))}
        return {"asynchronous": self.scheme, **kept}

    @property
    def synchronous(self) -> bool:
        """Whether the staleness is 0, so that the workers are synchronous replicas."""
        pushes = (self.value(name) for name in ("push", "fetch") if name in RULES[self.scheme])
        gradients = self.scheme in ("ssp", "downpour", "hogwild")
        return gradients and self.staleness == 0 and all(count == 1 for count in pushes)

    @property
    def bound(self) -> int | None:
        """The largest staleness of a read; None for no bound."""
        bound = self.value("staleness")
        return bound if type(bound) is int else None

    def value(self, name: str) -> Setting | None:
        """A setting, or its default in the scheme."""
        given: Setting | None = getattr(self, name)
        return RULES[self.scheme].get(name) if given is None else given

    def count(self, name: str) -> int:
        """A setting that is a whole number."""
        value = self.value(name)
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """A setting that is a number."""
        value = self.value(name)
        assert isinstance(value, int | float)
        return float(value)


def _read(name: str, value: object) -> Any:
    """A setting's value from its text."""
    if not isinstance(value, str):
        return value
    if name in ("staleness", "partners", "servers", *_COUNTS):
        return int(value) if value.isdecimal() and len(value) < 18 else value
    if name in _FRACTIONS:
        try:
            return float(value)
        except ValueError:
            return value
    if name == "stale_rate":
        return {"true": True, "false": False}.get(value.lower(), value)
    return value
