"""What a job is asked to do: options with their ranges, from a file or from anywhere else.

A `Job` that exists has options of the right type and range that go together. Whether the net, the
data and the solver they name exist is found out when the job is planned.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from purine.arguments import conforms, describe
from purine.errors import ConfigError
from purine.graph.yaml import flow
from purine.graph.yaml.nodes import List, Map, Node, Scalar, document, read_text
from purine.graph.yaml.nodes import describe as describe_node
from purine.nearest import nearest_name
from purine.optimize.layout import Layout
from purine.parallel import Scheme
from purine.placement.devices import parse_devices

__all__ = ["Job", "Options", "Precision", "job_text", "merge", "missing_keys", "read_options"]

Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16"]
Options: TypeAlias = Mapping[str, Any]
"""Options of a job by the names of its fields: only those that were given."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of a training job; None stands for what depends on the net or the solver.

    >>> Job(net="mlp", epochs=2).solver
    'sgd'
    """

    net: str = "lenet"
    test_net: str | None = None
    data: str | None = None
    weights: str | None = None
    batch: int | None = None
    epochs: int | None = None
    iters: int | None = None
    solver: str = "sgd"
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    lr_policy: str | None = None
    clip: float | None = None
    accumulate: int | None = None
    precision: Precision = "fp32"
    seed: int | None = None
    devices: str = "cpu:0"
    parallel: str | None = None
    threads: int | None = None
    share_cores: bool = False
    prefetch: int = 2
    out: str | None = None
    save_every: int | None = None
    keep: int = 2
    test_every: int | None = None
    log_every: int | None = None
    trace: bool = False
    trace_iters: int = 50
    layout: Layout | None = None
    compile: bool | None = None
    mean: float | tuple[float, ...] | None = None
    mean_file: str | None = None
    scale: float | None = None
    crop: int | None = None
    pad: int = 0
    mirror: bool | None = None  # last, as every recorded job has it: a file cut short lacks it

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), None)
        if self.epochs is not None and self.iters is not None:
            raise ConfigError(
                "both epochs and iters are given",
                expected="one of them",
                found=f"epochs {self.epochs}, iters {self.iters}",
                remedy="leave one out",
            )
        if self.precision == "tf32" and "cuda" not in self.devices:
            raise ConfigError(
                "precision is tf32, and the job has no GPU",
                expected="devices such as cuda:0, which have TF32",
                found=f"devices {self.devices}",
                remedy="leave --precision out for float32, or train on --devices cuda:0",
            )
        if self.mean is not None and self.mean_file is not None:
            raise ConfigError(
                "both mean and mean_file are given",
                expected="one of them",
                found=f"mean {self.mean}, mean_file {self.mean_file}",
                remedy="leave one out",
            )
        if self.pad and self.crop is None:
            raise ConfigError(
                f"pad is {self.pad}, and there is no crop",
                expected="a crop to take from the padded image",
                found="no crop",
                remedy="give crop as well, or leave pad out",
            )


_HINTS: Mapping[str, Any] = typing.get_type_hints(Job)

_LEAST: Mapping[str, int] = {
    **dict.fromkeys(("batch", "accumulate", "threads", "keep", "log_every", "trace_iters"), 1),
    **dict.fromkeys(("save_every", "test_every", "crop"), 1),
    **dict.fromkeys(("epochs", "iters", "seed", "prefetch", "pad"), 0),
    **dict.fromkeys(("momentum", "weight_decay"), 0),
}
_ABOVE_ZERO = ("lr", "clip")
_LIMIT = 2**63  # of a whole number
_HALVES = re.compile("[\ud800-\udfff]")  # what bytes that are no UTF-8 become
_MOST: Mapping[str, int] = {"prefetch": 1000, "threads": 1024}
"""More would take memory and threads that no machine has before anything is computed."""
_SETTLED = (
    *(("data",), ("batch",), ("epochs", "iters"), ("lr",), ("weight_decay",), ("lr_policy",)),
    *(("accumulate",), ("seed",), ("threads",), ("log_every",), ("mean", "mean_file")),
    ("mirror",),
)
"""Options that a plan decides where a job leaves them open; of each group it has one."""


def merge(*layers: Options) -> Job:
    """The job of several layers of options, of which later ones count more.

    `epochs` and `iters` say the same thing, so one of them overrides the other as well; so do
    `mean` and `mean_file`.

    >>> merge({"epochs": 3, "net": "mlp"}, {"iters": 10})
    ... # doctest: +ELLIPSIS
    Job(net='mlp', test_net=None, data=None, weights=None, batch=None, ...)
    """
    options: dict[str, Any] = {}
    for layer in layers:
        for pair in (("epochs", "iters"), ("mean", "mean_file")):
            if not layer.keys().isdisjoint(pair):
                for key in pair:
                    options.pop(key, None)
        options.update(layer)
    return Job(**options)


def read_options(path: Path) -> dict[str, Any]:
    """The options in a job file; every mistake is a `ConfigError` with the file and line."""
    options: dict[str, Any] = {}
    for key_node, value_node in _pairs(path):
        where = f"{path}:{key_node.line}"
        key = _word(key_node, where)
        if key not in _HINTS:
            raise _unknown_key(key, where)
        if key in options:
            raise ConfigError(
                f"{key} is given twice",
                where=where,
                expected="every key once",
                found=f"a second {key}",
                remedy="remove one",
            )
        if key == "parallel" and isinstance(value_node, Map):
            value: object = _scheme_text(value_node, where)
        else:
            value = _plain(value_node)
        _check(key, value, where)
        options[key] = value
    return options


def missing_keys(options: Options) -> list[str]:
    """What options lack that every recorded job has.

    >>> missing_keys({item.name: 1 for item in fields(Job) if item.name not in ("lr", "iters")})
    ['lr']
    """
    always = [(item.name,) for item in fields(Job) if item.default is not None]
    groups = (*always, *_SETTLED)
    return [
        " or ".join(group) for group in groups if all(options.get(key) is None for key in group)
    ]


def job_text(job: Job) -> str:
    """The job as the text of a job file that reads back to it, without the folder it writes to.

    >>> print(job_text(Job(net="mlp", iters=5)).splitlines()[0])
    net: mlp
    """
    values = {item.name: getattr(job, item.name) for item in fields(job) if item.name != "out"}
    if job.parallel is not None:
        values["parallel"] = Scheme.parse(job.parallel).settings or {"data": 1}
    return "".join(f"{key}: {flow(value)}\n" for key, value in values.items() if value is not None)


def _check(key: str, value: object, where: str | None) -> None:
    hint = _HINTS[key]
    if not conforms(value, hint):
        found = _short(f"{_type(value)} {value!r}")
        raise _wrong(key, where, describe(_without_none(hint)), found)
    if value is None:
        return
    if value == "" and key != "out":
        raise _wrong(key, where, "a text that is not empty", "''")
    if isinstance(value, str) and _HALVES.search(value):
        raise _wrong(key, where, "text in UTF-8", repr(value))
    numbers = [value] if isinstance(value, int | float) else value
    if isinstance(numbers, list | tuple):
        if any(isinstance(item, int) and abs(item) >= _LIMIT for item in numbers):
            raise _wrong(key, where, "a number below 2^63", _short(str(value)))
        if not all(math.isfinite(item) for item in numbers):
            raise _wrong(key, where, "a finite number", str(value))
    if key in _LEAST and typing.cast(float, value) < _LEAST[key]:
        raise _wrong(key, where, f"{_LEAST[key]} or more", str(value))
    if key in _ABOVE_ZERO and typing.cast(float, value) <= 0:
        raise _wrong(key, where, "a number above 0", str(value))
    if key == "scale" and value == 0:
        raise _wrong(key, where, "a number other than 0", str(value))
    if key in _MOST and typing.cast(int, value) > _MOST[key]:
        raise _wrong(key, where, f"{_MOST[key]} or fewer", str(value))
    try:
        if key == "devices":
            _check_devices(str(value))
        elif key == "parallel":
            Scheme.parse(str(value))
    except ConfigError as error:
        error.where = error.where or where
        raise


def _wrong(key: str, where: str | None, expected: str, found: str) -> ConfigError:
    found = found if len(found) <= 100 else f"{found[:60]}... ({len(found)} characters)"
    return ConfigError(
        f"{key} is {found.removeprefix('int ').removeprefix('float ')}",
        where=where,
        expected=expected,
        found=found,
        remedy=f"change {key}" if where else f"change --{key.replace('_', '-')}",
    )


def _unknown_key(key: str, where: str) -> ConfigError:
    return ConfigError(
        f"there is no option {key!r}",
        where=where,
        expected=f"one of {', '.join(_HINTS)}",
        found=repr(key),
        remedy=nearest_name(key.replace("-", "_"), _HINTS, f"remove {key!r}"),
    )


_DEVICES = re.compile(r"(cpu|cuda):([0-9]{1,3})(?:-([0-9]{1,3}))?")


def _check_devices(text: str) -> None:
    """Refuse what names no devices; whether there are so many is seen when the job is planned."""
    for item in text.split(","):
        match = _DEVICES.fullmatch(item.strip())
        if match is None or int(match[3] or match[2]) < int(match[2]):
            raise ConfigError(
                f"{item!r} is no device",
                expected="cpu:K or cuda:K, a range cpu:K-L, or several with commas",
                found=repr(text),
                remedy="write --devices cpu:0, or --devices cpu:0-3 for four",
            )
    found = parse_devices(text)
    if len(found) == 1 and found[0].startswith("cpu") and found != ("cpu:0",):
        raise ConfigError(
            f"device {found[0]} cannot be used",
            expected="cpu:0, which stands for all cores of this machine where it is alone",
            found=found[0],
            remedy="write --devices cpu:0",
        )


def _scheme_text(node: Map, where: str) -> str:
    """The scheme of a mapping, as text."""
    settings: dict[str, object] = {}
    try:
        for key_node, value_node in node.pairs:
            where = f"{where.rpartition(':')[0]}:{key_node.line}"
            key = _word(key_node, where)
            if key in settings:
                raise ConfigError(
                    f"{key} is given twice",
                    expected="every setting once",
                    found=f"a second {key}",
                    remedy="remove one",
                )
            settings[key] = _plain(value_node)
            Scheme.refuse_unknown(key)
        return str(Scheme.of(settings))
    except ConfigError as error:
        error.where = error.where or where
        raise


def _pairs(path: Path) -> list[tuple[Node, Node]]:
    """The keys and values of a file that is one mapping."""
    root = document(read_text(path, "job file", ConfigError), str(path))
    if root is None:
        return []
    if not isinstance(root, Map):
        raise ConfigError(
            "a job file is a mapping",
            where=f"{path}:{root.line}",
            expected="lines of the form `key: value`",
            found="a list (a graph?)" if isinstance(root, List) else "a single value",
            remedy="to train a graph of your own, pass it with --net",
        )
    return root.pairs


def _word(node: Node, where: str) -> str:
    """A key, which may be written with dashes."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise ConfigError(
            "a key is not a word",
            where=where,
            expected="lines of the form `key: value`",
            found=f"{describe_node(node)} as a key",
            remedy="correct it",
        )
    return node.value.replace("-", "_")


def _plain(node: Node) -> object:
    if isinstance(node, List):
        return tuple(_plain(item) for item in node.items)
    if isinstance(node, Map):
        return {"...": "..."}  # no option takes one
    return node.value


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        kept = [item for item in typing.get_args(hint) if item is not type(None)]
        return typing.Union[tuple(kept)]  # noqa: UP007
    return hint


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


def _type(value: object) -> str:
    words = {"str": "text", "tuple": "list", "dict": "mapping"}
    name = type(value).__name__
    return words.get(name, name)
