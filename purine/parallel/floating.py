"""Floating micro-batches: the device that is idle computes the next one.

A step that cuts its batch has copies of its batch half, each with a device. `floating` puts every
copy on a floating lane of its own: the dispatcher gives it to a device when its first op is ready,
not when the graph is built. The ops that combine the copies stay where they are and add in a fixed
order, so the bits are those of fixed devices, however fast each device is.
"""

from __future__ import annotations

from dataclasses import replace

from purine.arguments import checked
from purine.errors import ConfigError
from purine.graph import Builder, Graph, Op
from purine.graph.names import origin_of
from purine.graph.verify import dependent_floating_lanes
from purine.parallel._parts import BESIDE
from purine.placement.devices import is_cpu

__all__ = ["floating"]


@checked
def floating(step: Graph) -> Graph:
    """The step with each micro-batch of each replica on a floating lane.

    Use it on a step that `accumulate` and `replicate` have put on the CPU devices of a host, or of
    several: micro-batches move between the devices of their host.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    >>> step = pu.parallel.replicate(pu.parallel.accumulate(step, 2), "cpu:0-1")
    >>> moving = pu.parallel.floating(step)
    >>> moving.ops["replica1/micro0/fc1"].lane
    'float:2'
    """
    builder = Builder(step)
    numbers: dict[str, int] = {}
    for op in step.ops.values():
        origin = origin_of(op)
        if op.lane != "compute":
            continue
        if origin.role == "reduce":
            builder.ops[op.name] = replace(op, lane=BESIDE)  # before the compute of its device
        elif origin.parts:
            if not is_cpu(op.location):
                raise _cannot(f"op {op.name!r} is at {op.location}", op)
            lane = f"float:{numbers.setdefault(origin.parts, len(numbers))}"
            builder.ops[op.name] = replace(op, lane=lane)
    if not numbers:
        raise _cannot("no op belongs to a part of a batch")
    result = builder.graph()
    for one, other in dependent_floating_lanes(result):
        raise _cannot(f"op {other.name!r} waits for op {one.name!r} of another micro-batch", other)
    return result


def _cannot(found: str, op: Op | None = None) -> ConfigError:
    return ConfigError(
        "the micro-batches of this step cannot float",
        op=op,
        expected="copies of the net on CPU devices that do not wait for each other",
        found=found,
        remedy="use only replicas and micro-batches, on CPU devices, without synchronised batch "
        "norm; or leave floating out",
    )
