"""The memory layout of images and filters, as a property of blobs.

Convolutions compute in the layout of their inputs, and later ops keep it. So a run sets the layout
only of blobs that no op computes: batches, inputs, filters and their optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from purine.analysis.cost import cost
from purine.analysis.infer import complete
from purine.arguments import checked
from purine.errors import ConfigError
from purine.graph import CHANNELS_LAST, NOTHING, Builder, Graph, Op
from purine.kinds.fused import refuse_fused
from purine.nearest import unknown_name
from purine.registry.facts import Role
from purine.registry.lookup import lookup

__all__ = ["Layout", "layout"]

Layout: TypeAlias = Literal["auto", "channels-last", "contiguous"]
"""What people ask for."""

_FORWARD = (Role.CONVOLUTION, Role.TRANSPOSED_CONVOLUTION)
_CONVOLUTIONS = (*_FORWARD, Role.CONVOLUTION_BACKWARD)


@checked
def layout(graph: Graph, form: str = "auto") -> Graph:
    """The graph with the layout of its images and filters set.

    `channels-last` sets that layout for image batches, filters, their optimizer state, and copies
    and casts of these. `contiguous` removes all layouts. `auto` is `channels-last` where more than
    half of the floating-point operations are convolutions of images. The results are the same to
    rounding. Apply it before `fuse`; other transforms keep layouts.

    >>> from purine.zoo import lenet, mlp
    >>> str(layout(lenet(batch=2)).blobs["conv1/weight"])
    'conv1/weight: float32 20x1x5x5 channels-last'
    >>> layout(mlp(batch=2)) == mlp(batch=2)
    True
    """
    forms = get_args(Layout)
    if form not in forms:
        raise unknown_name(ConfigError, "layout", form, forms)
    refuse_fused(graph, "layout")
    builder = Builder(graph)
    for name, blob in graph.blobs.items():
        if blob.layout:
            builder.blobs[name] = replace(blob, layout="")
    known = complete(graph)
    if form == CHANNELS_LAST or (form == "auto" and _mostly_convolutions(known)):
        for name in _laid_out(known):
            if name in builder.blobs:
                builder.blobs[name] = replace(builder.blobs[name], layout=CHANNELS_LAST)
    return builder.graph()


def _mostly_convolutions(graph: Graph) -> bool:
    flops = {name: cost(op, graph.blobs).flops for name, op in graph.ops.items()}
    convolutions = (op for op in graph.ops.values() if _role(op) in _CONVOLUTIONS)
    inside = sum(flops[op.name] for op in convolutions if _is_image(graph, op.inputs[0]))
    return 2 * inside > sum(flops.values())


def _laid_out(graph: Graph) -> set[str]:
    """The blobs that are laid out, in a graph whose shapes are known."""
    given = {name for op in graph.ops.values() if op.kind == "Data" for name in op.outputs}
    laid_out = {name for name in (*graph.inputs, *given) if _is_image(graph, name)}
    filters = set(_filters(graph))
    for name in [*filters]:  # and the optimizer states of a filter, which its update reads
        updates = [op for op in graph.consumers[name] if _role(op) not in _CONVOLUTIONS]
        for other in (blob for op in updates if op.outputs for blob in op.inputs):
            if other in graph.states and graph.blobs[other].shape == graph.blobs[name].shape:
                filters.add(other)
    laid_out |= filters | {graph.states[name].next for name in filters}
    for op in graph.in_order:
        if _role(op) is Role.COPY and op.inputs[0] in laid_out:
            laid_out.add(op.outputs[0])
    return laid_out | _gradients_between_hosts(graph, laid_out)


def _gradients_between_hosts(graph: Graph, laid_out: set[str]) -> set[str]:
    """Gradients of filters that are laid out, where they go to another host, at both ends.

    Convolutions make them in the layout of the filter, but what is sent has that of its blob. In
    another one it would be put in order first, and averages of both would take long. A host may
    have only its end of the way, so ways are followed in both directions.
    """
    next_to: dict[str, list[str]] = {}
    known, copies = list[str](), set[str]()
    joins = (op for op in graph.ops.values() if _role(op) is Role.CONCATENATION)
    filters = laid_out.union(*(op.outputs for op in joins if laid_out.issuperset(op.inputs)))
    for op in graph.ops.values():
        for one, other in _passed_on(op):
            next_to.setdefault(one, []).append(other)
            next_to.setdefault(other, []).append(one)
        if _role(op) is Role.CONVOLUTION_BACKWARD and filters.intersection(op.inputs):
            known += op.results
        if _role(op) is Role.ELEMENTWISE_UPDATE and laid_out.intersection(op.inputs):
            known += (name for name in op.inputs if name not in graph.states)
        if op.kind == "Copy" and _is_image(graph, op.outputs[0]):
            source, target = (graph.blobs[name].location for name in (*op.inputs, *op.outputs))
            copies |= {*op.inputs, *op.outputs} if source.host != target.host else set()
    reached = set[str]()
    while known:
        name = known.pop()
        if name not in reached:
            reached.add(name)
            known += next_to.get(name, ())
    return reached & copies


def _passed_on(op: Op) -> Iterator[tuple[str, str]]:
    """The pairs of an input and an output of an op that have the same values, or rows or means."""
    if op.kind == "Copy" or op.kind == "aten.split_with_sizes":
        yield from ((op.inputs[0], name) for name in op.outputs)
    elif op.kind in ("Average", "Reduce"):
        count = len(op.outputs)
        yield from ((name, op.outputs[k % count]) for k, name in enumerate(op.inputs))


def _filters(graph: Graph) -> Iterator[str]:
    """The states that convolutions of images read, directly or copied, cast or joined."""
    for op in graph.ops.values():
        if _role(op) not in _FORWARD or not _is_image(graph, op.inputs[1]):
            continue
        stack = [op.inputs[1]]
        while stack:
            name = stack.pop()
            maker = graph.producers.get(name)
            if name in graph.states:
                yield name
            elif maker is not None and _role(maker) in (Role.COPY, Role.CONCATENATION):
                stack += maker.inputs


def _role(op: Op) -> Role | None:
    return lookup(op).facts.role


def _is_image(graph: Graph, name: str) -> bool:
    """Whether a blob has the dimensions of images, or of filters for them."""
    return name != NOTHING and len(graph.blobs[name].shape or ()) == 4
