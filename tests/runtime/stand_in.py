"""GPUs that are not there: streams, events and captured graphs on the CPU, which tell of races.

Kernels run when they are enqueued, so values are right whatever streams wait for. What a GPU might
have done is found by clocks: each stream counts what is enqueued on it, an event carries what its
stream has seen, and who waits for the event has seen that too. Two accesses to the same memory, one
of them a write, neither of which has seen the other, are a race. So is a read of memory of another
stream that the allocator was not told of: it could be given away too early.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from purine.compile import fused as compiled
from purine.compile.fused import FusedKernel
from purine.graph import Op
from purine.kinds.fused import over_of
from purine.registry import aten
from purine.registry.lookup import lookup
from purine.runtime import fused_kernels, streams
from purine.runtime.streams import Streams
from purine.transports.inproc import InprocCommunicator

PATIENCE = 60.0
"""Seconds that somebody waits for GPUs that do nothing."""


class Agent:
    """The host or a stream: how far it is, and how far it has seen others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[Agent, int] = {self: 0}

    def see(self, seen: dict[Agent, int]) -> None:
        for agent, count in seen.items():
            self.seen[agent] = max(count, self.seen.get(agent, 0))

    def has_seen(self, access: tuple[Agent, int]) -> bool:
        return self.seen.get(access[0], -1) >= access[1]


@dataclass
class Memory:
    """What is known of a piece of memory: whose it is, and who wrote and read it last."""

    owner: Agent
    written: tuple[Agent, int]
    read: dict[Agent, int] = field(default_factory=dict)
    told: set[Agent] = field(default_factory=set)


class StandIn:
    """All that is known of the GPUs that are not there."""

    def __init__(self) -> None:
        self.host = Agent("host")
        self.streams: list[Stream] = []
        self.memory: dict[int, Memory] = {}
        self.pinned: list[Tensor] = []
        """Memory of the host that GPUs write to; kept, so that none lies where another was."""
        self.races: list[str] = []
        self.replays = 0
        self.captures: bool | Exception = True
        """Whether capturing works, or what it fails with."""
        self.going = threading.Event()
        """Whether GPUs do what is enqueued; otherwise whoever waits for them waits."""
        self.going.set()

    def known(self, key: int) -> Memory:
        return self.memory.setdefault(key, Memory(self.host, (self.host, 0)))

    def access(self, agent: Agent, reads: set[int], writes: set[int], what: str) -> None:
        agent.see(self.host.seen)
        agent.seen[agent] += 1
        now = agent.seen[agent]
        for key in reads | writes:
            memory = self.known(key)
            if not agent.has_seen(memory.written):
                writer = memory.written[0].name
                self.races.append(f"{what} on {agent.name} meets a write on {writer}")
            if self.host not in (agent, memory.owner) and agent not in {memory.owner, *memory.told}:
                self.races.append(f"{what} on {agent.name}: memory of {memory.owner.name}")
            if key in writes:
                for other, count in memory.read.items():
                    if not agent.has_seen((other, count)):
                        self.races.append(f"{what} on {agent.name} writes what {other.name} reads")
                memory.written, memory.read = (agent, now), {}
            else:
                memory.read[agent] = now

    def on_host(self, value: Tensor) -> bool:
        """Whether a value is in memory of the host."""
        key = key_of(value)
        own = key not in self.memory or self.memory[key].owner is self.host
        return own or any(key == key_of(room) for room in self.pinned)

    def fresh(self, agent: Agent, keys: set[int]) -> None:
        for key in keys:
            self.memory[key] = Memory(agent, (agent, agent.seen[agent]))


def key_of(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class Watch(TorchDispatchMode):
    """Tells the stand-in what the calls of torch read and write."""

    def __init__(self, world: StandIn, agent: Agent) -> None:
        super().__init__()
        self.world, self.agent = world, agent

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        schema = func._schema
        reads, writes = set(), set()
        for place, argument in enumerate(schema.arguments):
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            keys = {key_of(leaf) for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}
            written = argument.alias_info is not None and argument.alias_info.is_write
            (writes if written else reads).update(keys)
        made = {key_of(leaf) for leaf in tree_leaves(found) if isinstance(leaf, Tensor)}
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if not view:
            self.world.access(self.agent, reads - {0}, writes - {0}, func.__name__)
            self.world.fresh(self.agent, made - reads - writes - {0})
        return found


class Stream(Agent):
    def __init__(self, world: StandIn, device: torch.device) -> None:
        super().__init__(f"stream {len(world.streams)} of device {device.index}")
        self.world = world
        world.streams.append(self)

    def wait_event(self, event: Event) -> None:
        self.see(event.seen)


class Event:
    def __init__(self, world: StandIn) -> None:
        self.world = world
        self.seen: dict[Agent, int] = {}
        self.at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.seen = dict((stream or self.world.host).seen)
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.world.going.wait(PATIENCE)
        self.world.host.see(self.seen)

    def query(self) -> bool:
        return self.world.going.is_set()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


class Graph:
    """A captured graph: what is called again when it is replayed."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two GPUs, until the test ends; what is compiled there runs op by op."""
    world = StandIn()
    here = threading.local()
    """By thread the stream that it is on, and the graph that it captures."""

    @contextlib.contextmanager
    def on_stream(stream: Stream) -> Iterator[None]:
        outer, here.now = getattr(here, "now", None), stream
        try:
            with Watch(world, stream):
                yield
        finally:
            here.now = outer

    @contextlib.contextmanager
    def capture(graph: Graph, **_: object) -> Iterator[None]:
        if isinstance(world.captures, Exception):
            raise world.captures
        here.capturing = graph
        try:
            yield
        finally:
            here.capturing = None

    def one_by_one(op: Op) -> FusedKernel:
        kernel, over = lookup(op).bind_overwrite(op), dict(over_of(op))

        def called(*tensors: Tensor) -> list[Tensor]:
            found = kernel(*tensors)
            return [found] if isinstance(found, Tensor) else list(found)

        def called_or_captured(*tensors: Tensor) -> list[Tensor]:
            capturing: Graph | None = getattr(here, "capturing", None)
            if capturing is None:
                return called(*tensors)
            # Capturing computes nothing: results have places, and get values in replays.
            likely = called(*(value.clone() for value in tensors))
            rooms = [
                tensors[over[k]] if k in over else torch.zeros_like(value)
                for k, value in enumerate(likely)
            ]

            def again() -> None:
                world.replays += 1
                for k, value in enumerate(called(*tensors)):
                    if k not in over:
                        rooms[k].copy_(value)

            capturing.calls.append(again)
            return rooms

        return FusedKernel(called_or_captured, lambda _: None)

    def synchronize(*_: object) -> None:
        assert world.going.wait(PATIENCE)
        for stream in world.streams:
            world.host.see(stream.seen)

    own_run = Streams.run

    def watched_run(self: Streams, token: int) -> None:
        if self._stream[token % self.size] is not None:
            own_run(self, token)
            return
        self.wait(token)
        with Watch(world, world.host):
            self.buffers.run(token)
        iteration, index = divmod(token, self.size)
        program = self.buffers.program
        op = program.graph.ops[program.plan.ops[index]]
        if op.kind == "Data":  # read from memory that is not torch's
            world.fresh(world.host, {key_of(self.buffers.value(iteration, b)) for b in op.outputs})

    def enqueued(
        call: Callable[[InprocCommunicator, Tensor, str], None],
    ) -> Callable[[InprocCommunicator, Tensor, str], None]:
        """A stream reads and writes the line of a collective; what others bring has no watch."""

        def made(self: InprocCommunicator, line: Tensor, root: str) -> None:
            stream = getattr(here, "now", None)
            if stream is not None:
                reads = call is broadcast and root == self._host
                key = {key_of(line)}
                world.access(stream, key, set() if reads else key, call.__name__)
            with _disable_current_modes():
                call(self, line, root)

        return made

    empty = torch.empty

    def pinned_or_not(*sizes: Any, pin_memory: bool = False, **rest: Any) -> Tensor:
        made = empty(*sizes, **rest)
        if pin_memory:
            world.pinned.append(made)
        return made

    fakes = {
        "device_count": lambda: 2,
        "mem_get_info": lambda _: (1 << 40, 1 << 40),
        "Stream": lambda device: Stream(world, device),
        "Event": lambda **_: Event(world),
        "stream": on_stream,
        "current_stream": lambda *_: here.now,
        "synchronize": synchronize,
        "device": lambda _: contextlib.nullcontext(),
        "is_available": lambda: False,  # batches are not pinned
        "CUDAGraph": Graph,
        "graph": capture,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty", pinned_or_not)
    broadcast = InprocCommunicator.broadcast
    for call in (InprocCommunicator.reduce, broadcast):
        monkeypatch.setattr(InprocCommunicator, call.__name__, enqueued(call))
    monkeypatch.setattr(
        Tensor,
        "record_stream",
        lambda value, stream: world.known(key_of(value)).told.add(stream),
    )
    device_of = aten.device_of
    for name, module in list(sys.modules.items()):
        if name.startswith("purine") and getattr(module, "device_of", None) is device_of:
            monkeypatch.setattr(module, "device_of", lambda _: torch.device("cpu"))
    monkeypatch.setattr(
        streams, "device_of", lambda location: torch.device("cpu", int(location.device[-1]))
    )
    monkeypatch.setattr(Streams, "run", watched_run)
    monkeypatch.setattr(fused_kernels, "compiled", one_by_one)
    monkeypatch.setattr(compiled, "expandable_segments", contextlib.nullcontext)
    return world
