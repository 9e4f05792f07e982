"""One host of a simulation: its lowered graph as integers, its threads, and times of its ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from purine.analysis.infer import size_in_bytes
from purine.core import Plan, Station, compile_plan
from purine.dispatch.ends import Ends, ends_of
from purine.dispatch.threads import COMPUTE, threads_of_lanes, with_peers
from purine.errors import ConfigError
from purine.graph import Graph, Op
from purine.graph.nodes import computes
from purine.lowering import Lowered
from purine.lowering.together import BROADCAST, REDUCE
from purine.lowering.workers import has_workers
from purine.placement.devices import is_cpu
from purine.simulator.machine import Machine
from purine.trace.events import ARRIVAL, POST, PUT

__all__ = ["Duration", "Part", "make_part"]

Duration = Callable[[Op], float]
"""The seconds of an op."""


@dataclass(frozen=True)
class Part:
    """The data of a host for the engine. Ops and threads are numbers; times are nanoseconds.

    `times` are those of ops on an idle device, `widths` the number of cores that each uses.
    `group_of` is by thread the group of threads with the same cores, or -1, and `capacity` the
    cores of each group. `sizes` are the bytes of transfers, `targets` by put its (peer, channel)
    pairs.
    """

    host: str
    graph: Graph
    plan: Plan
    ends: Ends | None
    workers: tuple[Station, ...]
    worker_of: tuple[int, ...]
    later: tuple[int, ...]
    alone: bool
    times: tuple[float, ...]
    widths: tuple[int, ...]
    group_of: tuple[int, ...]
    capacity: tuple[int, ...]
    sizes: Mapping[int, int]
    targets: Mapping[int, tuple[tuple[str, int], ...]]
    lanes: tuple[int, ...]

    @property
    def peers(self) -> tuple[str, ...]:
        """The hosts that this one exchanges values with."""
        return () if self.ends is None else _peers(self.ends, self.host)


def make_part(lowered: Lowered, host: str | None, duration: Duration, machine: Machine) -> Part:
    """The part of a host; `host` is None for a step on one host.

    The threads are those that the executor starts, except that each lane of a GPU is a stream.
    """
    graph = lowered.graph
    if has_workers(graph):
        what = "asynchronous workers are not simulated"
        remedy = "predict the synchronous scheme, or run a few iterations with --trace"
        raise ConfigError(what, "a step without asynchronous states", "workers", remedy)
    plan = compile_plan(graph)
    name = host or next((at.host for at, _ in plan.stations), "")
    ends = None if host is None else ends_of(graph, host, plan)
    cores = {at.device: machine.cores_of(name, at.device) for at, _ in plan.stations}
    prompt = machine.wire.prompt
    own = 0 if ends is not None and not prompt else machine.threads
    workers, worker_of = _lanes(plan.stations, cores, own)
    numbers = [worker_of[station] for station in plan.station]
    alone = ends is not None and len(workers) == 1 and prompt
    if ends is not None:
        peers = sorted(_peers(ends, name))
        if peers:
            with_peers(workers, numbers, name, peers, ends, alone=alone)
        else:
            ends = None
    shared = alone or len(workers) < len(plan.stations)
    later = tuple(COMPUTE if shared and computes(plan.stations[s][1]) else 0 for s in plan.station)
    number = {op: index for index, op in enumerate(plan.ops)}
    outgoing = () if ends is None else ends.outgoing
    crossing = () if ends is None else (*ends.incoming, *outgoing)
    sizes = {number[c.op]: size_in_bytes(c.blob) if c.blob else 0 for c in crossing}
    targets: dict[int, tuple[tuple[str, int], ...]] = {}
    for channel in outgoing:
        op = number[channel.op]
        targets[op] = (*targets.get(op, ()), (channel.target, channel.number))
    groups, capacity = _groups(name, workers, cores, machine)
    lanes = [number if numbers[op] < 0 else -1 for op, number in enumerate(plan.station)]
    times = tuple(
        _nanoseconds(lowered, op, name, duration, machine, sizes.get(at, 0))
        for at, op in enumerate(plan.ops)
    )
    widths = tuple(_width(graph.ops[op], cores, machine) for op in plan.ops)
    return Part(
        *(name, graph, plan, ends, tuple(workers), tuple(numbers), later, alone),
        *(times, widths, groups, capacity, sizes, targets, tuple(lanes)),
    )


def _peers(ends: Ends, host: str) -> tuple[str, ...]:
    near = [c.source if c.target == host else c.target for c in (*ends.incoming, *ends.outgoing)]
    others = (other for one in ends.collectives.values() for other in one.hosts)
    return tuple(dict.fromkeys(other for other in (*near, *others) if other != host))


def _lanes(
    stations: Sequence[Station], cores: Mapping[str, tuple[int, ...]], own: int
) -> tuple[list[Station], list[int]]:
    """The threads of lanes; on GPUs each lane is a stream, which is no thread of the host."""
    workers, worker_of = threads_of_lanes(
        [station for station in stations if is_cpu(station[0])], cores, own=own
    )
    of_cpu = iter(worker_of)
    numbers = []
    for station in stations:
        if is_cpu(station[0]):
            numbers.append(next(of_cpu))
        else:
            numbers.append(len(workers))
            workers.append(station)
    return workers, numbers


def _nanoseconds(
    lowered: Lowered, name: str, host: str, duration: Duration, machine: Machine, size: int
) -> float:
    op, wire = lowered.graph.ops[name], machine.wire
    if op.kind in (PUT, POST):
        return (wire.put + size * wire.per_byte) * 1e9
    if op.kind == ARRIVAL:
        return (wire.arrive + size * wire.received_byte) * 1e9
    if op.kind in ("Fence", REDUCE, BROADCAST):
        return 0.0
    members = lowered.members.get(name, (op,))
    return sum(map(duration, members)) / machine.slow.get((host, op.location.device), 1.0) * 1e9


def _width(op: Op, cores: Mapping[str, tuple[int, ...]], machine: Machine) -> int:
    """The number of cores that an op uses: those of its device in a compute lane, else one."""
    if not is_cpu(op.location):
        return 0
    return (len(cores[op.location.device]) or machine.threads) if computes(op.lane) else 1


def _groups(
    host: str, workers: Sequence[Station], cores: Mapping[str, tuple[int, ...]], machine: Machine
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each thread its group of threads with cores in common, and the cores of each group.

    A thread that shares its cores with no other has the group -1, unless cores slow each other.
    Threads for peers and the receiver are not bound to cores: the system runs them on idle cores,
    so their work is charged to no group, unless the host has a single core.
    """
    if not machine.contended:
        return (-1,) * len(workers), ()
    every = frozenset(core for own in cores.values() for core in own)
    every = every or frozenset(range(machine.threads))
    own: list[frozenset[int]] = []
    for location, _ in workers:
        bound = location.host == host and location.device in cores and is_cpu(location)
        known = frozenset(cores[location.device]) or every if bound else frozenset[int]()
        own.append(every if len(every) == 1 else known)
    groups: list[frozenset[int]] = []
    for wanted in own:
        if wanted:
            joined = [group for group in groups if group & wanted]
            groups = [group for group in groups if not group & wanted]
            groups.append(wanted.union(*joined))
    if machine.crowding and groups:
        groups = [frozenset[int]().union(*groups)]
    numbers = [next((n for n, g in enumerate(groups) if g & wanted), -1) for wanted in own]
    alone = {n for n in numbers if numbers.count(n) == 1 and not machine.crowding}
    return tuple(-1 if n in alone else n for n in numbers), tuple(len(group) for group in groups)
