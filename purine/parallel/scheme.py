"""A scheme of parallelism as a value, written as text (`data=2,pipeline=4`) or as a mapping.

The constructor checks that the settings have the right types and fit together. `compose` refuses
nets that they do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import gcd, prod
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from purine.arguments import check_fields, checked, wrong_value
from purine.errors import ConfigError, given_twice
from purine.files import expanded, read_bounded, unreadable
from purine.nearest import nearest_name, unknown_name
from purine.parallel.reduce import TOPOLOGIES, Topology
from purine.parallel.replicate import BatchNorms
from purine.parallel.schedule import SCHEDULES, Schedule, bubble, bubble_formula, named_schedule
from purine.parallel.serve.rule import RULES, Asynchronous

__all__ = ["Scheme", "Setting"]

Setting: TypeAlias = int | float | bool | str | tuple[str, ...] | tuple[int, ...]
"""A value of a scheme's setting, as people write it."""

_NUMBERS = {
    **dict.fromkeys(("workers", "data", "pipeline", "model", "micro", "chunks"), 1),
    **dict.fromkeys(("bucket", "unit", "staleness"), 0),
}
"""By setting that is a whole number, the least."""
_MOST = 4096  # parts of anything: a schedule has an entry for each
_DIGITS = 18  # of a share
_SIZES = ("bucket", "unit")  # in bytes
_SWITCHES = ("hybrid", "floating", "shared")
_NAMES = ("cut", "recompute")
_OF_PIPELINES = ("schedule", "chunks", "cut")
_BYTES = 16 << 20  # of a file with a schedule
_CELLS = 1 << 16  # of a schedule: forward passes of micro-batches through stages


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How a net is trained on `workers * data * pipeline * model` devices; None means undecided.

    With `asynchronous` there are `workers` that do not wait for each other: see `Asynchronous`,
    whose settings are given together with these. All other settings are those of each worker.
    There are `data` replicas. Each is a pipeline of `pipeline` devices, and each of these may be
    `model` devices that shard its layers (with `hybrid`, convolutions are data parallel instead).
    The replicas have equal parts of the batch, or parts in proportion to `shares`.
    `schedule` is a name or the text of a grid. `micro` is the number of micro-batches of a
    replica's batch, by default twice the pipeline's devices. `recompute` is a number of blocks or
    their names, `cut` the names with which the stages after the first begin. With `floating`, the
    device that is idle computes the next micro-batch, with the same result. With `staleness`,
    forward and backward read parameters this number of iterations late.
    Gradients of at most `bucket` bytes are reduced together; between hosts, parameters are reduced
    and returned in units of about `unit` bytes. With `shared`, hosts are processes of one machine
    and read parameters in memory that they share.

    >>> scheme = Scheme.parse("data=2,pipeline=4")
    >>> scheme.devices, scheme.micro_batches, str(scheme)
    (8, 8, 'data=2,pipeline=4')
    """

    workers: int = 1
    asynchronous: Asynchronous | None = None
    data: int = 1
    shares: tuple[int, ...] = ()
    pipeline: int = 1
    model: int = 1
    hybrid: bool = False
    floating: bool = False
    staleness: int = 0
    schedule: str | None = None
    micro: int | None = None
    chunks: int | None = None
    topology: Topology = "sharded"
    batch_norm: BatchNorms = "replica"
    bucket: int = 1 << 16
    unit: int = 1 << 18
    shared: bool = False
    recompute: int | tuple[str, ...] | None = None
    cut: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise wrong_value(ConfigError, name, value, f"a whole number, {least} or more")
            if value is not None and value > _MOST and name not in _SIZES:
                raise wrong_value(ConfigError, name, value, f"{_MOST} or fewer")
        self._refuse_shares()
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise wrong_value(ConfigError, name, getattr(self, name), "true or false")
        blocks = self.recompute
        names = isinstance(blocks, tuple) and len(blocks) > 0
        if not (blocks is None or names or (type(blocks) is int and blocks >= 2)):
            expected = "2 or more blocks, or names of blocks"
            raise wrong_value(ConfigError, "recompute", blocks, expected)
        _choose("topology", self.topology, TOPOLOGIES)
        _choose("batch_norm", self.batch_norm, get_args(BatchNorms))
        check_fields(self)
        if self.schedule is not None and not _is_grid(self.schedule):
            _choose("schedule", self.schedule, tuple(SCHEDULES))
        self._refuse_workers()
        self._refuse_what_does_not_go_together()

    def _refuse_workers(self) -> None:
        """Workers need an asynchronous scheme, and are whole replicas or pipelines."""
        if self.asynchronous is None:
            if self.workers > 1:
                what, found = "there are workers without a scheme", f"workers={self.workers}"
                remedy = f"give asynchronous={'|'.join(RULES)}, or data instead of workers"
                raise ConfigError(what, "asynchronous=NAME with workers", found, remedy)
            return
        for name, least in (("model", 1), ("floating", False), ("staleness", 0)):
            if getattr(self, name) != least:
                raise ConfigError(
                    f"workers cannot train with {name}",
                    expected="data, pipeline and micro inside of workers",
                    found=f"{name}={_text(getattr(self, name))}",
                    remedy=f"leave {name} out, or asynchronous",
                )

    def _refuse_shares(self) -> None:
        shares: object = self.shares
        numbers = isinstance(shares, tuple) and all(type(n) is int and n > 0 for n in shares)
        if not numbers:
            expected = "whole numbers, 1 or more, such as 3:1 (in a file [3, 1])"
            raise wrong_value(ConfigError, "shares", shares, expected)
        if self.shares and len(self.shares) != self.data:
            raise ConfigError(
                f"there are {len(self.shares)} shares for {self.data} replicas",
                expected=f"{self.data} shares, one for each of the replicas (data={self.data})",
                found=f"shares={_text(self.shares)}",
                remedy=f"write data={len(self.shares)}, or name {self.data} shares",
            )

    def _refuse_what_does_not_go_together(self) -> None:
        def refuse(what: str, expected: str, found: str, remedy: str) -> NoReturn:
            raise ConfigError(what, expected=expected, found=found, remedy=remedy)

        if self.hybrid and self.model < 2:
            expected, found = "model=2 or more with hybrid=true", f"model={self.model}"
            remedy = "give model, the number of devices, or leave hybrid out"
            refuse(f"a hybrid net over {self.model} device", expected, found, remedy)
        if self.hybrid and self.pipeline > 1:
            expected, found = "hybrid=true with only data and model", f"pipeline={self.pipeline}"
            remedy = "leave hybrid out (layers are then cut over the model devices), or pipeline"
            refuse("a hybrid net cannot be a pipeline", expected, found, remedy)
        if self.floating and self.pipeline * self.model > 1:
            found = f"pipeline={self.pipeline}, model={self.model}"
            remedy = "leave floating out, or train with only replicas and micro-batches"
            expected = "floating=true with only data and micro"
            refuse("parts of a net cannot float", expected, found, remedy)
        for name in _OF_PIPELINES:
            if self.pipeline == 1 and getattr(self, name):
                what, expected = f"{name} is given, and there is no pipeline", f"with {name}"
                remedy = f"give pipeline, the number of its devices, or leave {name} out"
                refuse(what, f"pipeline=2 or more {expected}", "pipeline=1", remedy)
        if self.pipeline == 1:
            return
        sizes = (self.pipeline, self.micro_batches, self.chunks or 1)
        if prod(sizes) > _CELLS:
            expected = f"pipeline * micro * chunks to be at most {_CELLS:,}"
            remedy = "use fewer devices in a pipeline, or fewer micro-batches"
            what = "the schedule of the pipeline is too large"
            refuse(what, expected, " * ".join(map(str, sizes)), remedy)
        plan = self.grid(1)
        for name, wanted, given in (
            ("pipeline", plan.devices, self.pipeline),
            ("micro", plan.micro, self.micro_batches),
            ("cut", plan.stages - 1, len(self.cut) or plan.stages - 1),
        ):
            if wanted != given:
                expected, found = f"{name}={wanted}", f"{name}={given}"
                if name == "cut":
                    expected = f"{wanted} names, one for each stage but the first"
                    found = f"{given} names"
                remedy = f"change {name}, or the schedule"
                refuse(f"{name} does not fit the schedule", expected, found, remedy)

    @classmethod
    @checked
    def parse(cls, text: str) -> Scheme:
        """A scheme from text; several names are parted by `|`, a schedule may be a grid's file."""
        given: dict[str, Setting] = {}
        for item in text.split(","):
            key, equals, value = item.partition("=")
            key = key.strip().replace("-", "_")
            if not equals:
                what = f"{item.strip()!r} is no setting of a scheme"
                expected = "settings such as data=2, with commas between them"
                remedy = "write for example --parallel data=2,pipeline=4"
                raise ConfigError(what, expected=expected, found=repr(text), remedy=remedy)
            if key in given:
                raise given_twice(ConfigError, key, "setting", found=repr(text))
            given[key] = value.strip()
        return cls.of(given)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Scheme:
        """A scheme from settings by name, whose values may be texts."""
        for key in settings:
            cls.refuse_unknown(key)
        given = {key: _read(key, value) for key, value in settings.items()}
        own = {key: given.pop(key) for key in Asynchronous.names() if key in given}
        named = given.get("asynchronous")
        if isinstance(named, str):
            given["asynchronous"] = Asynchronous.of(named, own)
        elif "staleness" in own:
            given["staleness"] = own.pop("staleness")
        if own and not isinstance(named, str):
            raise _without_workers(next(iter(own)))
        if isinstance(given.get("shares"), tuple):  # there is a replica for each
            given.setdefault("data", max(1, len(given["shares"])))
        return cls(**given)

    @classmethod
    def refuse_unknown(cls, key: str) -> None:
        """Raise `ConfigError` unless this is the name of a setting."""
        known = list(dict.fromkeys([*(item.name for item in fields(cls)), *Asynchronous.names()]))
        if key not in known:
            what, expected = f"there is no setting {key!r} of parallelism", ", ".join(known)
            remedy = nearest_name(key, known, f"remove {key!r}", cutoff=0.5)
            raise ConfigError(what, f"one of {expected}", repr(key), remedy)

    @property
    def devices(self) -> int:
        """The number of devices of the scheme."""
        return self.workers * self.group + self.servers

    @property
    def servers(self) -> int:
        """The number of devices without a worker, which only hold shared states."""
        rule = self.asynchronous
        return rule.count("servers") if rule and "servers" in RULES[rule.scheme] else 0

    @property
    def group(self) -> int:
        """The number of devices of a worker; without workers, of the whole scheme."""
        return self.data * self.pipeline * self.model

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a replica's batch."""
        if self.micro is not None:
            return self.micro
        if self.schedule is not None and _is_grid(self.schedule):
            return Schedule.parse(self.schedule).micro
        return 2 * self.pipeline if self.pipeline > 1 else 1

    @property
    def ratio(self) -> tuple[int, ...]:
        """The smallest whole numbers in proportion to the batches of the replicas."""
        shares = self.shares or (1,) * self.data
        return tuple(share // gcd(*shares) for share in shares)

    @property
    def parts(self) -> Mapping[str, int]:
        """By setting, the number of equal parts into which it cuts the batch; a replica may have
        several."""
        own = {"data": sum(self.ratio), "micro": self.micro_batches}
        if self.asynchronous is not None:
            own = {"workers": self.workers, **own}
        return {**own, "model": self.model} if self.hybrid else own

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings that differ from the defaults."""
        values = ((item.name, getattr(self, item.name), item.default) for item in fields(self))
        given = {name: value for name, value, default in values if value != default}
        rule = given.pop("asynchronous", None)
        return given if rule is None else {"workers": self.workers, **rule.settings, **given}

    def grid(self, times: int) -> Schedule:
        """The schedule of the pipeline for `times` as many micro-batches."""
        name, micro = self.schedule or "1f1b", self.micro_batches * times
        if _is_grid(name):
            return Schedule.parse(name)
        return named_schedule(name, self.pipeline, micro, chunks=self.chunks or 1)

    def idle(self, times: int) -> float:
        """The idle part of all devices' time in the pipeline, by its formula or grid."""
        name, micro = self.schedule or "1f1b", self.micro_batches * times
        if _is_grid(name):
            return bubble(self.grid(times))
        return bubble_formula(name, self.pipeline, micro, chunks=self.chunks or 1)

    def settled(self) -> Scheme:
        """The same with the number of micro-batches written out."""
        return replace(self, micro=self.micro_batches) if self.pipeline > 1 else self

    def over(self, devices: int) -> Scheme:
        """The same for another number of devices, if it consists of workers or equal replicas."""
        if self.asynchronous is not None:
            return replace(self, workers=max(1, (devices - self.servers) // self.group))
        if self.pipeline == self.model == 1 and not self.shares:
            return replace(self, data=devices)
        return self

    def synchronous(self) -> Scheme:
        """The same with replicas in place of workers whose staleness is 0."""
        if self.asynchronous is None or not self.asynchronous.synchronous:
            return self
        data, shares = self.workers * self.data, self.shares * self.workers
        return replace(self, workers=1, asynchronous=None, data=data, shares=shares)

    def __str__(self) -> str:
        given = self.settings or {"data": self.data}
        return ",".join(f"{key}={_text(value)}" for key, value in given.items())


def _without_workers(name: str) -> ConfigError:
    """The error for a setting of asynchronous training where no such scheme is named."""
    schemes = [scheme for scheme, settings in RULES.items() if name in settings] or list(RULES)
    return ConfigError(
        f"{name} is given, and no asynchronous scheme",
        expected=f"asynchronous={'|'.join(schemes)} with {name}",
        found=name,
        remedy=f"name the scheme, or leave {name} out",
    )


def _text(value: Setting) -> str:
    if isinstance(value, tuple):
        numbers = all(isinstance(item, int) for item in value)
        return (":" if numbers else "|").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_grid(text: str) -> bool:
    return "\n" in text.strip() or ":" in text


def _read(key: str, value: object) -> Any:
    """A setting's value from its text."""
    if key in _NAMES and isinstance(value, list | tuple):
        return tuple(map(str, value))
    if key == "shares" and isinstance(value, list):
        return tuple(value)
    if key == "shares" and isinstance(value, str):
        numbers = [item.strip() for item in value.split(":")]
        whole = all(item.isdecimal() and len(item) < _DIGITS for item in numbers)
        return tuple(map(int, numbers)) if whole else value
    if not isinstance(value, str):
        return str(value) if key == "schedule" else value
    if key in _NUMBERS or (key == "recompute" and value.isdigit()):
        return int(value) if value.isdigit() else value
    if key in _SWITCHES:
        return {"true": True, "false": False}.get(value.lower(), value)
    if key in _NAMES:
        return tuple(value.split("|"))
    if key == "schedule" and not _is_grid(value) and Path(value).suffix:
        return _grid_of(Path(value))
    return value


def _grid_of(path: Path) -> str:
    try:
        return str(Schedule.parse(read_bounded(expanded(path), _BYTES).decode()))
    except (OSError, UnicodeDecodeError) as error:
        what, remedy = "cannot read the schedule", "check the path"
        expected = "the path of a grid, or one of " + ", ".join(SCHEDULES)
        raise unreadable(ConfigError, path, error, expected, what, remedy) from error
    except ConfigError as error:
        error.where = str(path)
        raise


def _choose(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(ConfigError, name, str(value), known)
