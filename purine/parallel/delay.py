"""Delayed updates: forward and backward read parameters that lack the newest updates.

With a staleness of one, an iteration starts while the gradients of the one before are still being
computed and reduced: no device waits for the slowest at the end of a step, and a pipeline is never
drained. The delay is exact, so the bits depend on nothing but the seed.
"""

from __future__ import annotations

from dataclasses import replace

from purine.analysis.infer import check
from purine.arguments import at_least, checked
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Origin, State
from purine.graph.names import is_late, late_of, origin_of, update_of
from purine.parallel._parts import BESIDE
from purine.placement.values import shards_of
from purine.registry.fillers import with_name

__all__ = ["delay"]


@checked
def delay(step: Graph, staleness: int = 1) -> Graph:
    """The step with parameters that forward and backward read `staleness` iterations late.

    Iteration *i* computes gradients with the parameters that iteration *i - staleness* began with,
    and applies them to the newest. The first iterations read the first values. The old values are
    states, so checkpoints contain them. Updates and tests read the newest values.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    >>> late = delay(step, 1)
    >>> late.ops["grad/fc2/mm"].inputs
    ('grad/fc2', 'late1/fc2/weight')
    """
    at_least("staleness", staleness, 1)
    _refuse(check(step))
    builder = Builder(step)
    for state in _updated(step):
        _delay(step, builder, state, staleness)
    return check(builder.graph())


def _updated(step: Graph) -> list[State]:
    """The parameters that the solver of a step updates."""
    states = step.states.values()
    return [state for state in states if state.trainable and state.next in step.producers]


def _delay(step: Graph, builder: Builder, state: State, staleness: int) -> None:
    """Keep the last values of a parameter, and let the batch half read the oldest of them."""
    parameter, newer = state.read, state.read
    blob = step.blobs[parameter]
    for age in range(1, staleness + 1):
        late = late_of(age, parameter)
        following = f"{late}/next"
        for name in (late, following):
            builder.add(replace(blob, name=name, where=None))
        origin = Origin(parameter, "update")
        builder.state(late, following, with_name(state.filler, parameter), origin=origin)
        builder.op(
            update_of(late),
            "aten.clone",
            [newer],
            [following],
            location=blob.location,
            lane=BESIDE,
            origin=origin,
        )
        newer = late
    for reader in step.consumers[parameter]:
        if origin_of(reader).role != "update":
            op = builder.ops[reader.name]
            builder.ops[reader.name] = op.renamed({parameter: newer})


def _refuse(step: Graph) -> None:
    """An error for steps whose parameters cannot be read late."""
    if not _updated(step):
        what, expected = "the step has no solver", "an update of each parameter"
        remedy = "add a solver first: sgd(backward(net))"
        raise GraphError(what, expected, "no state that an op updates", remedy)
    hosts = {op.location.host for op in step.ops.values()}
    found = {
        "devices of several hosts": len(hosts) > 1,
        "layers that are cut over devices": bool(shards_of(step)),
        "workers, whose reads are stale anyway": any(op.worker for op in step.ops.values()),
        "parameters that are already read late": any(map(is_late, step.states)),
    }
    for reason, applies in found.items():
        if applies:
            raise ConfigError(
                "the parameters of this step cannot be read late",
                expected="replicas, micro-batches and pipelines on devices of one host",
                found=reason,
                remedy="leave staleness out, or that",
            )
