"""All schemes of parallelism in one call, in the order in which they go together.

    net -> its part of the batch -> shard or hybrid -> mixed -> backward -> clip -> solver
        -> pipeline (or accumulate) -> recompute -> replicate

The net that is given is that of the whole batch, and the step trains as that net does on one
device. Accumulated batches are more micro-batches of the same schedule: a pipeline is filled and
emptied once for an update, however many batches it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from purine.analysis.infer import with_batch
from purine.analysis.sample_rules import is_batch_norm
from purine.analysis.samples import MIXED
from purine.arguments import checked
from purine.autodiff.batch_marks import batch_of_net
from purine.errors import ConfigError
from purine.graph import Graph, Location
from purine.parallel._halves import batch_of
from purine.parallel._reduce import Topology
from purine.parallel.hybrid import hybrid
from purine.parallel.pipeline import pipeline
from purine.parallel.replicate import BatchNorms, replicate
from purine.parallel.scheme import Scheme
from purine.parallel.shard import shard
from purine.placement.devices import as_locations, devices_of

__all__ = ["compose", "refuse_devices"]


@checked
def compose(
    net: Graph,
    *,
    solver: Callable[[Graph], Graph],
    devices: str | Iterable[str | Location],
    clip: float | None = None,
    accumulate: int = 1,
    precision: str | None = None,
    scheme: Scheme | None = None,
    **settings: Any,
) -> Graph:
    """The training step of a net on several devices, by a scheme or by the settings of one.

    `solver` makes a step of a net with gradients, which are clipped to the norm `clip` before it.
    An update is made of `accumulate` batches of the net. `precision` is what `mixed` takes, or
    None for the net as it is. Without settings every device has a replica; the settings are those
    of `Scheme`.

    >>> import purine as pu
    >>> step = compose(
    ...     pu.zoo.lenet(batch=32),
    ...     solver=lambda graph: pu.solvers.sgd(graph, lr=0.1),
    ...     devices="cpu:0-3",
    ...     data=2,
    ...     pipeline=2,
    ... )
    >>> len(pu.parallel.devices_of(step)), step.blobs["replica1/micro3/data"].shape
    (4, (4, 1, 28, 28))
    """
    # These import from this package.
    from purine.autodiff import backward, losses_of
    from purine.optimize.mixed import mixed
    from purine.optimize.recompute import recompute
    from purine.parallel.accumulate import accumulate as accumulated
    from purine.solvers.clip import clip_by_norm

    places = as_locations(devices)
    if scheme is None:
        scheme = Scheme.of(settings) if settings else Scheme(data=max(1, len(places)))
    refuse_devices(scheme, places)
    part = _part(net, scheme.shares)
    if scheme.data == scheme.devices > 1 and scheme.micro_batches == accumulate == 1:
        part = _gathered(part, scheme, losses_of(part))
    if scheme.model > 1:
        group = f"cpu:0-{scheme.model - 1}"
        part = hybrid(part, group) if scheme.hybrid else shard(part, group)
    step = backward(part if precision is None else mixed(part, precision))
    if clip is not None:
        step = clip_by_norm(step, clip)
    step = solver(step)
    if scheme.pipeline > 1:
        grid = scheme.grid(accumulate)
        step = pipeline(
            step,
            devices=f"cpu:0-{scheme.model * scheme.pipeline - 1}",
            micro=scheme.micro_batches * accumulate,
            schedule=grid,
            cut=scheme.cut or None,
        )
    else:
        step = accumulated(step, scheme.micro_batches * accumulate)
    if scheme.recompute is not None:
        step = recompute(step, scheme.recompute)
    _refuse_idle(step, scheme, places)
    return replicate(
        step,
        places,
        topology=cast(Topology, scheme.topology),
        bucket=scheme.bucket,
        batch_norm=cast(BatchNorms, scheme.batch_norm),
    )


def _gathered(net: Graph, scheme: Scheme, losses: Iterable[str]) -> Graph:
    """A net that mixes samples, laid over all replicas: one device computes what mixes them.

    Every other net is given back as it is. So is one whose batch norm is to be synchronised, since
    before the mixing op every device has its own samples alone: `replicate` then refuses it.
    """
    batch = batch_of_net(net, losses)
    mixes = any(relation is MIXED for relation in batch.relations.values())
    normalises = any(is_batch_norm(op) for op in net.ops.values())
    together = scheme.batch_norm == "synchronised" and normalises
    if not mixes or batch.reduced or together:
        return net
    return hybrid(net, f"cpu:0-{scheme.data - 1}", split=batch.mixing, cut=False)


def refuse_devices(scheme: Scheme, places: tuple[Location, ...]) -> None:
    if scheme.devices != len(places):
        factors = {"data": scheme.data, "pipeline": scheme.pipeline, "model": scheme.model}
        product = " * ".join(f"{name} {count}" for name, count in factors.items())
        raise ConfigError(
            f"the scheme is for {scheme.devices} devices, and {len(places)} are named",
            expected=f"{product} = {scheme.devices} devices",
            found=", ".join(place.device for place in places[:16]) or "none",
            remedy="name as many devices, or change data, pipeline and model",
        )


def _refuse_idle(step: Graph, scheme: Scheme, places: tuple[Location, ...]) -> None:
    """Devices without work would be taken for those of further replicas."""
    wanted = as_locations(f"cpu:0-{scheme.pipeline * scheme.model - 1}")
    idle = [k for k, location in enumerate(wanted) if location not in devices_of(step)]
    if idle:
        pipes = scheme.pipeline > 1
        raise ConfigError(
            f"{len(idle)} of the {len(wanted)} devices of a replica would have no work",
            expected=f"layers to cut over {scheme.model} devices" + " in every stage" * pipes,
            found="nothing to compute at " + ", ".join(places[k].device for k in idle),
            remedy="ask for fewer devices" + ", or name the stages with cut" * pipes,
        )


def _part(net: Graph, shares: Mapping[str, int]) -> Graph:
    """The net for one of the parts that the batch is cut into."""
    whole = rest = batch_of(net)
    for name, count in shares.items():
        if rest % count:
            cut = " * ".join(f"{key} {value}" for key, value in shares.items() if value > 1)
            raise ConfigError(
                f"a batch of {whole} cannot be cut by {cut}: {name} {count} does not divide {rest}",
                expected=f"a multiple of {_product(shares)} samples",
                found=f"a batch of {whole}",
                remedy=f"use a batch of {-(-whole // _product(shares)) * _product(shares)}, "
                f"or another {name}",
            )
        rest //= count
    return net if rest == whole else with_batch(net, rest)


def _product(shares: Mapping[str, int]) -> int:
    total = 1
    for count in shares.values():
        total *= count
    return total
