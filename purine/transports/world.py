"""The hosts of a job: who they are, and what they agree on before and between steps.

A host is a process that drives all devices of its machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from purine.errors import ConfigError, HostLostError, StallError
from purine.graph import Graph
from purine.transports.base import Transport

__all__ = ["World", "difference", "host_lost", "value_lost"]


class World(ABC):
    """The hosts of a job as one of them sees it.

    All hosts make the same calls in the same order.
    """

    host: str
    """The name of this host."""
    hosts: tuple[str, ...]
    """The names of all hosts, in the order of their numbers."""

    def __init__(self) -> None:
        self.losses: Callable[[], Mapping[str, str]] = dict
        """The hosts that are lost, and why. A run sets it: its exchange hears from the others."""

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if host != self.host)

    @property
    def first(self) -> bool:
        """Whether this host speaks for all: it shows progress and writes files."""
        return self.host == self.hosts[0]

    @abstractmethod
    def transport(self) -> Transport:
        """A new transport between the hosts, to be opened by all."""

    @abstractmethod
    def compare(self, facts: Mapping[str, str]) -> None:
        """Raise `ConfigError` where another host has another value, naming the first difference."""

    @abstractmethod
    def gather(self, graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values of all states of a step, each from the host that has it."""

    @abstractmethod
    def share(self, text: str) -> str:
        """The text that the first host gives, on all of them."""

    @abstractmethod
    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        """Whether all hosts stop at this iteration, because one of them `wanted` it before.

        Hosts are at different iterations, at most `ahead` apart. The first that wants to stop names
        an iteration that no host has reached, and each looks for that before every iteration.
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


def difference(
    host: str, peer: str, name: str, own: Mapping[str, str], others: Mapping[str, str]
) -> ConfigError:
    """The error for two hosts that were started with different jobs."""
    return ConfigError(
        f"{host} and {peer} differ in their {name}",
        expected=f"one {name} on all hosts",
        found=f"{own[name]} on {host}, {others.get(name)} on {peer}",
        remedy="start all hosts with the same job, code and data",
    )
