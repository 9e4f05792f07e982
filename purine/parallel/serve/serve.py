"""Asynchronous training as a graph: the step of one worker, copied for several.

The workers of a graph share only states, so each continues at its own speed. A worker trains the
batch of its ticket, which no other worker has. If the staleness is 0, the graph is that of
`replicate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from purine.analysis.infer import check
from purine.arguments import checked
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, Location
from purine.graph.nodes import floats
from purine.kinds.loss_scale import FINITE
from purine.parallel.replicate import replicate
from purine.parallel.serve.across import over_hosts
from purine.parallel.serve.downpour import downpour
from purine.parallel.serve.easgd import easgd
from purine.parallel.serve.gossip import gossip
from purine.parallel.serve.local_sgd import local
from purine.parallel.serve.rule import RULES, Asynchronous
from purine.parallel.serve.ssp import hogwild, ssp
from purine.parallel.serve.worker import Worker, join_workers
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import (
    as_locations,
    devices_of,
    is_cpu,
    refuse_repeated,
    wrong_devices,
)
from purine.placement.place import to_devices
from purine.placement.values import shards_of
from purine.registry.clock import ITERATION

__all__ = ["serve"]

_SCHEMES: Mapping[str, Callable[[Worker], None]] = {
    "ssp": ssp,
    "downpour": downpour,
    "hogwild": hogwild,
    "easgd": easgd,
    "gossip": gossip,
    "local": local,
    "diloco": local,
}


@checked
def serve(
    step: Graph,
    devices: str | Iterable[str | Location],
    scheme: str | Asynchronous = "ssp",
    **settings: object,
) -> Graph:
    """A training step on several workers that do not wait for each other.

    `step` is that of one worker. A step that is on m devices (replicas, a pipeline) takes m devices
    for each worker. `scheme` and `settings` are those of `Asynchronous`.

    Each iteration of a worker trains one batch, which a ticket names; n workers take as many
    batches as n replicas. Running statistics of batch norm and all other states that no solver
    updates belong to each worker, and their means over workers are measured and saved. The losses
    are those of each worker.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=16)), lr=0.1)
    >>> both = serve(step, "cpu:0-1", "ssp", staleness=2)
    >>> [op.name for op in both.ops.values() if op.kind == "Data"]
    ['worker0/data', 'worker1/data']
    >>> both.outputs[0], both.states["worker1/fc1/weight"].shared
    ('worker0/loss', 'fc1/weight')
    """
    rule = scheme if isinstance(scheme, Asynchronous) else Asynchronous.of(scheme, settings)
    places, base = as_locations(devices), without_copies(check(step))
    own = devices_of(base)
    if rule.synchronous:
        return replicate(step, places)
    across = len({at.host for at in places}) > 1
    servers = rule.count("servers") if "servers" in RULES[rule.scheme] else 0
    _refuse_places(places, own, servers if across else 0)
    _refuse_step(base)
    if servers and not across:
        what, expected = "a server is for workers on several hosts", "devices of several hosts"
        raise ConfigError(what, expected, f"servers={servers}", "leave servers out")
    _refuse_untrained(Worker(base, 0, 1, rule))
    if across:
        return check(over_hosts(base, own, places, rule))
    count = len(places) // len(own)
    workers = []
    for number in range(count):
        onto = places[number * len(own) : (number + 1) * len(own)]
        placed = without_copies(to_devices(base, dict(zip(own, onto, strict=True))))
        workers.append(Worker(placed, number, count, rule))
        _SCHEMES[rule.scheme](workers[-1])
    return check(insert_copies(join_workers(workers)))


def _refuse_places(places: Sequence[Location], own: Sequence[Location], servers: int) -> None:
    if len(places) <= servers or (len(places) - servers) % len(own):
        what = f"workers of a step on {len(own)} devices cannot be laid over {len(places)}"
        remedy = f"name {len(own)} devices for each worker"
        raise wrong_devices(what, f"a multiple of {len(own)} devices", places, remedy)
    refuse_repeated(places)
    if not all(map(is_cpu, places)):
        what, expected = "workers cannot be on GPUs", "CPU devices"
        remedy = "name such devices, or train synchronously: replicate(step, devices)"
        raise wrong_devices(what, expected, places, remedy)


def _refuse_step(step: Graph) -> None:
    """An error for steps that cannot be the step of a worker."""
    if FINITE in step.blobs:
        raise ConfigError(
            "workers cannot share a loss scale",
            expected="a step without a loss scale",
            found=f"blob {FINITE!r}",
            remedy="train in bf16 or fp32",
        )
    if shards_of(step):
        raise ConfigError(
            "workers cannot share parameters that are cut over devices",
            expected="workers with whole parameters: replicas or a pipeline",
            found=f"{next(iter(shards_of(step)))!r}, a shard",
            remedy="leave model=N out",
        )
    if any(floats(op.lane) for op in step.ops.values()):
        what, expected = "the work of workers cannot float", "ops with a device"
        remedy = "leave floating out: workers do not wait for each other anyway"
        raise ConfigError(what, expected, "lanes float:K", remedy)
    if any(op.worker or op.every != 1 for op in step.ops.values()):
        what, expected = "the step is one of workers already", "the step of one worker"
        remedy = "call serve once, on the step of one worker"
        raise GraphError(what, expected, "ops of several workers or periods", remedy)


def _refuse_untrained(worker: Worker) -> None:
    """An error for a step without a solver, or without a count of iterations."""
    if not worker.updates or ITERATION not in worker.step.states:
        what, expected = "the step has no solver", "an update of each parameter"
        remedy = "add a solver first: sgd(backward(net))"
        raise GraphError(what, expected, "gradients alone", remedy)
