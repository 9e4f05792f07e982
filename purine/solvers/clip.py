"""Clipping by the global norm: between `backward` and a solver, which reads clipped gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.arguments import checked, positive
from purine.autodiff import GRADIENT, gradient_of
from purine.graph import Builder, Graph, Location, Op, Origin
from purine.placement.copies import insert_copies
from purine.solvers.attach import parameters

__all__ = ["clip_by_norm", "norm_of_norms"]


@checked
def clip_by_norm(graph: Graph, max_norm: float) -> Graph:
    """The graph with gradients clipped as `torch.nn.utils.clip_grad_norm_` does it.

    The raw gradient of parameter p is blob `grad/p/raw`, the clipped one `grad/p`; blob `grad/norm`
    holds the norm before clipping.
    """
    positive("max_norm", max_norm)
    names = parameters(graph)
    raw = {gradient_of(name): f"{gradient_of(name)}/raw" for name in names}
    builder = Builder(graph)
    for old, new in raw.items():
        builder.add(replace(builder.blobs[old], name=new))
    for op in graph.ops.values():
        if not raw.keys().isdisjoint((*op.inputs, *op.outputs)):
            builder.ops[op.name] = op.renamed(raw)
    norm, location = builder.fresh(f"{GRADIENT}/norm"), builder.blobs[next(iter(raw))].location
    homes = {name: builder.blobs[name].location for name in raw.values()}
    whole = Op(norm, "GlobalNorm", tuple(homes), (norm,), location=location)
    builder.add(norm_of_norms(builder, replace(whole, origin=Origin(norm, "update")), homes))
    builder.blob(norm, (), "float64", location)
    for name, (clipped, gradient) in zip(names, raw.items(), strict=True):
        clip, at = builder.fresh(f"{clipped}/clip"), homes[gradient]
        op = Op(clip, "ClipGradient", (gradient, norm), (clipped,), {"max_norm": max_norm}, at)
        builder.add(replace(op, origin=Origin(name, "update")))
    return insert_copies(builder.graph())


def norm_of_norms(builder: Builder, op: Op, homes: Mapping[str, Location]) -> Op:
    """The norm of all gradients as the norm of the norms at each location, which are added."""
    groups: dict[Location, list[str]] = {}
    for name in op.inputs:
        groups.setdefault(homes[name], []).append(name)
    if len(groups) == 1:
        return op
    norms = []
    for number, (home, names) in enumerate(groups.items()):
        norm = builder.fresh(f"{op.name}/{number}")
        norms.append(builder.blob(norm, (), "float64", home))
        builder.add(replace(op, name=norm, inputs=tuple(names), outputs=(norm,), location=home))
    return replace(op, inputs=tuple(norms))
