"""Which rules of `graph.verify` hold for a lowered graph, level by level.

A step obeys all rules. Lowering puts a weaker rule in place of two of them:

- After `aliases`, ops read blobs of other devices without a copy. `one_location` becomes
  `one_memory`: such a blob must be in memory that the reader addresses directly.
- After `packing`, filters may be in a layout private to the convolution library. `layouts_fit`
  becomes `layouts_fit_or_packed`: only the output of a `PackFilters` op may have such a layout.

Inputs, states and outputs stay the same at all levels. `agrees_with_its_kind`, by far the slowest
rule, looks only at ops that a pass has added or changed, or whose blobs it has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from purine.analysis.infer import RegisteredKinds
from purine.errors import GraphError
from purine.graph import COLLECTIVES, NOTHING, Graph, Op
from purine.graph.verify import RULES, Kinds, Rule, agrees_with_its_kind, layouts_fit, one_location
from purine.kinds.packed_filters import PACKED, TURNED
from purine.lowering.packing import PACK
from purine.registry.aten import device_of

__all__ = ["PACKED_RULES", "SHARED_MEMORY_RULES", "lowering_problems"]


def one_memory(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op writes blobs of its own location and reads blobs that its device can address.

    A `Copy` and the inputs of a collective may be anywhere.
    """
    locations = {blob.location for blob in graph.blobs.values()}
    locations |= {op.location for op in graph.ops.values()}
    memory = {location: (location.host, device_of(location)) for location in locations}
    for op in graph.ops.values():
        if op.kind == "Copy":
            continue
        read = () if op.kind in COLLECTIVES else op.inputs
        at = {n: graph.blobs[n].location for n in (*read, *op.outputs) if n in graph.blobs}
        far = [name for name in read if name in at and memory[at[name]] != memory[op.location]]
        far += [name for name in op.outputs if name in at and at[name] != op.location]
        for name in dict.fromkeys(far):
            used = f"{name!r} at {graph.blobs[name].location}"
            expected = "inputs in memory that the op's device addresses, outputs at the op"
            what = f"op {op.name!r} at {op.location} uses {used}"
            yield GraphError(what, op=op, blob=name, expected=expected, found=used)


def layouts_fit_or_packed(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A layout is one that a step may have, or the output of a `PackFilters` op is packed."""
    packed = {
        name
        for op in graph.ops.values()
        if op.kind == PACK
        for name in op.outputs
        if graph.blobs[name].layout in (PACKED, TURNED)
    }
    others = {name: blob for name, blob in graph.blobs.items() if name not in packed}
    yield from layouts_fit(replace(graph, blobs=others), kinds)


def _instead(rules: tuple[Rule, ...], old: Rule, new: Rule) -> tuple[Rule, ...]:
    return tuple(new if rule is old else rule for rule in rules)


SHARED_MEMORY_RULES = _instead(RULES, one_location, one_memory)
"""The rules after `aliases`."""
PACKED_RULES = _instead(SHARED_MEMORY_RULES, layouts_fit, layouts_fit_or_packed)
"""The rules after `packing`."""


def lowering_problems(
    graph: Graph, rules: tuple[Rule, ...], before: Graph | None = None, *, whole: bool = True
) -> Iterator[GraphError]:
    """What is wrong with a graph by these rules, given that `before` obeyed those of its level.

    With `whole` it must have the inputs, states and outputs of `before`.
    """
    kinds = RegisteredKinds()
    if before is not None and whole:
        yield from _other_interface(graph, before)
    for rule in rules:
        if rule is agrees_with_its_kind and before is not None:
            yield from rule(replace(graph, ops=_changed(graph, before)), kinds)
        else:
            yield from rule(graph, kinds)


def _other_interface(graph: Graph, before: Graph) -> Iterator[GraphError]:
    """Inputs, states and outputs of a graph stay as they were."""
    for what in ("inputs", "states", "outputs"):
        changed = set(getattr(before, what)) ^ set(getattr(graph, what))
        if changed:
            yield GraphError(f"the {what} of the graph have changed: {', '.join(sorted(changed))}")


def _changed(graph: Graph, before: Graph) -> dict[str, Op]:
    """The ops of a graph that are not ops of `before` with the same blobs."""
    same = {name for name, blob in graph.blobs.items() if before.blobs.get(name) is blob}
    same.add(NOTHING)
    return {
        name: op
        for name, op in graph.ops.items()
        if before.ops.get(name) is not op or not same.issuperset((*op.inputs, *op.outputs))
    }
