"""Lowering: the ordered passes from a verified step to the graph that one machine runs.

A lowered step is the same computation in the form that is cheapest to dispatch here. No pass
changes a result by more than the rounding of another kernel for the same operation, and no pass
renames a state or an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from purine.errors import ConfigError
from purine.graph import Graph
from purine.graph.verify import RULES, Rule
from purine.lowering.aliases import without_aliases
from purine.lowering.collectives import without_collectives
from purine.lowering.hosts import part_of
from purine.lowering.lowered import Lowered
from purine.lowering.packing import with_packed_filters
from purine.lowering.products import with_kept_products
from purine.lowering.rules import PACKED_RULES, SHARED_MEMORY_RULES, lowering_problems
from purine.lowering.segments import joined, pays
from purine.lowering.shares import in_shares
from purine.nearest import unknown_name
from purine.registry.aten import device_of

__all__ = ["LOWERING", "Options", "Pass", "lower", "options_for"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a lowering.

    With `segments` the ops of a lane are dispatched in groups. A trace of single ops needs them
    single. `host` is the host whose part is lowered; None stands for the only host.
    """

    segments: bool = False
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of lowering.

    `why` is its purpose in one sentence. `rules` are those that its result obeys. The pass is
    skipped if `applies` is false for the options. With `whole` its result has all inputs, states
    and outputs of the graph before it.
    """

    name: str
    why: str
    function: Callable[[Graph, Options], Lowered]
    rules: tuple[Rule, ...]
    applies: Callable[[Options], bool] = lambda options: True
    whole: bool = True


LOWERING: tuple[Pass, ...] = (
    Pass(
        "hosts",
        "A host runs its own part; a copy between hosts becomes a put and an arrival.",
        lambda graph, options: Lowered(part_of(graph, options.host or "")),
        RULES,
        applies=lambda options: options.host is not None,
        whole=False,
    ),
    Pass(
        "aliases",
        "Copies between devices that share memory move no bytes, so they are not dispatched.",
        lambda graph, options: without_aliases(graph),
        SHARED_MEMORY_RULES,
    ),
    Pass(
        "collectives",
        "A collective becomes a mean over shared memory, a call of NCCL, or copies and a mean.",
        lambda graph, options: without_collectives(graph),
        SHARED_MEMORY_RULES,
    ),
    Pass(
        "shares",
        "All devices that share memory average and apply a part of each large gradient.",
        lambda graph, options: in_shares(graph),
        SHARED_MEMORY_RULES,
    ),
    Pass(
        "products",
        "On several hosts, gradients of large parameters are written to memory that is reused.",
        lambda graph, options: with_kept_products(graph),
        SHARED_MEMORY_RULES,
        applies=lambda options: options.host is not None,
    ),
    Pass(
        "packing",
        "Filters that several convolutions read are reordered for the library's kernels once.",
        lambda graph, options: with_packed_filters(graph),
        PACKED_RULES,
    ),
    Pass(
        "segments",
        "Consecutive ops of a lane are dispatched as one, without the interpreter.",
        lambda graph, options: joined(graph),
        PACKED_RULES,
        applies=lambda options: options.segments,
    ),
)
"""The passes, in the order in which they run."""


def options_for(step: Graph, host: str | None = None) -> Options:
    """The options with which a step runs fastest on this host.

    Ops of GPUs are enqueued one by one: enqueueing is cheap, and streams overlap them.
    """
    locations = {op.location for op in step.ops.values()}
    own = [location for location in locations if host in (None, location.host)]
    on_gpus = any(device_of(location).type != "cpu" for location in own)
    return Options(segments=not on_gpus and pays(step), host=host)


def lower(step: Graph, options: Options | None = None, *, after: str | None = None) -> Lowered:
    """The form in which this machine runs a verified step, or its form `after` one of the passes.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=8)
    >>> step = pu.compose(net, solver=pu.solvers.sgd, devices="cpu:0-1")
    >>> lowered = lower(step, Options(segments=True))
    >>> len(lowered.graph.ops) < len(lower(step, after="aliases").graph.ops) < len(step.ops)
    True
    """
    options, names = options or Options(), [item.name for item in LOWERING]
    if after is not None and after not in names:
        remedy = "name one of the passes"
        raise unknown_name(ConfigError, "lowering pass", after, names, remedy=remedy)
    lowered = Lowered(step)
    for item in LOWERING:
        if item.applies(options):
            lowered = _applied(item, lowered, options)
        if item.name == after:
            break
    return lowered


def _applied(item: Pass, lowered: Lowered, options: Options) -> Lowered:
    before, result = lowered.graph, item.function(lowered.graph, options)
    if result.graph is before:
        return lowered
    for error in lowering_problems(result.graph, item.rules, before, whole=item.whole):
        raise AssertionError(f"lowering pass {item.name!r} returned a wrong graph: {error}")
    return replace(result, kernels={**lowered.kernels, **result.kernels})
