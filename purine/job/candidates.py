"""The schemes that a plan chooses from: those that divide the devices and the batch, and variants.

A candidate is a scheme on some of the given devices. Its estimate comes from the cost model:
compute divided by the busy part of the pipeline, and bytes over the links of a host. It decides
which candidates are simulated, and in which order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import prod
from typing import Literal, TypeAlias

from purine.errors import ConfigError
from purine.parallel import Scheme
from purine.placement.devices import as_locations

Compression: TypeAlias = Literal["fp16", "int8"]

__all__ = ["ALLOWED", "Candidate", "Work", "candidates", "check_allowed", "spans"]

ALLOWED = ("compression", "staleness")
"""What changes the numbers of training, and is therefore taken only where it is allowed."""

_MANY = 64
_MOST = 4096
"""Replicas of a scheme."""
_COMPRESSIONS: Mapping[Compression, float] = {"fp16": 0.5, "int8": 0.26}
"""What compression leaves of the bytes of gradients."""


@dataclass(frozen=True)
class Candidate:
    """A scheme on some devices, and the compression between hosts."""

    devices: tuple[str, ...]
    scheme: Scheme
    compress: Compression | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the devices, in their order."""
        return _hosts_of(self.devices)

    @property
    def plain(self) -> bool:
        """Whether it is one replica on each device, and nothing else."""
        data = self.scheme.data
        alike = data == len(self.devices) and self.scheme == Scheme(data=data)
        return alike and self.compress is None

    def __str__(self) -> str:
        text = f"{self.scheme} on {spans(self.devices)}"
        return text if self.compress is None else f"{text}, gradients in {self.compress}"


@cache
def _hosts_of(devices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(at.host for at in as_locations(devices)))


@dataclass(frozen=True)
class Work:
    """The work of a step: seconds of its ops on one device, and bytes of its parameters.

    `rate` are the bytes per second of a link of a host. `activations` are the bytes of all blobs of
    the net, and `layers` its ops.
    """

    seconds: float
    parameters: int
    rate: float = float("inf")
    accumulate: int = 1
    activations: float = 0.0
    layers: int = 1

    def compute(self, candidate: Candidate) -> float:
        """Seconds of compute of each device if none ever waits: a lower bound for any scheme."""
        return self.seconds / candidate.scheme.group

    def estimate(self, candidate: Candidate) -> float:
        """The estimated time of a step."""
        scheme, hosts = candidate.scheme, len(candidate.hosts)
        compute = self.compute(candidate)
        if scheme.pipeline > 1:
            compute /= 1 - scheme.idle(self.accumulate)
        if scheme.recompute is not None:
            compute *= 4 / 3
        moved = float(self.parameters)
        if candidate.compress is not None:
            moved *= _COMPRESSIONS[candidate.compress]
        each = len(candidate.devices) / hosts
        held = min(1.0, each / (scheme.pipeline * scheme.model))
        crosses = scheme.data > 1 and hosts > 1
        moved *= 2 * held * (1 - 1 / hosts) if crosses else 0.0
        own = self.activations / scheme.data
        if hosts > 1 and scheme.model > each:
            moved += 2 * own  # activations are gathered over hosts
        elif hosts > 1 and scheme.pipeline * scheme.model > each:
            moved += 2 * own / self.layers
        return compute + moved / self.rate / 2


def candidates(
    devices: Sequence[str],
    batch: int,
    *,
    allow: Collection[str] = (),
    shared: bool = False,
    layers: int = 1 << 30,
    inner: bool = True,
) -> Iterator[Candidate]:
    """The candidates for some devices and a batch, plain data parallel first.

    Of more than 64 devices a replica has at most 32, as many as can be simulated.

    `allow` names what may change the numbers (see `ALLOWED`). With `shared`, hosts share memory.
    `layers` are those of the net, which a pipeline has to be cut into; `inner` tells whether it has
    inner products, which `hybrid` cuts.

    >>> found = list(candidates(["cpu:0", "cpu:1"], 8))
    >>> [str(one.scheme) for one in found][:3]
    ['data=2', 'data=2,micro=2', 'pipeline=2,schedule=1f1b,micro=4']
    """
    every = tuple(devices)
    hosts = len(dict.fromkeys(at.host for at in as_locations(every)))
    for count in _counts(len(every), hosts):
        for scheme in _schemes(count, layers, whole=count == len(every)):
            if batch % prod(scheme.parts.values()) or (scheme.hybrid and not inner):
                continue
            yield from _variants(Candidate(every[:count], scheme), hosts, allow, shared)


def _counts(most: int, hosts: int) -> list[int]:
    """The numbers of devices to use: all, or on one host also half of them, or one."""
    if hosts > 1:
        return [most]
    return sorted({most, *([most // 2] if most > 3 else []), 1}, reverse=True)


def _schemes(count: int, layers: int, *, whole: bool) -> Iterator[Scheme]:
    """Schemes for this number of devices; for a part of the devices only replicas."""
    if count <= _MOST:
        yield Scheme(data=count)
    if not whole:
        return
    if 1 < count <= _MOST:
        yield Scheme(data=count, micro=2)
    for data, pipeline, model in _products(count):
        if pipeline == 1 and model > 1:
            yield Scheme(data=data, model=model)
            yield Scheme(data=data, model=model, hybrid=True)
        elif pipeline > 1 and pipeline <= layers:
            yield from _pipelines(Scheme(data=data, pipeline=pipeline, model=model), layers)


def _products(count: int) -> Iterator[tuple[int, int, int]]:
    for model in _divisors(count):
        for pipeline in _divisors(count // model):
            few = count <= _MANY or model * pipeline <= _MANY // 2
            if few and model <= 8 and pipeline <= 16 and count // model // pipeline <= _MOST:
                yield count // model // pipeline, pipeline, model


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _pipelines(scheme: Scheme, layers: int) -> Iterator[Scheme]:
    """A pipeline with its schedules and micro-batches."""
    for times in (2, 1, 4) if scheme.devices <= _MANY else (2,):
        micro = times * scheme.pipeline
        for schedule in ("1f1b", "zero-bubble", "gpipe"):
            if schedule != "gpipe" or times == 1:
                yield replace(scheme, schedule=schedule, micro=micro)
        if 2 * scheme.pipeline <= layers:
            yield replace(scheme, schedule="interleaved", chunks=2, micro=micro)


def _variants(
    one: Candidate, hosts: int, allow: Collection[str], shared: bool
) -> Iterator[Candidate]:
    """A candidate with the different topologies and compressions between its hosts."""
    yield one
    if one.scheme.data == 1:
        return
    if "staleness" in allow and one.scheme.model == 1 and one.scheme.micro in (None, 1):
        workers = {"workers": one.scheme.data, "asynchronous": "ssp", "staleness": 2}
        inside = replace(one.scheme, data=1).settings
        yield replace(one, scheme=Scheme.of({**inside, **workers}))
    if hosts == 1:
        return
    for topology in ("tree", "ring", "native") if hosts > 2 else ("native",):
        yield replace(one, scheme=replace(one.scheme, topology=topology))
    if shared and one.scheme.pipeline == one.scheme.model == 1:
        yield replace(one, scheme=replace(one.scheme, shared=True))
    for method in _COMPRESSIONS if "compression" in allow else ():
        yield replace(one, compress=method)


def spans(devices: Sequence[str]) -> str:
    """Devices in the usual notation, with ranges for consecutive ones.

    >>> spans(["cpu:0", "cpu:1", "cpu:2"]), spans(["host0:cpu:0", "host1:cpu:0"])
    ('cpu:0-2', 'host0-1:cpu:0')
    """
    own = _joined([(name.rpartition(":")[0], int(name.rpartition(":")[2])) for name in devices])
    hosts: list[tuple[str, str, int]] = []
    for name in own:
        host, _, rest = name.partition(":")
        letters = host.rstrip("0123456789")
        if rest.count(":") and letters != host:
            hosts.append((letters, rest, int(host[len(letters) :])))
        else:
            return ",".join(own)
    texts = []
    for (letters, rest), members in groupby(hosts, key=lambda item: item[:2]):
        numbers = [number for *_, number in members]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return ",".join(own)
        last = f"-{numbers[-1]}" if len(numbers) > 1 else ""
        texts.append(f"{letters}{numbers[0]}{last}:{rest}")
    return ",".join(texts)


def _joined(devices: Sequence[tuple[str, int]]) -> list[str]:
    """Devices with consecutive numbers as one range."""
    texts: list[str] = []
    start = 0
    for k in range(1, len(devices) + 1):
        name, number = devices[k - 1]
        if k == len(devices) or devices[k] != (name, number + 1):
            first = devices[start][1]
            texts.append(f"{name}:{first}" + (f"-{number}" if number > first else ""))
            start = k
    return texts


def check_allowed(names: Collection[str]) -> frozenset[str]:
    """Refuse what cannot be allowed."""
    for name in names:
        if name not in ALLOWED:
            expected = f"some of {', '.join(ALLOWED)}"
            raise ConfigError(f"--allow is {name!r}", expected, name, "leave it out")
    return frozenset(names)
