"""Clipping by the global norm: between `backward` and a solver, which reads clipped gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import purine.kinds.update  # noqa: F401  (registers the kinds)
from purine.arguments import checked, positive
from purine.autodiff import GRADIENT, gradient_of
from purine.graph import Builder, Graph, Location, Origin
from purine.placement.copies import insert_copies
from purine.solvers.attach import parameters

__all__ = ["clip_by_norm"]


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
            builder.ops[op.name] = replace(
                op,
                inputs=tuple(raw.get(name, name) for name in op.inputs),
                outputs=tuple(raw.get(name, name) for name in op.outputs),
            )
    norm = _norm(builder, list(raw.values()))
    for name, (clipped, gradient) in zip(names, raw.items(), strict=True):
        builder.op(
            builder.fresh(f"{clipped}/clip"),
            "ClipGradient",
            [gradient, norm],
            [clipped],
            {"max_norm": max_norm},
            location=builder.blobs[clipped].location,
            origin=Origin(name, "update"),
        )
    return insert_copies(builder.graph())


def _norm(builder: Builder, gradients: Sequence[str]) -> str:
    """Add the norm of all gradients; with several locations, the norm of their norms."""
    groups: dict[Location, list[str]] = {}
    for name in gradients:
        groups.setdefault(builder.blobs[name].location, []).append(name)
    norm = builder.fresh(f"{GRADIENT}/norm")
    norms: list[str] = []
    origin = Origin(norm, "update")
    for number, (location, names) in enumerate(groups.items()):
        own = norm if len(groups) == 1 else f"{norm}/{number}"
        builder.blob(own, (), "float64", location)
        builder.op(own, "GlobalNorm", names, [own], location=location, origin=origin)
        norms.append(own)
    if len(groups) > 1:
        first = next(iter(groups))
        builder.blob(norm, (), "float64", first)
        builder.op(norm, "GlobalNorm", norms, [norm], location=first, origin=origin)
    return norm
