"""A world that hosts join and leave while it runs: a server, and workers.

The server keeps the store where all meet. A worker asks there for a *seat*. The server answers with
its name, its first iteration, and the number of the *link*, the connection between the two. Both
then open a transport of their own, which ends with the worker. Only these two hosts wait for each
other, and the number of workers is not known in advance.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from time import monotonic, sleep

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.lowering.together import Group
from purine.nearest import unknown_name
from purine.transports import gpi2
from purine.transports.base import Transport, own_address
from purine.transports.clock import ROUNDS, Reading, estimate
from purine.transports.communicator import Communicator
from purine.transports.gaspi import GaspiTransport
from purine.transports.ledger import Ledger
from purine.transports.mpi import MpiTransport
from purine.transports.shm import ShmTransport
from purine.transports.tcp import TcpTransport
from purine.transports.torchdist import TorchTransport
from purine.transports.world import Texts, Values, World, difference

__all__ = ["LINKS", "OpenWorld", "Question"]

LINKS = ("shm", "tcp", "torchdist")
"""The transports by which a host can join at any time."""
_ENGINES = ("gaspi", "mpi")
"""Those that connect hosts which were started together."""
_PATIENCE = timedelta(seconds=60)
_BUILDS = 300.0
"""Seconds that a worker with a seat has to build its part."""
_NEVER = timedelta(days=365)
"""A receive may wait as long as it takes: hosts tell each other that they are alive."""
_LOOK = 0.05
"""Seconds between two looks for an answer."""
_OVER = "over"
_CLOSED = "closed"
_FACTS = "facts"
_LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Question:
    """The request of a host that wants to join: the `link` that it asks for, a particular seat if
    it wants one, the transport, its number among the hosts that were started together, and whether
    it will ask for the time, since it records a trace."""

    link: int
    seat: int | None
    transport: str
    rank: int = 0
    traced: bool = False


class OpenWorld(World):
    """The hosts as seen from one of them; created by `serving` or `joining`."""

    def __init__(self, store: TCPStore, host: str, server: str, address: str) -> None:
        super().__init__()
        self._store, self.host, self.server, self.address = store, host, server, address
        self.hosts = (host,) if host == server else (server, host)
        self.begin = 0
        """The iteration at which the worker of this host begins."""
        self._question: Question | None = None
        self._facts: dict[str, str] = {}
        self.ledger = Ledger(store)
        self.met: World | None = None
        """The world in which the hosts met first, whose store may be in this process."""

    @classmethod
    def serving(cls, address: str = "127.0.0.1", port: int = 0, host: str = "host0") -> OpenWorld:
        """The world of the server at this address; port 0 takes any free port."""
        return cls(_connected(address, port, master=True), host, host, address)

    @classmethod
    def joining(
        cls, address: str, port: int, *, transport: str = "tcp", seat: int | None = None
    ) -> OpenWorld:
        """The world of a worker that the server has given a seat; it waits for a free one."""
        world = cls.asking(address, port, transport=transport, seat=seat)
        if world is None:
            what, expected = "the job is over", "a running job"
            raise RunError(what, expected, "one that ends", "start another one")
        return world

    @classmethod
    def asking(
        cls,
        address: str,
        port: int,
        *,
        transport: str = "tcp",
        seat: int | None = None,
        rank: int = 0,
        traced: bool = False,
    ) -> OpenWorld | None:
        """The same, or None if the job is over. `rank` is that of a host that was started together
        with the server. Only a `traced` one knows how its clock differs from that of the server."""
        if transport not in LINKS and not (rank and transport in _ENGINES):
            raise unknown_name(ConfigError, "transport of workers that join", transport, LINKS)
        store = _connected(address, port, master=False)
        link = int(store.add("asked", 1))
        question = Question(link, seat, transport, rank, traced)
        store.set(f"question{link}", json.dumps(asdict(question)))
        key = f"answer{link}"
        try:
            while not (store.check([key]) or store.check([_OVER])):
                sleep(_LOOK)
            if not store.check([key]):
                return None
            answer = json.loads(store.get(key))
        except RuntimeError as error:
            found, remedy = "none: it has ended", "start the server, and then its workers"
            raise RunError("the server gave no answer", "a seat", found, remedy) from error
        if "refused" in answer:
            expected, remedy = "a free seat", "join a job with room for another worker"
            raise RunError("the server has no seat for this worker", expected, "none", remedy)
        world = cls(store, answer["host"], answer["server"], own_address(address, port))
        world.begin = answer["begin"]
        world._question = question
        return world

    @classmethod
    def visiting(cls, address: str, port: int) -> OpenWorld:
        """The world of a process that sends messages to the hosts and does not train."""
        return cls(_connected(address, port, master=False), "visitor", "server", address)

    @property
    def port(self) -> int:
        """The port of the store."""
        return int(self._store.port)

    @property
    def serves(self) -> bool:
        """Whether this host is the server."""
        return self._question is None

    @property
    def number(self) -> int:
        """The number of this worker's link; 0 at the server."""
        return 0 if self._question is None else self._question.link

    @property
    def told(self) -> bool:
        """Whether the server has ended the job, or told this host to leave; fails if the server is
        gone."""
        keys = [_OVER] if self._question is None else [_OVER, f"{_LEAVE}{self._question.link}"]
        return any(self._store.check([key]) for key in keys)

    @property
    def over(self) -> bool:
        """Whether this host was told to leave, or the server is gone."""
        try:
            return self.told
        except (RuntimeError, dist.DistNetworkError):
            return True

    def end(self) -> None:
        """Tell all workers that the job is over."""
        self._store.set(_OVER, "1")

    def dismiss(self, link: int) -> None:
        """Tell the worker of a link to leave."""
        self._store.set(f"{_LEAVE}{link}", "1")

    def questions(self, asked: int) -> list[Question]:
        """The requests of hosts that want to join, from number `asked` + 1 on."""
        new: list[Question] = []
        while self._store.check([key := f"question{asked + len(new) + 1}"]):
            new.append(Question(**json.loads(self._store.get(key))))
        return new

    def answer(self, question: Question, *, host: str, begin: int) -> None:
        """Give a host a seat, with its name from now on."""
        told = {"host": host, "server": self.server, "begin": begin}
        self._store.set(f"answer{question.link}", json.dumps(told))

    def refuse(self, question: Question) -> None:
        """Tell a host that there is no seat for it."""
        self._store.set(f"answer{question.link}", json.dumps({"refused": True}))

    def confirmed(self, question: Question, digest: str, still: Callable[[], bool]) -> bool:
        """Wait until the worker of a link is ready to connect. False if it does not come, or if it
        has another graph; then it is told so."""
        key, ends = f"ready{question.link}", monotonic() + _BUILDS
        while not self._store.check([key]):
            if monotonic() > ends or not still():
                return False
            sleep(_LOOK)
        fits = self._store.get(key).decode() == digest
        self._store.set(f"go{question.link}", "1" if fits else digest)
        return fits

    def ready(self, digest: str) -> None:
        """Report to the server that this host has built its graph; raises if the server has
        another."""
        assert self._question is not None
        link = self._question.link
        try:
            self._store.set(f"ready{link}", digest)
            told = self._store.get(f"go{link}").decode()
        except RuntimeError as error:
            what, expected = "the server no longer waits for this worker", "a running job"
            raise RunError(what, expected, "no answer", "join a job that has not ended") from error
        if told != "1":
            raise ConfigError(
                "the server has another graph than this worker",
                expected=f"digest {told[:12]}",
                found=f"digest {digest[:12]}",
                remedy="start all hosts with the same net, data and scheme",
            )

    def link(self, question: Question | None = None, peer: str | None = None) -> Transport:
        """A new transport between the server and a worker, to be opened by both: at the server
        that of a question, with the worker `peer`."""
        asked = question or self._question
        assert asked is not None
        if asked.transport == "mpi":
            return MpiTransport({self.server: 0, peer or self.host: asked.rank}, link=asked.link)
        connection = self._store.clone()  # type: ignore[attr-defined]  # missing in the stubs
        store = PrefixStore(f"link{asked.link}", connection)
        if asked.transport == "torchdist":
            ranks = {self.server: 0, (peer or self.host): 1}
            group = dist.ProcessGroupGloo(store, ranks[self.host], 2, _NEVER)
            return TorchTransport(ranks, group)  # type: ignore[arg-type]  # it can do as much
        if asked.transport == "gaspi":
            return GaspiTransport(self.host, store, gpi2.joined())
        key = "secret"
        if self.host == self.server:
            store.set(key, os.urandom(32).hex())
        secret = hashlib.sha256(store.get(key)).digest()
        if asked.transport == "shm":
            return ShmTransport(self.host, store, secret)
        return TcpTransport(self.host, store, secret, self.address)

    def transport(self) -> Transport:
        raise AssertionError("hosts that join and leave have a connection each")

    def communicators(self, groups: Sequence[Group]) -> list[Communicator | None]:
        return [None for _ in groups]

    def all_gather(self, text: str, *, op: str = "compare", blob: str = "settings") -> Texts:
        return dict.fromkeys(self.hosts, text)

    def compare(self, facts: Mapping[str, str]) -> None:
        """Raise `ConfigError` at a worker that differs from the server."""
        if self._question is None:
            self._facts |= facts
            self._store.set(_FACTS, json.dumps(self._facts))
            return
        told = json.loads(self._store.get(_FACTS))
        for name, value in facts.items():
            if told.get(name, value) != value:
                raise difference(name, {self.server: told[name], self.host: value})

    def compare_step(self, step: Graph) -> None:
        """Both ends of a link compare their graphs when it is opened."""

    def gather(self, graph: Graph, values: Values, names: Collection[str]) -> dict[str, Tensor]:
        return {name: values[name] for name in names if name in values}

    def collect(self, text: str) -> list[str]:
        return [text]

    @property
    def traced(self) -> bool:
        """Whether this is a worker that brings the server a trace."""
        return self._question is not None and self._question.traced

    def clock(self) -> Reading:
        """How far the clock of the server is ahead; a worker that is not traced does not know."""
        if not self.traced:
            return Reading(self.now(), 0, 0)
        store, numbers = self._clock_of(self.number), count()

        def ask() -> int:
            number = next(numbers)
            store.set(f"asked{number}", "")
            return int(store.get(f"told{number}"))

        return estimate(ask, self.now)

    def tell_time(self, question: Question) -> None:
        """Answer a worker that asks for the time of the server; it has just come."""
        store = self._clock_of(question.link)
        for number in range(ROUNDS):
            store.wait([f"asked{number}"])
            store.set(f"told{number}", str(self.now()))

    def _clock_of(self, link: int) -> PrefixStore:
        """A connection of its own: a call that waits holds up all others on the same one."""
        connection = self._store.clone()  # type: ignore[attr-defined]  # missing in the stubs
        return PrefixStore(f"clock{link}", connection)

    def stops(self, iteration: int, *, wanted: bool, ahead: int) -> bool:
        return wanted or self.over

    def barrier(self) -> None:
        """Does nothing: no host waits for others."""

    def close(self) -> None:
        """Leave. A process of an MPI job stays until the server leaves, since MPI ends it
        otherwise.

        The store ends with the process of the server.
        """
        if self._question is None:
            self._store.set(_CLOSED, "1")
            sleep(0.0 if self.met is None else 4 * _LOOK)  # others may still look for an answer
        elif self._question.transport == "mpi":
            with suppress(dist.DistError):
                while not self._store.check([_CLOSED]):
                    sleep(_LOOK)


def _connected(address: str, port: int, *, master: bool) -> TCPStore:
    try:
        return TCPStore(address, port, is_master=master, timeout=_PATIENCE, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        what = "the server cannot be reached" if not master else "the server cannot listen there"
        found = " ".join(str(error).split())[:200]
        expected = f"a server at {address}:{port}" if not master else f"{address}:{port} to be free"
        raise RunError(what, expected, found, "check the address and the port") from error
