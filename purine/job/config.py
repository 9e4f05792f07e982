"""A job: the options of the table with checked values.

A `Job` that exists has options of the right type and range that fit together. Whether its net, data
and solver exist is checked when the job is planned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from purine.arguments import conforms, describe
from purine.errors import ConfigError
from purine.job.options import ALL, AUTO, OPTIONS, JobOptions, Option
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["Given", "Job", "check_option", "fill", "given_options", "merge"]

Given: TypeAlias = Mapping[str, Any]
"""Values of options by name: only of those that were given."""

_TOO_LARGE = 2**63  # for a whole number
_SURROGATES = re.compile("[\ud800-\udfff]")  # what bytes that are no UTF-8 become


@dataclass(frozen=True, kw_only=True)
class Job(JobOptions):
    """The options of a training job; None leaves an option to the net or the solver.

    >>> Job(net="mlp", epochs=2).solver
    'sgd'
    """

    def __post_init__(self) -> None:
        for name in OPTIONS:
            check_option(name, getattr(self, name), None)
        given = given_options(self)
        for name, option in OPTIONS.items():
            other = option.instead_of
            if other is not None and name in given and other in given:
                what, expected = f"both {other} and {name} are given", "one of them"
                found, remedy = f"{other} {given[other]}, {name} {given[name]}", "leave one out"
                raise ConfigError(what, expected, found, remedy)
        if self.precision == "tf32" and "cuda" not in self.devices:
            what, found = "precision is tf32, and the job has no GPU", f"devices {self.devices}"
            remedy = "leave --precision out for float32, or train on --devices cuda:0"
            raise ConfigError(what, "devices such as cuda:0, which have TF32", found, remedy)
        if self.pad and self.crop is None:
            what = f"pad is {self.pad}, and there is no crop"
            expected, found = "a crop to take from the padded image", "no crop"
            raise ConfigError(what, expected, found, "give crop as well, or leave pad out")


def merge(*layers: Given) -> Job:
    """The job of several layers of options; later layers override earlier ones.

    A given option also overrides the one that it replaces: `iters` overrides `epochs`.
    """
    pairs = [(option.instead_of, name) for name, option in OPTIONS.items() if option.instead_of]
    merged: dict[str, Any] = {}
    for layer in layers:
        for pair in pairs:
            if not layer.keys().isdisjoint(pair):
                for name in pair:
                    merged.pop(name, None)
        merged.update(layer)
    return Job(**merged)


def given_options(job: Job) -> Given:
    """The options of a job that are not None."""
    values = {name: getattr(job, name) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def fill(job: Job, values: Given) -> Job:
    """The job with these values for options that are None."""
    return replace(job, **{k: v for k, v in values.items() if getattr(job, k) is None})


def check_option(name: str, value: object, where: str | None) -> None:
    """Refuse a value that is not of the option's type or range; `where` is a line of a file."""
    option = OPTIONS[name]
    if value is None and option.optional:
        return
    if not conforms(value, option.annotation):
        sort = type(value).__name__
        sort = {"str": "text", "tuple": "list", "dict": "mapping"}.get(sort, sort)
        raise _wrong(name, where, describe(option.annotation), _short(f"{sort} {value!r}"))
    numbers = [value] if isinstance(value, int | float) else value
    if isinstance(numbers, list | tuple):
        if any(isinstance(item, int) and abs(item) >= _TOO_LARGE for item in numbers):
            raise _wrong(name, where, "a number below 2^63", _short(str(value)))
        expected = _range_problem(option, numbers)
        if expected is not None:
            raise _wrong(name, where, expected, str(value))
    elif isinstance(value, str):
        _check_text(option, value, where)


def _range_problem(option: Option, numbers: list[float] | tuple[float, ...]) -> str | None:
    """What is expected of numbers that are not in the range of the option; None if they are."""
    if not all(map(math.isfinite, numbers)):
        return "a finite number"
    if option.least is not None and min(numbers) < option.least:
        return f"{option.least} or more"
    if option.above is not None and min(numbers) <= option.above:
        return f"a number above {option.above}"
    if option.nonzero and 0 in numbers:
        return "a number other than 0"
    if option.most is not None and max(numbers) > option.most:
        return f"{option.most} or fewer"
    return None


def _check_text(option: Option, text: str, where: str | None) -> None:
    if not text and not option.may_be_empty:
        raise _wrong(option.name, where, "a text that is not empty", "''")
    if _SURROGATES.search(text):
        raise _wrong(option.name, where, "text in UTF-8", repr(text))
    try:
        open_still = where is not None and text in (ALL, AUTO)  # in a file, until it is planned
        if option.name == "devices" and not open_still:
            _check_devices(text)
        elif option.name == "parallel" and not open_still:
            Scheme.parse(text)
    except ConfigError as error:
        error.where = error.where or where
        raise


def _check_devices(text: str) -> None:
    """Refuse a text that names no devices; their number is checked when the job is planned."""
    devices = parse_devices(text)
    if len(devices) == 1 and devices[0].startswith("cpu") and devices != ("cpu:0",):
        expected = "cpu:0, which stands for all cores of this machine where it is alone"
        found, remedy = devices[0], "write --devices cpu:0"
        raise ConfigError(f"device {devices[0]} cannot be used", expected, found, remedy)


def _wrong(name: str, where: str | None, expected: str, found: str) -> ConfigError:
    found = found if len(found) <= 100 else f"{found[:60]}... ({len(found)} characters)"
    what = f"{name} is {found.removeprefix('int ').removeprefix('float ')}"
    remedy = f"change {name if where else OPTIONS[name].flag}"
    return ConfigError(what, expected, found, remedy, where=where)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
