"""Execution on GPUs: a lane is a stream, and an op is complete when it is enqueued.

One thread enqueues all ops of all GPUs, but for what goes to other hosts or comes from them. An
event is recorded behind each op that another stream or a CPU lane waits for. Copies from the host,
of batches and of what other hosts send, have a stream of their own, so that they arrive while the
rest of the `inbound` lane waits for other devices. So have collectives with other hosts, which wait
for GPUs there. Outputs of the graph are copied to the host on the `outbound` stream.

Memory belongs to the stream that allocated it. An op of another stream that reads it tells torch's
allocator. An op that writes over a value waits for the other streams that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from purine.core import Plan
from purine.graph import NOTHING, Graph, Location, Op
from purine.lowering.together import collective_of
from purine.registry.aten import device_of
from purine.runtime.buffers import Buffers
from purine.runtime.program import Program

__all__ = ["OUTBOUND", "Fetched", "StreamPlan", "Streams", "is_gpu", "on_host", "stream_plan"]

OUTBOUND = "outbound"

Fetched: TypeAlias = Tensor | tuple[Tensor, torch.cuda.Event]
"""An output: on the host, or with the event behind its copy to the host."""


Beside: TypeAlias = Literal["", "from host", "together"]
"""What has a stream beside that of its lane: copies from the host, and collectives with others."""
_Queue: TypeAlias = tuple[int, Beside]


def is_gpu(location: Location) -> bool:
    """Whether a location is a GPU."""
    return location.device.startswith("cuda")


@dataclass(frozen=True)
class StreamPlan:
    """The events between streams, by op number."""

    queue: tuple[_Queue, ...]
    """The stream of each op: its station, and why the op is in another stream, if it is."""
    waits: tuple[tuple[tuple[int, int], ...], ...]
    """What an op on a GPU waits for in other streams: an op, and how many iterations ago it ran."""
    host_waits: tuple[tuple[tuple[int, int], ...], ...]
    """The same for an op on a CPU."""
    signals: frozenset[int]
    """The ops that record an event."""
    foreign: tuple[tuple[str, ...], ...]
    """The blobs that an op reads from other streams."""
    fetched: tuple[tuple[tuple[str, int], ...], ...]
    """Outputs that an op on a GPU writes, and how many iterations later each is one."""


def stream_plan(graph: Graph, plan: Plan, program: Program | None = None) -> StreamPlan:
    """Where events are needed between the streams of a graph.

    `program` tells which ops write over values that others read.
    """
    ops = [graph.ops[name] for name in plan.ops]
    gpu = [is_gpu(op.location) for op in ops]
    stations = zip(ops, plan.station, strict=True)
    queue = [(station, _beside(graph, op)) for op, station in stations]
    waits: list[set[tuple[int, int]]] = [set() for _ in ops]
    host_waits: list[set[tuple[int, int]]] = [set() for _ in ops]
    fetched = _fetched(graph, ops)
    signals = {index for index, outputs in enumerate(fetched) if outputs}
    for before, after, ago in _edges(plan, program, gpu):
        if gpu[before] and not (gpu[after] and queue[before] == queue[after]):
            (waits if gpu[after] else host_waits)[after].add((before, ago))
            signals.add(before)
    return StreamPlan(
        tuple(queue),
        tuple(tuple(sorted(pairs)) for pairs in waits),
        tuple(tuple(sorted(pairs)) for pairs in host_waits),
        frozenset(signals),
        _foreign(graph, ops, queue),
        fetched,
    )


def _edges(
    plan: Plan, program: Program | None, gpu: Sequence[bool]
) -> Iterator[tuple[int, int, int]]:
    """Ops that wait for each other: the earlier, the later, and the iterations between them."""
    for before in range(len(plan.ops)):
        yield from ((before, after, 0) for after in plan.same[before])
        yield from ((before, after, 1) for after in plan.later[before])
    steps = () if program is None else program.steps
    readers: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        for family in step.families:
            readers.setdefault(family, []).append(index)
    for index, step in enumerate(steps):
        for _, family in step.over:
            for reader in readers.get(family, ()):
                if reader != index and gpu[index]:
                    yield reader, index, 0


def _foreign(
    graph: Graph, ops: Sequence[Op], queue: Sequence[_Queue]
) -> tuple[tuple[str, ...], ...]:
    """By op on a GPU the blobs that it reads from another stream."""
    carried = {state.read: state.next for state in graph.states.values()}
    queues = {op.name: queue[k] for k, op in enumerate(ops) if is_gpu(op.location)}

    def is_foreign(op: Op, blob: str) -> bool:
        producer, own = graph.producers.get(carried.get(blob, blob)), queues[op.name]
        return producer is not None and queues.get(producer.name, own) != own

    return tuple(
        tuple(blob for blob in dict.fromkeys(op.inputs) if is_foreign(op, blob))
        if op.name in queues
        else ()
        for op in ops
    )


def _fetched(graph: Graph, ops: Sequence[Op]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """By op on a GPU the outputs of the graph that it writes, and how many iterations later they
    are outputs."""
    reported = {
        state.next: state.read
        for state in graph.states.values()
        if state.read in graph.outputs and state.next != state.read
    }
    fetched = []
    for op in ops:
        outputs = [(blob, 0) for blob in op.outputs if blob != NOTHING and blob in graph.outputs]
        outputs += [(reported[blob], 1) for blob in op.outputs if blob in reported]
        fetched.append(tuple(outputs) if is_gpu(op.location) else ())
    return tuple(fetched)


def _beside(graph: Graph, op: Op) -> Beside:
    """Why an op is not in the stream of its lane."""
    if not is_gpu(op.location):
        return ""
    if collective_of(op) is not None:
        return "together"
    arrives = op.kind == "Arrival" and bool(op.outputs)
    copied = op.kind == "Copy" and not is_gpu(graph.blobs[op.inputs[0]].location)
    return "from host" if arrives or copied else ""


class Streams:
    """The streams of one execution, and the events between them."""

    def __init__(self, buffers: Buffers, *, start: int, record: bool) -> None:
        program = buffers.program
        graph, plan = program.graph, program.plan
        self.plan = stream_plan(graph, plan, program)
        self.buffers = buffers
        self.size = len(plan.ops)
        self.slots = buffers.slots
        self.start = start
        stations = {queue: plan.stations[queue[0]] for queue in self.plan.queue}
        streams = {
            queue: _stream(location) if is_gpu(location) else None
            for queue, (location, _) in stations.items()
        }
        self._stream = [streams[queue] for queue in self.plan.queue]
        gpus = {location for location, _ in plan.stations if is_gpu(location)}
        by_lane = {stations[queue]: stream for queue, stream in streams.items() if not queue[1]}
        self._outbound = {
            location: by_lane.get((location, OUTBOUND)) or _stream(location) for location in gpus
        }
        self._location = [graph.ops[name].location for name in plan.ops]
        self._events: list[list[torch.cuda.Event | None]] = [
            [None] * self.size for _ in range(self.slots)
        ]
        self._fetched: list[dict[str, Fetched]] = [{} for _ in range(self.slots)]
        self._record = record
        self._timed: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
        self._reads: list[tuple[int, str, torch.cuda.Event, torch.cuda.Event]] = []
        self._devices = sorted({device_of(location).index for location in gpus})
        self.synchronize()
        self._constant_outputs = self._given_values(graph)
        """Outputs that no op writes: inputs, and states that keep their value."""
        self._base = {device: _now(device) for device in self._devices}

    def _given_values(self, graph: Graph) -> dict[str, Tensor]:
        """Copies on the host of outputs that no op writes; announces the others to the
        allocator."""
        start, buffers = self.start, self.buffers
        given = {
            name: buffers.value(start, name).cpu()
            for name in graph.outputs
            if name not in graph.producers and is_gpu(graph.blobs[name].location)
        }
        for name, state in graph.states.items():
            if name in given and state.next != name:
                self._fetched[start % self.slots][name] = given.pop(name)
        names = buffers.program.plan.ops
        for op, stream in zip((graph.ops[name] for name in names), self._stream, strict=True):
            for name in op.inputs:
                value = None if name in graph.producers else buffers.value(start, name)
                if stream is not None and value is not None and is_gpu(graph.blobs[name].location):
                    value.record_stream(stream)  # its owner may free it at any time
        return given

    def run(self, token: int) -> None:
        """Enqueue an op of a GPU, or run one of a CPU once its inputs from GPUs are there."""
        iteration, op = divmod(token, self.size)
        stream = self._stream[op]
        if stream is None:
            self.wait(token)
            self.buffers.run(token)
            return
        slot = iteration % self.slots
        with torch.cuda.stream(stream):
            for before, ago in self.plan.waits[op]:
                event = self._events[(iteration - ago) % self.slots][before]
                if iteration - ago >= self.start and event is not None:
                    stream.wait_event(event)
            for blob in self.plan.foreign[op]:
                self.buffers.value(iteration, blob).record_stream(stream)
            if self._record:
                begin = _event(stream, timed=True)
                self.buffers.run(token)
                self._timed.append((token, begin, _event(stream, timed=True)))
            else:
                self.buffers.run(token)
            if op in self.plan.signals:
                event = self._events[slot][op]
                if event is None:
                    event = self._events[slot][op] = _event()
                event.record(stream)
        for blob, later in self.plan.fetched[op]:
            self._fetch(iteration, op, blob, later)

    def wait(self, token: int) -> None:
        """Let the host wait for what an op of a CPU reads from GPUs."""
        iteration, op = divmod(token, self.size)
        for before, ago in self.plan.host_waits[op]:
            if iteration - ago >= self.start:
                self._signal(iteration - ago, before).synchronize()

    def _signal(self, iteration: int, op: int) -> torch.cuda.Event:
        event = self._events[iteration % self.slots][op]
        assert event is not None
        return event

    def _fetch(self, iteration: int, op: int, blob: str, later: int) -> None:
        """Start copying an output of an op to the host."""
        value = self.buffers.value(iteration + later, blob)
        stream = self._outbound[self._location[op]]
        with torch.cuda.stream(stream):
            stream.wait_event(self._signal(iteration, op))
            value.record_stream(stream)
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            begin = _event(stream, timed=True) if self._record else None
            host.copy_(value, non_blocking=True)
            if begin is not None:
                token = iteration * self.size + op
                self._reads.append((token, blob, begin, _event(stream, timed=True)))
            done = _event(stream)
        self._fetched[(iteration + later) % self.slots][blob] = (host, done)

    def collect(self, iteration: int, outputs: Mapping[str, Fetched]) -> dict[str, Fetched]:
        """The outputs of an iteration; some are still being copied to the host."""
        slot = iteration % self.slots
        fetched, self._fetched[slot] = self._fetched[slot], {}
        return {**outputs, **self._constant_outputs, **fetched}

    def synchronize(self) -> None:
        """Wait until the GPUs have completed all enqueued work."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def times(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, str, int, int]]]:
        """What was recorded, by the host's clock.

        First the tokens with their begins and ends. Then the copies of outputs to the host: the
        token that wrote the output, its name, begin and end.
        """
        timed, reads = list(self._timed), list(self._reads)
        self.synchronize()  # all of these end within it
        clocks = {device: _Clock(*base) for device, base in self._base.items()}

        def span(token: int, begin: torch.cuda.Event, end: torch.cuda.Event) -> tuple[int, int]:
            clock = clocks[device_of(self._location[token % self.size]).index]
            return clock.time(begin), clock.time(end)

        return (
            [(token, *span(token, *marks)) for token, *marks in timed],
            [(token, blob, *span(token, *marks)) for token, blob, *marks in reads],
        )


def _stream(location: Location) -> torch.cuda.Stream:
    create: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
    return create(device_of(location))


def _event(stream: torch.cuda.Stream | None = None, *, timed: bool = False) -> torch.cuda.Event:
    """A new event, recorded in a stream if one is given."""
    create: Callable[..., torch.cuda.Event] = torch.cuda.Event
    event = create(enable_timing=timed)
    if stream is not None:
        event.record(stream)
    return event


def _now(device: int) -> tuple[int, torch.cuda.Event]:
    """The host's clock in nanoseconds, and an event recorded at the same time."""
    with torch.cuda.device(device):
        event = _event(timed=True)
        event.record()
        event.synchronize()
        return perf_counter_ns(), event


def on_host(outputs: Mapping[str, Fetched]) -> dict[str, Tensor]:
    """The outputs of an iteration, once all of them are on the host."""
    for value in outputs.values():
        if isinstance(value, tuple):
            value[1].synchronize()
    return {name: v[0] if isinstance(v, tuple) else v for name, v in outputs.items()}


class _Clock:
    """Times of events, in nanoseconds of the host's clock.

    torch gives the time between two events as a float32 of milliseconds, which after minutes is
    accurate to some microseconds only. So every second an event becomes the new reference.
    """

    def __init__(self, zero: int, base: torch.cuda.Event) -> None:
        self._base = base
        self._marks: list[tuple[float, int, torch.cuda.Event]] = [(0.0, zero, base)]

    def time(self, event: torch.cuda.Event) -> int:
        rough = self._base.elapsed_time(event)
        earlier = (mark for mark in reversed(self._marks) if mark[0] < rough - 1.0)
        since, zero, mark = next(earlier, self._marks[0])
        moment = zero + int(1e6 * mark.elapsed_time(event))
        if rough - since > 1000.0:
            self._marks.append((rough, moment, event))
        return moment
