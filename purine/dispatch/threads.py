"""Which thread serves which lane. The executor starts these threads, the simulator imitates them.

A device with one core has one thread for all its lanes. With several, the thread that holds the
interpreter's lock would often wait for the core, and all others for the lock. All GPUs have one
thread, which only enqueues. Puts to each peer have a thread of their own, since sending may wait
for the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purine.core import Station
from purine.dispatch.ends import Ends
from purine.graph import Location
from purine.graph.nodes import floats
from purine.placement.devices import is_cpu

__all__ = ["COMPUTE", "threads_of_lanes", "with_peers"]

COMPUTE = 1 << 62
"""Queue entries are tokens. On a thread that several lanes share, tokens of compute lanes get this
high bit, so that transfers run first: other devices wait for those. Puts to other hosts have their
order in the bits above a token."""


def threads_of_lanes(
    stations: Sequence[Station], cores: Mapping[str, tuple[int, ...]], *, own: int
) -> tuple[list[Station], list[int]]:
    """The lanes that get a thread, and for each lane the number of the thread that serves it.

    Floating lanes have the number -1; the compute threads of their devices take them. A device
    without `cores` may use all cores of the process, whose number is `own`. If that is one, its
    lanes share a thread too. If other hosts are behind a network, `own` is 0, so that arriving
    values are processed while a kernel runs.
    """
    workers: dict[Station, int] = {}
    worker_of = []
    for location, lane in stations:
        single = (len(cores.get(location.device, ())) or own) == 1
        if floats(lane):
            workers.setdefault((location, "compute"), len(workers))
            worker_of.append(-1)
            continue
        worker = (location, "compute" if single else lane)
        if not is_cpu(location):
            worker = (Location(location.host, "cuda:0"), "compute")
        worker_of.append(workers.setdefault(worker, len(workers)))
    return list(workers), worker_of


def with_peers(
    workers: list[Station],
    numbers: list[int],
    host: str,
    peers: Sequence[str],
    ends: Ends,
    *,
    alone: bool,
    inline: bool = False,
) -> int:
    """Add a thread for the puts to each peer, one for each group of collectives, and one that
    receives, whose number is returned. If ops put to several peers, one thread puts to all.

    A thread that is `alone` puts and receives itself. With `inline` the thread of the lane
    `inbound` receives: it continues with the arrived value, and no other thread has to be woken.
    """
    posts = any(len(targets) > 1 for targets in ends.puts.values())
    served = [tuple(peers)] if posts else [(peer,) for peer in peers]
    for group in () if alone else served:
        for op, targets in ends.puts.items():
            if targets[0] in group:
                numbers[op] = len(workers)
        workers.append((Location(group[0]), "outbound"))
    for turns in ends.turns:
        for op in turns:
            numbers[op] = len(workers)
        workers.append((Location(peers[0]), "outbound"))
    if alone:
        for op in (*ends.puts, *ends.arrivals.values()):
            numbers[op] = 0
        return 0
    lanes = [number for number, (_, lane) in enumerate(workers) if lane == "inbound"]
    if not inline or len(lanes) != 1:
        lanes = [len(workers)]
        workers.append((Location(host), "inbound"))
    for op in ends.arrivals.values():
        numbers[op] = lanes[0]
    return lanes[0]
