"""What all solvers share: an update op per parameter, its states and the learning rate.

The parameters of a graph are its trainable states that have a gradient. Each keeps its name; its
state carries on to the blob `<name>/next` that the op `update/<name>` writes (where the loss is
scaled, `<name>/updated`, of which it is made). Updates are where their parameter is; what they read
from elsewhere is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        raise GraphError(
            "the graph has no gradients",
            expected="a blob grad/NAME for the trainable states",
            found=f"trainable: {', '.join(trainable) or 'none'}; no gradient of any",
            remedy="run backward first: sgd(backward(net))",
        )
    for name in names:
        state = graph.states[name]
        if state.next != state.read:
            raise GraphError(
                f"parameter {name!r} is updated already",
                where=state.where,
                blob=name,
                expected="a graph to which no solver was added",
                found=f"a state that carries on to {state.next!r}",
                remedy="add one solver, and accumulate or clip before it",
            )
    return names


def attach(
    graph: Graph,
    kind: str,
    *,
    lr: float | Rate,
    slots: Sequence[str] = (),
    weight_decay: float = 0.0,
    attributes: Mapping[str, Attribute] | None = None,
) -> Graph:
    """The graph with an update op of `kind` for each parameter.

    The op reads the weight, its gradient, a state `<slot>/<name>` for each slot, and the rate; and
    the number of the iteration where its kind asks for it. Where the loss is scaled, that is the
    number of updates: an iteration that is skipped is none to a solver.
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
        settings: dict[str, Attribute] = {
            **(attributes or {}),
            "weight_decay": weight_decay * state.decay_mult,
            "lr_mult": state.lr_mult,
        }
        builder.op(
            update_of(name),
            kind,
            [name, gradient_of(name), *states, rate, *clock],
            [_made(builder, item, weight, origin) for item in (name, *states)],
            {k: v for k, v in settings.items() if v != known.attributes[k].default},
            location=weight.location,
            origin=origin,
        )
    return insert_copies(builder.graph())


def _made(builder: Builder, name: str, like: Blob, origin: Origin) -> str:
    """The blob that an update writes: what carries a state on, unless a gradient is not finite.

    Where the loss is scaled, a state then keeps its value.
    """
    following = builder.states[name].next
    if FINITE not in builder.blobs:
        return following
    made = builder.blob(f"{name}/updated", like.shape, like.dtype, like.location)
    builder.op(
        following,
        "aten.where.self",
        [FINITE, made, name],
        [following],
        location=like.location,
        origin=origin,
    )
    return made


def _following(builder: Builder, name: str, like: Blob) -> str:
    """Add the blob that carries a state on."""
    builder.add(replace(like, name=f"{name}/next", where=None))
    return f"{name}/next"
