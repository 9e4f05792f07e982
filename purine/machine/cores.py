"""Devices of this machine: which cores are `cpu:k`, and keeping threads on them.

A graph on one CPU device has the whole machine. On several, `cpu:k` is the k-th set of cores, all
of one size; its lanes, and the helpers of their kernels, stay on these cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from purine.errors import ConfigError
from purine.graph import Graph

__all__ = ["cores_of", "pin", "threads_of", "threads_of_all"]


def cores_of(
    graph: Graph, *, threads: int | None = None, share: bool = False
) -> Mapping[str, tuple[int, ...]]:
    """The cores of each device that a graph is on; none where it may use all.

    A device has `threads` cores, or an equal share of all. Devices that are more than the cores
    suffice for are refused, unless they may `share` cores.
    """
    devices = sorted({op.location.device for op in graph.ops.values()}, key=_number)
    for device in devices:
        there = torch.cuda.device_count()
        if device.startswith("cuda") and _number(device) >= there and not (share and there):
            raise ConfigError(
                f"device {device} is not there",
                location=device,
                expected=f"one of the {there} GPUs that torch sees",
                found=device,
                remedy="name what the machine has, for example cpu:0 (option --devices)",
            )
    own = [device for device in devices if device.startswith("cpu")]
    if len(own) < 2:
        return dict.fromkeys(own, ())
    available = _available()
    most = _number(own[-1]) + 1
    size = threads or threads_of(own)
    if most * size > len(available) and not share:
        raise ConfigError(
            f"device {own[-1]} is not there",
            location=own[-1],
            expected=f"cpu:0 to cpu:{max(0, len(available) // size - 1)}: there are "
            f"{len(available)} cores, and a device has {size}",
            found=", ".join(own),
            remedy="use fewer devices or fewer threads for each, or let devices share cores "
            "(share_cores=True, --share-cores)",
        )
    return {
        device: tuple(
            available[(_number(device) * size + core) % len(available)]
            for core in range(min(size, len(available)))
        )
        for device in own
    }


def threads_of(devices: Sequence[str]) -> int:
    """The cores of each of several CPU devices where nobody says: an equal share of all."""
    return max(1, len(_available()) // (max(map(_number, devices)) + 1))


def threads_of_all() -> int:
    """The threads of a single CPU device where nobody says: those that torch would use.

    Unless the process may use fewer cores by now: threads would wait for each other.
    """
    return min(int(torch.get_num_threads()), len(_available()))


def pin(cores: tuple[int, ...]) -> None:
    """Keep the calling thread, and threads that it starts, on these cores; no cores mean all.

    Where the system does not let threads be kept on cores, they wander.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _available() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _number(device: str) -> int:
    return int(device.partition(":")[2])
