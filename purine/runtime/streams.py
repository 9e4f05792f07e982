"""The ops of GPUs: lanes are streams, and to be complete means to be enqueued.

Copies from the host have a stream of their own: batches come while the rest of the `inbound` lane
waits for what other devices compute.

One thread enqueues all ops of all GPUs. An event is recorded behind an op that another stream or
the host waits for, and waited for where lanes differ: by a stream where the next op is on a GPU, by
a CPU lane where it is not. What the host asked for is copied to it on the `outbound` stream.

Memory belongs to the stream that it was made on. An op of another stream that reads it says so to
torch's allocator, which does not give it away before that stream has passed. An op that writes over
a value waits for the other streams that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from purine.core import Plan
from purine.graph import NOTHING, Graph, Location, Op
from purine.registry.aten import device_of
from purine.runtime.buffers import Buffers

__all__ = ["OUTBOUND", "StreamPlan", "Streams", "is_gpu", "stream_plan"]

OUTBOUND = "outbound"


def is_gpu(location: Location) -> bool:
    """Whether a location is a GPU."""
    return location.device.startswith("cuda")


@dataclass(frozen=True)
class StreamPlan:
    """Who waits for whom, by op number.

    `queue[k]` is the stream of op k: its station, and whether it brings something from the host.
    `waits[k]` are the ops of other streams that op k, on a GPU, waits for: pairs of an op and how
    many iterations ago it ran. `host_waits[k]` are the same for op k on a CPU. `signals` are the
    ops that record an event. `foreign[k]` are the blobs that op k reads from other streams.
    `fetched[k]` are the outputs of the graph that op k makes on a GPU: pairs of an output and how
    many iterations later it is one. What carries a state on is in the next.
    """

    queue: tuple[tuple[int, bool], ...]
    waits: tuple[tuple[tuple[int, int], ...], ...]
    host_waits: tuple[tuple[tuple[int, int], ...], ...]
    signals: frozenset[int]
    foreign: tuple[tuple[str, ...], ...]
    fetched: tuple[tuple[tuple[str, int], ...], ...]


def stream_plan(graph: Graph, plan: Plan, buffers: Buffers | None = None) -> StreamPlan:
    """Where events stand between the streams of a graph.

    `buffers` tell which ops write over what others read.
    """
    count = len(plan.ops)
    gpu = [is_gpu(graph.ops[name].location) for name in plan.ops]
    waits: list[set[tuple[int, int]]] = [set() for _ in range(count)]
    host_waits: list[set[tuple[int, int]]] = [set() for _ in range(count)]
    signals: set[int] = set()
    queue = [
        (station, gpu[index] and _brings(graph, graph.ops[name]))
        for index, (name, station) in enumerate(zip(plan.ops, plan.station, strict=True))
    ]

    def edge(before: int, after: int, ago: int) -> None:
        if not gpu[before] or (gpu[after] and queue[before] == queue[after]):
            return
        (waits if gpu[after] else host_waits)[after].add((before, ago))
        signals.add(before)

    for before in range(count):
        for after in plan.same[before]:
            edge(before, after, 0)
        for after in plan.later[before]:
            edge(before, after, 1)
    if buffers is not None:
        steps = buffers.program.steps
        readers: dict[int, list[int]] = {}
        for index, step in enumerate(steps):
            for family in step.families:
                readers.setdefault(family, []).append(index)
        for index, step in enumerate(steps):
            for _, family in step.over:
                for reader in readers.get(family, ()):
                    if reader != index and gpu[index] and gpu[reader]:
                        edge(reader, index, 0)
    carried = {state.read: state.next for state in graph.states.values()}
    reported = {
        state.next: state.read
        for state in graph.states.values()
        if state.read in graph.outputs and state.next != state.read
    }
    number = {name: index for index, name in enumerate(plan.ops)}
    foreign, fetched = [], []
    for index, name in enumerate(plan.ops):
        op = graph.ops[name]
        found = []
        for blob in dict.fromkeys(op.inputs):
            maker = graph.producers.get(carried.get(blob, blob))
            if maker is None or not gpu[index] or not gpu[number[maker.name]]:
                continue
            if queue[number[maker.name]] != queue[index]:
                found.append(blob)
        foreign.append(tuple(found))
        asked = [(blob, 0) for blob in op.outputs if blob != NOTHING and blob in graph.outputs]
        asked += [(reported[blob], 1) for blob in op.outputs if blob in reported]
        fetched.append(tuple(asked) if gpu[index] else ())
        if gpu[index] and asked:
            signals.add(index)
    return StreamPlan(
        tuple(queue),
        tuple(tuple(sorted(found)) for found in waits),
        tuple(tuple(sorted(found)) for found in host_waits),
        frozenset(signals),
        tuple(foreign),
        tuple(fetched),
    )


def _brings(graph: Graph, op: Op) -> bool:
    """Whether an op copies something from the host."""
    return op.kind == "Copy" and not is_gpu(graph.blobs[op.inputs[0]].location)


class Streams:
    """The streams of one execution, and the events between them."""

    def __init__(
        self, graph: Graph, plan: Plan, buffers: Buffers, *, start: int, record: bool
    ) -> None:
        self.plan = stream_plan(graph, plan, buffers)
        self.buffers = buffers
        self.size = len(plan.ops)
        self.slots = buffers.slots
        self.start = start
        places = {queue: plan.stations[queue[0]] for queue in self.plan.queue}
        streams: dict[tuple[int, bool], Any] = {
            queue: torch.cuda.Stream(device_of(location)) if is_gpu(location) else None
            for queue, (location, _) in places.items()
        }
        self._stream = [streams[queue] for queue in self.plan.queue]
        self._gpu = [stream is not None for stream in self._stream]
        gpus = {location for location, _ in plan.stations if is_gpu(location)}
        out = {places[queue]: stream for queue, stream in streams.items() if not queue[1]}
        self._outbound = {
            location: out.get((location, OUTBOUND)) or torch.cuda.Stream(device_of(location))
            for location in gpus
        }
        self._location = [graph.ops[name].location for name in plan.ops]
        self._events: list[list[Any]] = [[None] * self.size for _ in range(self.slots)]
        self._fetched: list[dict[str, Any]] = [{} for _ in range(self.slots)]
        self._record = record
        self._timed: list[tuple[int, Any, Any]] = []
        self._reads: list[tuple[int, str, Any, Any]] = []
        self._devices = sorted({device_of(location).index for location in gpus})
        self._base: dict[int, tuple[int, Any]] = {}
        self.synchronize()
        self._given = {
            name: buffers.value(start, name).cpu()
            for name in graph.outputs
            if name not in graph.producers and is_gpu(graph.blobs[name].location)
        }
        """Outputs that no op makes: inputs, and what never changes."""
        for name, state in graph.states.items():
            if name in self._given and state.next != name:
                self._fetched[start % self.slots][name] = self._given.pop(name)
        for op, stream in zip(map(graph.ops.__getitem__, plan.ops), self._stream, strict=True):
            for name in op.inputs if stream is not None else ():
                value = None if name in graph.producers else buffers.value(start, name)
                if value is not None and is_gpu(graph.blobs[name].location):
                    value.record_stream(stream)  # whoever gave it may let go of it at any time
        for device in self._devices:
            with torch.cuda.device(device):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                event.synchronize()
                self._base[device] = (perf_counter_ns(), event)

    def run(self, token: int) -> None:
        """Enqueue an op of a GPU, or run one of a CPU once what it reads is there."""
        iteration, op = divmod(token, self.size)
        if not self._gpu[op]:
            self.wait(token)
            self.buffers.run(token)
            return
        slot = iteration % self.slots
        stream = self._stream[op]
        with torch.cuda.stream(stream):
            for before, ago in self.plan.waits[op]:
                event = self._events[(iteration - ago) % self.slots][before]
                if iteration - ago >= self.start and event is not None:
                    stream.wait_event(event)
            for blob in self.plan.foreign[op]:
                self.buffers.value(iteration, blob).record_stream(stream)
            begin = self._mark(stream)
            self.buffers.run(token)
            if begin is not None:
                self._timed.append((token, begin, self._mark(stream)))
            if op in self.plan.signals:
                event = self._events[slot][op]
                if event is None:
                    event = self._events[slot][op] = torch.cuda.Event()
                event.record(stream)
        for blob, later in self.plan.fetched[op]:
            self._fetch(iteration, op, blob, later)

    def wait(self, token: int) -> None:
        """Let the host wait for what an op of a CPU reads from GPUs."""
        iteration, op = divmod(token, self.size)
        for before, ago in self.plan.host_waits[op]:
            if iteration - ago >= self.start:
                self._events[(iteration - ago) % self.slots][before].synchronize()

    def _mark(self, stream: Any) -> Any:
        if not self._record:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _fetch(self, iteration: int, op: int, blob: str, later: int) -> None:
        """Begin to copy an output that an op has made to the host."""
        slot = iteration % self.slots
        value = self.buffers.value(iteration + later, blob)
        stream = self._outbound[self._location[op]]
        with torch.cuda.stream(stream):
            stream.wait_event(self._events[slot][op])
            value.record_stream(stream)
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            begin = self._mark(stream)
            host.copy_(value, non_blocking=True)
            if begin is not None:
                token = iteration * self.size + op
                self._reads.append((token, blob, begin, self._mark(stream)))
            done = torch.cuda.Event()
            done.record(stream)
        self._fetched[(iteration + later) % self.slots][blob] = (host, done)

    def collect(self, iteration: int, outputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """The outputs of an iteration, as what `settle` waits for."""
        slot = iteration % self.slots
        fetched, self._fetched[slot] = self._fetched[slot], {}
        return {**outputs, **self._given, **fetched}

    def settle(self, outputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Outputs that are on the host."""
        found = {}
        for name, value in outputs.items():
            if isinstance(value, tuple):
                value[1].synchronize()
                value = value[0]
            found[name] = value
        return found

    def synchronize(self) -> None:
        """Wait until the GPUs have done all that was enqueued."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def times(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, str, int, int]]]:
        """What was recorded, by the host's clock.

        Tokens, and when they began and ended; then, for what the host was sent, the tokens that
        made it, its names, and when its copies began and ended.
        """
        timed, reads = list(self._timed), list(self._reads)
        self.synchronize()  # all of these end within it
        clocks = {device: _Clock(*base) for device, base in self._base.items()}

        def span(token: int, begin: Any, end: Any) -> tuple[int, int]:
            clock = clocks[device_of(self._location[token % self.size]).index]
            return clock.time(begin), clock.time(end)

        return (
            [(token, *span(token, *marks)) for token, *marks in timed],
            [(token, blob, *span(token, *marks)) for token, blob, *marks in reads],
        )


class _Clock:
    """When events happened, in nanoseconds of the host's clock.

    Torch tells the time between two events as a float32 of milliseconds: after minutes, no better
    than to some microseconds. So every second an event becomes one that later ones are told from.
    """

    def __init__(self, zero: int, base: Any) -> None:
        self._base = base
        self._marks: list[tuple[float, int, Any]] = [(0.0, zero, base)]

    def time(self, event: Any) -> int:
        rough = self._base.elapsed_time(event)
        earlier = (mark for mark in reversed(self._marks) if mark[0] < rough - 1.0)
        since, zero, mark = next(earlier, self._marks[0])
        found = zero + int(1e6 * mark.elapsed_time(event))
        if rough - since > 1000.0:
            self._marks.append((rough, found, event))
        return found
