"""Synchronous data parallelism: a replica of the net on every device, and one update.

The given step is that of one replica: n replicas of a step with batch b train as the step with
batch n * b does. The owner of a parameter averages its gradient as soon as all replicas have it,
and updates the parameter; the next iteration's forward starts layer by layer as parameters arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import purine.kinds.average  # noqa: F401  (registers the kinds)
from purine.analysis.infer import check, size_in_bytes
from purine.arguments import at_least, checked
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Location
from purine.kinds.custom_gradient import refuse_parts
from purine.nearest import unknown_name
from purine.parallel._parts import (
    Part,
    add_joined,
    add_next,
    add_once,
    add_outputs,
    add_part,
    homes_of,
    joined_of,
    replicas_on,
)
from purine.parallel.across import HostReplicas
from purine.parallel.batch_norm import synchronise
from purine.parallel.halves import Halves, halve, shared_out
from purine.parallel.reduce import Reduction, Topology
from purine.placement import devices as machines
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import as_locations, devices_of, wrong_devices
from purine.placement.place import to_devices

__all__ = ["BatchNorms", "replicate"]

BatchNorms: TypeAlias = Literal["replica", "synchronised"]


@checked
def replicate(
    step: Graph | Sequence[Graph],
    devices: str | Iterable[str | Location],
    *,
    topology: Topology = "sharded",
    bucket: int = 1 << 16,
    unit: int = 1 << 18,
    shared: bool = False,
    batch_norm: BatchNorms = "replica",
    only: str | None = None,
) -> Graph:
    """A training step on several devices, whose batch is the sum of their batches.

    A step that is on m devices already (a pipeline, a sharded net) takes m devices for each
    replica. For devices that are not equally fast, `step` is a sequence of steps, one per replica,
    that differ in their batch alone.

    `topology` says how gradients are reduced: `sharded` (each parameter has an owner), `server`
    (one device owns all), `tree`, `ring`, or `native` (owners as in `sharded`, and the collective
    of the backend: NCCL between GPUs, Gloo between CPU devices of several hosts). Gradients of at
    most `bucket` bytes with one owner are averaged together.

    On several hosts, each host averages its own replicas first. Parameters of two or more `unit`
    bytes are cut into units, whose owners alternate between hosts. With `shared` the hosts are
    processes of one machine, which read parameters in memory that they share. With `only`, the
    graph is what this host needs: its own part, and of the others only the ends of transfers.
    If replicas span hosts or compute values of the whole batch together, it is the whole
    graph.

    With `batch_norm="replica"` batch norm normalises the samples of each replica by themselves, and
    the running statistics are the mean of all. With `"synchronised"` it sees the samples of all
    replicas (or the same micro-batch of all), which then wait for each other at every batch norm.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=16)), lr=0.1)
    >>> both = replicate(step, ["cpu:0", "cpu:1"])
    >>> [op.name for op in both.ops.values() if op.kind == "Data"]
    ['replica0/data', 'replica1/data']
    """
    at_least("bucket", bucket, 0)
    at_least("unit", unit, 0)
    steps, onto = _laid_out(step, as_locations(devices))
    if len(onto) == 1:
        return to_devices(steps[0], dict(zip(devices_of(steps[0]), onto[0], strict=True)))
    refuse_parts(steps[0], "replicas")
    if topology == "native":
        _refuse_unlike(onto)
    hosts = {at.host for group in onto for at in group}
    if only is not None and only not in hosts:
        raise unknown_name(ConfigError, "host", only, sorted(hosts))
    synchronised = batch_norm == "synchronised"
    parts = replicas_on(steps, onto)
    if len(hosts) == 1:
        graph = _Replicas(steps, parts).graph(topology, bucket)
    else:
        part = None if synchronised else only
        graph = HostReplicas(
            steps, parts, topology=topology, bucket=bucket, unit=unit, shared=shared, only=part
        ).graph()
    return check(insert_copies(synchronise(graph, parts) if synchronised else graph))


class _Replicas:
    """The graph of all replicas while it is built."""

    def __init__(self, steps: Sequence[Graph], parts: Sequence[Part]) -> None:
        self.steps, self.base, self.parts = steps, steps[0], parts
        self.halves: list[Halves] = [halve(step) for step in steps]

    def graph(self, topology: Topology, bucket: int) -> Graph:
        base, halves = self.base, self.halves[0]
        joined, batch = joined_of(base, halves), halves.made()
        gradients = {p: name for p, name in halves.gradients.items() if name not in joined.blobs}
        owners = self._owners(halves, topology)
        homes = homes_of(base, halves, self.parts[0], owners)
        builder = Builder()
        for name, blob in base.blobs.items():
            if name not in batch:
                builder.add(replace(blob, location=homes[name]))
        for step, own, part in zip(self.steps, self.halves, self.parts, strict=True):
            add_part(builder, step, own, part, joined=joined_of(step, own))
        add_joined(builder, base, joined, self.parts)
        Reduction(builder, self.parts).add(
            {border: (base.blobs[border], owners[p]) for p, border in gradients.items()},
            topology=topology,
            bucket=bucket,
            order=[op.name for op in halves.batch if op.name not in joined.names()],
        )
        for op in halves.once:
            add_once(builder, op, homes)
        copied = batch - joined.blobs
        for name, state in base.states.items():
            if state.next in copied:
                following = replace(base.blobs[state.next], location=homes[name])
                add_next(builder, following, self.parts)
            builder.add(state)
        borders = halves.gradients.values()
        add_outputs(builder, base, copied.difference(borders), self.parts)
        builder.control |= {edge for edge in base.control if builder.ops.keys() >= set(edge)}
        return builder.graph()

    def _owners(self, halves: Halves, topology: Topology) -> dict[str, Location]:
        """The device that averages and updates each parameter, balanced by size."""
        blobs = self.base.blobs

        def choices(parameter: str) -> Sequence[Location]:
            group = [part.located(blobs[parameter].location) for part in self.parts]
            return group[:1] if topology == "server" else group

        return shared_out({p: size_in_bytes(blobs[p]) for p in halves.gradients}, choices)


def _laid_out(
    step: Graph | Sequence[Graph], places: Sequence[Location]
) -> tuple[list[Graph], list[Sequence[Location]]]:
    """The step of each replica, and its devices."""
    given = [step] if isinstance(step, Graph) else step
    steps = [without_copies(check(one)) for one in given]
    own = devices_of(steps[0])
    _refuse(steps[0], steps, places, own)
    onto = [places[k : k + len(own)] for k in range(0, len(places), len(own))]
    return (steps * len(onto) if len(steps) == 1 else steps), onto


def _refuse_unlike(places: Sequence[Sequence[Location]]) -> None:
    """Refuse `native` unless all devices are GPUs, or all are CPU devices."""
    for group in zip(*places, strict=True):
        if len(set(map(machines.is_cpu, group))) > 1:
            what = "these devices have no collective in common"
            expected = "topology 'native' over GPUs only, or over CPU devices only"
            remedy = "name devices of one type, or use topology 'sharded'"
            raise wrong_devices(what, expected, ", ".join(map(str, group)), remedy)


def _refuse(
    base: Graph, steps: Sequence[Graph], places: Sequence[Location], own: Sequence[Location]
) -> None:
    replicas, rest = divmod(len(places), len(own))
    if not places or rest or len(steps) not in (1, replicas):
        count = f"a multiple of {len(own)}" if len(steps) == 1 else str(len(steps) * len(own))
        what = f"replicas of a step on {len(own)} devices cannot be laid over {len(places)}"
        raise wrong_devices(what, f"{count} devices", places, f"name {count} devices")
    machines.refuse_repeated(places)
    for other in steps[1:]:
        if other.states.keys() != base.states.keys():
            differing = sorted(other.states.keys() ^ base.states.keys())[0]
            what = "the steps of the replicas are not of one net"
            expected = "steps that differ only in their batch"
            found = f"state {differing!r} in one of them only"
            remedy = "build all from one net: with_batch(net, n)"
            raise GraphError(what, blob=differing, expected=expected, found=found, remedy=remedy)
