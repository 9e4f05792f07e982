"""The cores of each CPU device, and binding threads to them (effect `cores`).

A graph on one CPU device uses all cores. With several, `cpu:k` is the k-th set of cores, all of one
size; its lanes, and the OpenMP threads of their kernels, are bound to these cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from purine.graph import Graph
from purine.machine.capacity import missing_device
from purine.machine.effects import applies

__all__ = ["available", "bind", "cores_of", "on_gpus", "pin", "threads_of", "threads_of_all"]


def cores_of(
    graph: Graph, *, threads: int | None = None, share: bool = False
) -> Mapping[str, tuple[int, ...]]:
    """The cores of each CPU device of a graph; a single CPU device has (), which means all.

    A device has `threads` cores, or an equal share of all. More devices than the cores suffice for
    are an error, unless devices may `share` cores.
    """
    devices = sorted({op.location.device for op in graph.ops.values()}, key=_number)
    gpus = torch.cuda.device_count()
    for device in devices:
        if device.startswith("cuda") and _number(device) >= gpus and not (share and gpus):
            remedy = "name what the machine has, for example cpu:0 (option --devices)"
            raise missing_device(device, f"one of the {gpus} GPUs that torch sees", device, remedy)
    cpus = [device for device in devices if device.startswith("cpu")]
    if len(cpus) < 2:
        return dict.fromkeys(cpus, ())
    own = available()
    size = threads or threads_of(cpus)
    if (_number(cpus[-1]) + 1) * size > len(own) and not share:
        expected = f"cpu:0 to cpu:{max(0, len(own) // size - 1)}: there are "
        expected += f"{len(own)} cores, and a device has {size}"
        remedy = "use fewer devices or fewer threads for each, or let devices share cores "
        remedy += "(share_cores=True, --share-cores)"
        raise missing_device(cpus[-1], expected, ", ".join(cpus), remedy)
    count = len(own)
    cores = {device: range(_number(device) * size, (_number(device) + 1) * size) for device in cpus}
    return {
        device: tuple(own[core % count] for core in numbers[:count])
        for device, numbers in cores.items()
    }


def on_gpus(graph: Graph) -> bool:
    """Whether a graph has ops on GPUs."""
    return any(op.location.device.startswith("cuda") for op in graph.ops.values())


def threads_of(devices: Sequence[str]) -> int:
    """The default number of cores of each of several CPU devices: an equal share of all."""
    return max(1, len(available()) // (max(map(_number, devices)) + 1))


def threads_of_all() -> int:
    """The default number of threads of a single CPU device: as many as torch would use.

    Never more than the cores that the process may use now, since threads would wait for each other.
    """
    return min(int(torch.get_num_threads()), len(available()))


def pin(cores: tuple[int, ...]) -> None:
    """Bind the calling thread, and threads that it starts, to these cores; () binds to none.

    Does nothing where the system cannot bind threads.
    """
    if cores and hasattr(os, "sched_setaffinity") and applies("cores"):
        os.sched_setaffinity(0, cores)


def bind(process: int, cores: Sequence[int]) -> None:
    """Bind another process, which has just been started, to these cores."""
    if hasattr(os, "sched_setaffinity") and applies("cores"):
        os.sched_setaffinity(process, cores)


def available() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _number(device: str) -> int:
    return int(device.partition(":")[2])
