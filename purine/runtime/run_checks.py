"""Checks before a run starts, and the communicators that it gets."""

from __future__ import annotations

from purine.errors import ConfigError
from purine.graph import Graph
from purine.lowering.hosts import hosts_of
from purine.lowering.together import Group, groups_of
from purine.machine.cores import on_gpus
from purine.machine.settings import tf32_of
from purine.transports.communicator import Communicator
from purine.transports.open_world import OpenWorld
from purine.transports.world import World

__all__ = ["communicators_of", "held_tf32", "refuse_hosts", "refuse_inputs"]


def refuse_hosts(graph: Graph, world: World | None) -> None:
    """A step on several hosts needs a process on each of them."""
    hosts = hosts_of(graph)
    if world is None and len(hosts) > 1:
        what = f"the step is on {len(hosts)} hosts, and this process is alone"
        remedy = f"start them: purine launch --hosts {len(hosts)} -- train ..., or torchrun"
        raise ConfigError(what, "a process for each of " + ", ".join(hosts), "one process", remedy)
    if isinstance(world, OpenWorld):
        return  # they come when they like
    if world is not None and not set(hosts) <= set(world.hosts):
        expected, found = "devices of " + ", ".join(world.hosts), "devices of " + ", ".join(hosts)
        remedy = "name devices of all hosts, or start as many hosts as are named"
        raise ConfigError("the step is not on the hosts that were started", expected, found, remedy)


def refuse_inputs(part: Graph) -> None:
    """Refuse to step a graph with inputs; its states can be read and set all the same."""
    for name in part.inputs:
        raise ConfigError(
            f"nothing makes blob {name!r}",
            blob=part.blobs[name],
            expected="a step whose batches come from a Data op",
            found=f"inputs {', '.join(part.inputs)}",
            remedy="let the net begin with a Data op, or feed it: "
            f"pu.compute(graph, {{{name!r}: ...}})",
        )


def held_tf32(graph: Graph, tf32: bool, *, needed: bool) -> bool | None:
    """The TF32 to hold while a graph runs; `ConfigError` if it is asked for and cannot be had.

    Of several hosts, one with a GPU is enough: the others do not need it.
    """
    held = tf32_of(graph, tf32)
    if not (tf32 and needed) or held is not None:
        return held
    if on_gpus(graph):
        what = "tf32 is asked for, and effect 'gpu-math' is declined"
        raise ConfigError(what, "tf32 without PURINE_DECLINE=gpu-math", "both", "leave one out")
    what, expected = "tf32 is asked for, and no op is on a GPU", "a graph with ops on GPUs"
    found = "devices " + ", ".join(sorted({op.location.device for op in graph.ops.values()}))
    remedy = "leave tf32 out, or move the graph: pu.to_device(graph, 'cuda:0')"
    raise ConfigError(what, expected, found, remedy)


def communicators_of(step: Graph, world: World) -> dict[Group, Communicator]:
    """The communicators of a step's groups of collectives that this host is in."""
    groups = groups_of(step)
    ends = world.communicators(groups)
    return {group: one for group, one in zip(groups, ends, strict=True) if one is not None}
