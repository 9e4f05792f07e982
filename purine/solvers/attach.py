"""What all solvers share: an update op per parameter, its states and the learning rate.

The parameters of a graph are its trainable states that have a gradient. The op `update/<name>`
writes the next value of a parameter, `<name>/next`, at the location of the parameter; where the
loss is scaled it writes `<name>/updated`, from which the next value is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.arguments import not_negative
from purine.autodiff import gradient_of
from purine.errors import GraphError
from purine.graph import Attribute, Blob, Builder, Filler, Graph, Origin
from purine.graph.names import slot_of, update_of
from purine.kinds.loss_scale import FINITE, UPDATES
from purine.placement.copies import insert_copies
from purine.registry.clock import ITERATION
from purine.registry.lookup import kinds
from purine.solvers.rates import Rate, add_rate

__all__ = ["attach", "parameters"]


def parameters(graph: Graph) -> tuple[str, ...]:
    """The trainable states that have a gradient and nothing that updates them yet."""
    names = tuple(
        name
        for name, state in graph.states.items()
        if state.trainable and state.lr_mult != 0 and gradient_of(name) in graph.blobs
    )
    if not names:
        trainable = [name for name, state in graph.states.items() if state.trainable]
        what, expected = "the graph has no gradients", "a blob grad/NAME for the trainable states"
        found = f"trainable: {', '.join(trainable) or 'none'}; no gradient of any"
        raise GraphError(what, expected, found, "run backward first: sgd(backward(net))")
    for name in names:
        state = graph.states[name]
        if state.next != state.read:
            what = f"parameter {name!r} is updated already"
            expected = "a graph to which no solver was added"
            found = f"a state that carries on to {state.next!r}"
            remedy = "add one solver, and accumulate or clip before it"
            raise GraphError(what, expected, found, remedy, where=state.where, blob=name)
    return names


def attach(
    graph: Graph,
    kind: str,
    slots: Sequence[str],
    lr: float | Rate,
    weight_decay: float,
    **attributes: Attribute,
) -> Graph:
    """The graph with an update op of `kind`, which has these attributes, for each parameter.

    The op reads the weight, its gradient, a state `<slot>/<name>` for each slot, the rate, and the
    number of the iteration if its kind takes it. Where the loss is scaled, skipped iterations are
    not counted in that number.
    """
    not_negative("weight_decay", weight_decay)
    names = parameters(graph)
    builder = Builder(graph)
    rate = add_rate(builder, lr)
    builder.outputs.append(rate)
    known = kinds()[kind]
    number = UPDATES if UPDATES in builder.blobs else ITERATION
    clock = [number] if ITERATION in known.inputs else []
    for name in names:
        weight, state = builder.blobs[name], builder.states[name]
        origin = Origin(name, "update")
        states = [slot_of(slot, name) for slot in slots]
        for item in states:
            builder.add(replace(weight, name=item, where=None))
            builder.state(item, _following(builder, item, weight), Filler(), origin=origin)
        builder.states[name] = replace(state, next=_following(builder, name, weight))
        decay = weight_decay * state.decay_mult
        settings = {**attributes, "weight_decay": decay, "lr_mult": state.lr_mult}
        inputs = [name, gradient_of(name), *states, rate, *clock]
        outputs = [_written(builder, item, weight, origin) for item in (name, *states)]
        changed = {k: v for k, v in settings.items() if v != known.attributes[k].default}
        at = weight.location
        builder.op(update_of(name), kind, inputs, outputs, changed, location=at, origin=origin)
    return insert_copies(builder.graph())


def _written(builder: Builder, name: str, like: Blob, origin: Origin) -> str:
    """The blob that an update writes; a scaled loss drops it if a gradient is not finite."""
    following = builder.states[name].next
    if FINITE not in builder.blobs:
        return following
    updated = builder.blob(f"{name}/updated", like.shape, like.dtype, like.location)
    inputs, location = [FINITE, updated, name], like.location
    builder.op(following, "aten.where.self", inputs, [following], location=location, origin=origin)
    return updated


def _following(builder: Builder, name: str, like: Blob) -> str:
    """Add the blob that a state is read from in the next iteration."""
    builder.add(replace(like, name=f"{name}/next", where=None))
    return f"{name}/next"
