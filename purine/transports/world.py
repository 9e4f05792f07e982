"""The hosts of a job: who they are, and how they agree before and between steps.

A host is a process that drives all devices of its machine.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TypeAlias

from torch import Tensor

from purine import errors
from purine.errors import ConfigError, HostLostError, PurineError, StallError
from purine.graph import Graph, to_text
from purine.graph.names import origin_of
from purine.lowering.hosts import channels_of, hosts_of, part_of
from purine.lowering.together import Group
from purine.transports.base import Transport
from purine.transports.clock import Reading
from purine.transports.communicator import Communicator

__all__ = ["Texts", "Values", "World", "difference", "host_lost", "unheard", "value_lost"]


Texts: TypeAlias = dict[str, str]
"""A text of each host, by its name."""
Values: TypeAlias = Mapping[str, Tensor]
"""Values of states, by their names."""


def unheard() -> Mapping[str, str]:
    """The lost hosts that are known while no run receives heartbeats: none."""
    return {}


class World(ABC):
    """The hosts of a job as seen from one of them.

    All hosts make the same calls in the same order.
    """

    host: str
    """The name of this host."""
    hosts: tuple[str, ...]
    """The names of all hosts, in the order of their numbers."""

    def __init__(self) -> None:
        self.now: Callable[[], int] = perf_counter_ns
        """The clock of this host, in nanoseconds: that of its traces."""
        self.losses: Callable[[], Mapping[str, str]] = unheard
        """The hosts that are lost, and why. A run sets it while its lanes hear from the others."""

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if host != self.host)

    @property
    def first(self) -> bool:
        """Whether this is the first host, which shows progress and writes files."""
        return self.host == self.hosts[0]

    @abstractmethod
    def transport(self) -> Transport:
        """A new transport between the hosts, to be opened by all."""

    @abstractmethod
    def communicators(self, groups: Sequence[Group]) -> list[Communicator | None]:
        """New communicators, one for each group of hosts; None for a group without this host."""

    @abstractmethod
    def all_gather(self, text: str, *, op: str = "compare", blob: str = "settings") -> Texts:
        """The text of each host, on all of them; `op` and `blob` name what waits for it.

        A host that is alive is waited for as long as it takes.
        """

    def compare(self, facts: Mapping[str, str]) -> None:
        """Raise `ConfigError` on all hosts if two of them differ, naming the first difference."""
        texts = self.all_gather(json.dumps(dict(facts)))
        given: dict[str, dict[str, str]] = {host: json.loads(texts[host]) for host in self.hosts}
        first, *others = self.hosts
        for name in dict.fromkeys(name for own in given.values() for name in own):
            for other in others:
                one, two = (given[host].get(name, "nothing") for host in (first, other))
                if one != two:
                    raise difference(name, {first: one, other: two})

    def compare_step(self, step: Graph) -> None:
        """Raise `ConfigError` on all hosts if two of them have different steps.

        The error shows for both the first node that the other one does not have. Steps of which
        each host has built only its own part are equal if replicas and updates are, and if hosts
        send the values that others expect.
        """
        digests = self.all_gather(step.digest)
        first, *others = self.hosts
        other = next((host for host in others if digests[host] != digests[first]), None)
        if other is None:
            return
        templates = self.all_gather(_hashed(_template(step)))
        if len(set(templates.values())) == 1 and self.host in hosts_of(step):
            exchanged = self.all_gather(json.dumps(_exchanged(step, self.host)))
            fits = {host: json.loads(text) for host, text in exchanged.items()}
            if all(
                fits[one].get(two) == fits[two].get(one) for one in self.hosts for two in self.hosts
            ):
                return
        lines = to_text(step).splitlines()
        hashes = [hashlib.sha256(line.encode()).hexdigest()[:16] for line in lines]
        known = self.all_gather(" ".join(hashes))
        against = set(known[other if self.host == first else first].split())
        own = (line for line, hashed in zip(lines, hashes, strict=True) if hashed not in against)
        nodes = self.all_gather(next(own, "nothing more"))
        raise difference("step", {host: nodes[host] for host in (first, other)})

    def jointly(self, work: Callable[[], str], *, op: str) -> dict[str, str]:
        """The result of `work` on each host. An error on one of them is raised on all.

        After it all hosts continue, or none, so no host waits for one that failed.
        """
        failure: PurineError | None = None
        try:
            report = {"done": work()}
        except HostLostError:  # there is nobody to tell
            raise
        except PurineError as error:
            failure = error
            report = {"class": type(error).__name__, **_fields(error)}
        texts = self.all_gather(json.dumps(report), op=op, blob="states")
        reports: dict[str, dict[str, str]] = {host: json.loads(texts[host]) for host in self.hosts}
        for host, told in reports.items():
            if "done" not in told:
                raise _told(host, told) from failure
        return {host: told["done"] for host, told in reports.items()}

    @abstractmethod
    def gather(self, graph: Graph, values: Values, names: Collection[str]) -> dict[str, Tensor]:
        """The values of the named states of a step, each from the host where it is."""

    @abstractmethod
    def collect(self, text: str) -> list[str]:
        """The texts of all hosts in their order, on the first host; the others get none.

        Texts may be large.
        """

    @abstractmethod
    def clock(self) -> Reading:
        """The offset of the clock of the first host from that of this one."""

    @abstractmethod
    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        """Whether all hosts stop at this iteration, because one of them `wanted` it before.

        Hosts are at different iterations, at most `ahead` apart. The first that wants to stop names
        an iteration that no host has reached, and each checks for that before every iteration.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all hosts are here."""

    @abstractmethod
    def close(self) -> None:
        """Leave."""


def host_lost(
    host: str, why: str, *, op: str, blob: str, iteration: int | None = None
) -> HostLostError:
    """The error of an op here that waits for a blob of a host that is gone."""
    when = "" if iteration is None else f" of iteration {iteration}"
    return HostLostError(
        f"host {host!r} is lost: {why}",
        op=op,
        blob=blob,
        expected=f"blob {blob!r}{when}, for which op {op!r} waits",
        found=f"no host {host!r}",
        remedy="start the job again with --resume: the last checkpoint is intact",
    )


def value_lost(
    host: str, sent: int, arrived: int, *, op: str, blob: str, iteration: int
) -> StallError:
    """The error of an op here that waits for a blob that was sent and has not arrived."""
    return StallError(
        f"a value from host {host!r} is lost: it sent {sent}, and {arrived} have arrived",
        op=op,
        blob=blob,
        expected=f"blob {blob!r} of iteration {iteration}, for which op {op!r} waits",
        found=f"host {host!r}, which is alive",
        remedy="start the job again with --resume: the last checkpoint is intact; if it happens "
        "again, try another transport",
    )


def _hashed(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _template(step: Graph) -> list[str]:
    """The part of a step that all hosts share: states, and the ops of a replica and of updates."""
    lines = {f"{state.read} {state.filler} {state.lr_mult}" for state in step.states.values()}
    for op in step.ops.values():
        origin = origin_of(op)
        if origin.role not in ("copy", "reduce"):
            settings = {key: value for key, value in op.attributes.items() if key != "offset"}
            types = [step.blobs[name].type_text for name in op.outputs if name]
            lines.add(f"{op.name.removeprefix(origin.parts)} {op.kind} {settings} {types}")
    return sorted(lines)


def _exchanged(step: Graph, host: str) -> dict[str, str]:
    """For each peer a hash of the values between a host and that peer."""
    incoming, outgoing = channels_of(part_of(step, host), host)
    lines: dict[str, list[str]] = {}
    for channel in (*incoming, *outgoing):
        peer = channel.target if channel.source == host else channel.source
        form = "signal" if channel.blob is None else channel.blob.type_text
        text = f"{channel.source} {channel.target} {channel.number} {form}"
        lines.setdefault(peer, []).append(f"{text} {channel.op.removeprefix('put/')}")
    return {peer: _hashed(sorted(texts)) for peer, texts in lines.items()}


def difference(name: str, found: Mapping[str, str]) -> ConfigError:
    """The error for two hosts that were started with different jobs."""
    one, other = found
    return ConfigError(
        f"{one} and {other} differ in their {name}",
        expected=f"one {name} on all hosts",
        found=", ".join(f"{value} on {host}" for host, value in found.items()),
        remedy="start all hosts with the same job, code and data",
    )


_FIELDS = ("what", "expected", "found", "remedy", "where", "op", "blob", "location")


def _fields(error: PurineError) -> dict[str, str]:
    """The parts of an error, as a text for another host."""
    return {name: value for name in _FIELDS if (value := getattr(error, name)) is not None}


def _told(host: str, report: Mapping[str, str]) -> PurineError:
    kind = getattr(errors, report["class"], PurineError)
    fields = {name: report[name] for name in _FIELDS if name in report}
    error = kind(**{**fields, "what": f"{host}: {report['what']}"})
    assert isinstance(error, PurineError)
    return error
