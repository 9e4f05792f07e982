"""Fillers: the first values of states, as a pure function of the seed and the state's name.

Every state draws from its own generator, so a value depends neither on the order of filling nor on
the machine. Numbers are drawn in float64 and then cast, so nets of different dtypes start alike. A
state that is a shard of another draws the whole and keeps its part.
"""

from __future__ import annotations

import hashlib
import math
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from purine.arguments import checked, conforms, describe
from purine.errors import KindError
from purine.graph import Blob, Filler, Graph, State, verify
from purine.registry.aten import dtype_of
from purine.registry.kind import Attr, signature_of
from purine.registry.spec import Settings, Shape

__all__ = [
    "Shard",
    "drawn_as",
    "fill",
    "filler_of_whole",
    "filler_problems",
    "shard_of",
    "with_name",
]

Variance = Literal["fan_in", "fan_out", "average"]
Draw = Callable[..., Tensor]
_SHARD = ("of", "whole", "axis", "spans")
_NAME = "name"


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a whole state a state is: `spans` are pairs (start, end) along `axis`."""

    of: str
    whole: tuple[int, ...]
    axis: int
    spans: tuple[tuple[int, int], ...]

    def filler(self, like: Filler) -> Filler:
        """The filler of the shard of a state that is filled by `like`."""
        return Filler(like.kind, {**like.attributes, **{key: getattr(self, key) for key in _SHARD}})

    def take(self, value: Tensor) -> Tensor:
        """The shard's own part of a value of the whole."""
        parts = [value.narrow(self.axis, start, end - start) for start, end in self.spans]
        return torch.cat(parts, self.axis)

    def put(self, value: Tensor, whole: Tensor) -> None:
        """Write the shard's own value to its part of the whole."""
        start = 0
        for low, high in self.spans:
            size = high - low
            whole.narrow(self.axis, low, size).copy_(value.narrow(self.axis, start, size))
            start += size


def shard_of(filler: Filler) -> Shard | None:
    """What a filler says of the part that its state is, or None for one that stands for itself."""
    settings: Settings = filler.attributes
    return Shard(**{key: settings[key] for key in _SHARD}) if "of" in settings else None


def with_name(filler: Filler, name: str) -> Filler:
    """The filler that draws for any state what `filler` draws for the state of this name."""
    return Filler(filler.kind, {**filler.attributes, _NAME: name})


def drawn_as(filler: Filler) -> str | None:
    """The name of the state whose value a filler draws, if it is another one's."""
    name = filler.attributes.get(_NAME)
    return name if isinstance(name, str) else None


@checked
def fill(filler: Filler, shape: Sequence[int], dtype: str, *, seed: int, name: str) -> Tensor:
    """The first value of the state `name`, for a blob of the given shape and dtype.

    >>> fill(Filler("constant", {"value": 1.5}), (2,), "float32", seed=0, name="bias")
    tensor([1.5000, 1.5000])
    >>> first = fill(Filler("xavier"), (4, 3), "float64", seed=0, name="fc/weight")
    >>> bool((first == fill(Filler("xavier"), (4, 3), "float64", seed=0, name="fc/weight")).all())
    True
    """
    blob = Blob(name, tuple(shape), dtype)
    verify(Graph({name: blob}))
    for problem in _problems(filler, blob, None):
        raise problem
    shard = shard_of(filler)
    if shard is not None:
        whole = fill(filler_of_whole(filler), shard.whole, dtype, seed=seed, name=shard.of)
        return shard.take(whole)
    key = hashlib.sha256(f"{seed}\n{drawn_as(filler) or name}".encode()).digest()
    generator = Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
    settings = {key: value for key, value in filler.attributes.items() if key != _NAME}
    value = _FILLERS[filler.kind](tuple(shape), generator, **settings)
    return value.to(dtype_of(dtype)).contiguous()


@checked
def filler_problems(state: State, blob: Blob) -> Iterator[KindError]:
    """What is wrong with the filler of a state, given the blob that the state is read from.

    >>> wrong = State("w", "w", Filler("xavir"))
    >>> [problem.expected for problem in filler_problems(wrong, Blob("w", (2,)))]
    ['one of bilinear, constant, gaussian, msra, positive_unitball, uniform, xavier']
    """
    yield from _problems(state.filler, blob, state.where or blob.where)


def _constant(shape: Shape, generator: Generator, *, value: float = 0.0) -> Tensor:
    exact = torch.float64 if isinstance(value, float) else torch.int64
    return torch.tensor(value, dtype=exact).expand(shape)


def _uniform(shape: Shape, generator: Generator, *, min: float = 0.0, max: float = 1.0) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (max - min) + min


def _gaussian(
    shape: Shape,
    generator: Generator,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    sparse: int | None = None,
) -> Tensor:
    """With `sparse`, all but that many values of each column are 0 on average."""
    value = torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean
    if sparse is None:
        return value
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.where(drawn * shape[0] < sparse, value, torch.zeros_like(value))


def _xavier(shape: Shape, generator: Generator, *, variance: Variance = "fan_in") -> Tensor:
    limit = math.sqrt(3 / _fan(shape, variance))
    return _uniform(shape, generator, min=-limit, max=limit)


def _msra(shape: Shape, generator: Generator, *, variance: Variance = "fan_in") -> Tensor:
    return _gaussian(shape, generator, std=math.sqrt(2 / _fan(shape, variance)))


def _positive_unitball(shape: Shape, generator: Generator) -> Tensor:
    """Positive values, which add up to 1 for each index of the first dimension."""
    value = torch.rand(shape, generator=generator, dtype=torch.float64)
    return value / value.flatten(1).sum(1).reshape(-1, *[1] * (len(shape) - 1))


def _bilinear(shape: Shape, generator: Generator) -> Tensor:
    """The kernel with which a transposed convolution interpolates between pixels."""
    size = shape[-1]
    factor = (size + 1) // 2
    centre = factor - 0.5 * (1 + factor % 2)
    line = 1 - (torch.arange(size, dtype=torch.float64) - centre).abs() / factor
    return torch.outer(line, line).expand(shape).clone()


_FILLERS: dict[str, Draw] = {
    draw.__name__.removeprefix("_"): draw
    for draw in (_bilinear, _constant, _gaussian, _msra, _positive_unitball, _uniform, _xavier)
}
_SETTINGS = {
    kind: {**signature_of(draw)[-1], _NAME: Attr(str, "")} for kind, draw in _FILLERS.items()
}


def _fan(shape: Shape, variance: Variance) -> float:
    """The fan as Caffe counts it, which takes a missing dimension for 1."""
    count = math.prod(shape)
    fan_in = count / shape[0] if shape and shape[0] else 1.0
    fan_out = count / shape[1] if len(shape) > 1 and shape[1] else float(count)
    fans = {"fan_in": fan_in, "fan_out": fan_out, "average": (fan_in + fan_out) / 2}
    return max(fans[variance], 1.0)


def filler_of_whole(filler: Filler) -> Filler:
    """The filler without what it says of a shard."""
    settings = {key: value for key, value in filler.attributes.items() if key not in _SHARD}
    return Filler(filler.kind, settings)


def _is_shard(filler: Filler, shape: tuple[int, ...] | None) -> bool:
    """Whether all settings of a shard are there and describe a blob of this shape."""
    given, hints = filler.attributes, typing.get_type_hints(Shard)
    if not all(key in given and conforms(given[key], hints[key]) for key in _SHARD):
        return False
    shard = shard_of(filler)
    assert shard is not None
    if not 0 <= shard.axis < len(shard.whole):
        return False
    if any(not 0 <= start < end <= shard.whole[shard.axis] for start, end in shard.spans):
        return False
    extent = sum(end - start for start, end in shard.spans)
    own = (*shard.whole[: shard.axis], extent, *shard.whole[shard.axis + 1 :])
    return shape is None or shape == own


def _problems(filler: Filler, blob: Blob, where: str | None) -> Iterator[KindError]:
    def problem(what: str, expected: str, found: str, remedy: str) -> KindError:
        what = f"the filler of blob {blob.name!r} at {blob.location} {what}"
        facts = {"expected": expected, "found": found, "remedy": remedy}
        return KindError(what, where=where, blob=blob, **facts)

    if not filler.attributes.keys().isdisjoint(_SHARD):
        if not _is_shard(filler, blob.shape):
            yield problem(
                "does not describe a shard",
                "of, whole, axis and spans, which together give the size of the blob",
                f"size {list(blob.shape or ())}, "
                + ", ".join(f"{key} = {filler.attributes.get(key)!r}" for key in _SHARD),
                "let purine.parallel.shard make the filler",
            )
            return
        filler = filler_of_whole(filler)
    if filler.kind not in _FILLERS:
        what, remedy = f"is of unknown kind {filler.kind!r}", f"change the filler of {blob.name!r}"
        yield problem(what, f"one of {', '.join(_FILLERS)}", repr(filler.kind), remedy)
        return
    known, fits = _SETTINGS[filler.kind], True
    for key, value in filler.attributes.items():
        if key not in known:
            fits = False
            what = f"({filler.kind}) has unknown setting {key!r}"
            expected = f"settings of {filler.kind}: {', '.join(known) or 'none'}"
            remedy = f"remove {key!r} or change the kind of filler"
            yield problem(what, expected, f"{key} = {value!r}", remedy)
        elif not conforms(value, known[key].annotation):
            fits = False
            expected = f"{key} to be {describe(known[key].annotation)}"
            what, given = f"has {key} = {value!r}", f"{type(value).__name__} {value!r}"
            yield problem(f"({filler.kind}) {what}", expected, given, f"change {key}")
    if fits:
        settings = {key: attr.default for key, attr in known.items()} | dict(filler.attributes)
        what, remedy = f"({filler.kind}) does not fit", "change the filler or the blob"
        for expected, found in _disagreements(filler.kind, settings, blob):
            yield problem(what, expected, found, remedy)


def _disagreements(kind: str, settings: Settings, blob: Blob) -> Iterator[tuple[str, str]]:
    """Settings out of range, and blobs that a filler cannot fill, as (expected, found)."""
    real = blob.dtype.startswith(("float", "bfloat"))
    if not real and kind != "constant":
        yield f"a constant filler for a blob of {blob.dtype}", kind
    elif not real and settings["value"] != int(settings["value"]):
        yield f"a whole number for a blob of {blob.dtype}", f"value = {settings['value']}"
    if kind == "uniform" and settings["min"] > settings["max"]:
        yield "min to be at most max", f"min = {settings['min']}, max = {settings['max']}"
    if kind == "gaussian" and settings["std"] < 0:
        yield "std to be at least 0", f"std = {settings['std']}"
    shape = blob.shape
    sparse = settings.get("sparse")
    if sparse is not None and (sparse < 0 or not shape):
        yield "sparse to be at least 0, for a blob with dimensions", f"sparse = {sparse}"
    if kind == "positive_unitball" and shape is not None and len(shape) < 2:
        yield "a blob of 2 dimensions or more", f"size {list(shape)}"
    if kind == "bilinear" and shape is not None and (len(shape) != 4 or shape[2] != shape[3]):
        yield "a blob of 4 dimensions with a square kernel", f"size {list(shape)}"
