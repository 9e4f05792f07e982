"""Pruning: the part of a graph that the requested outputs depend on.

`evaluation` first replaces each kind by its test-time form (no dropout, running statistics);
`inference` also removes the source, so that the caller feeds the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from purine.analysis.infer import complete
from purine.arguments import checked
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Builder, Graph, Op
from purine.nearest import nearest_names
from purine.registry.lookup import lookup

__all__ = ["evaluation", "inference", "prune"]


@checked
def prune(
    graph: Graph, outputs: Sequence[str] | None = None, *, states: Sequence[str] | None = None
) -> Graph:
    """The part of a graph that its outputs and states need.

    `outputs` are the requested blobs, by default those of the graph. `states` are the states to
    keep, by default all; a state that something needs is always kept, with all its update needs.
    """
    wanted = tuple(graph.outputs if outputs is None else outputs)
    for name in wanted:
        if name not in graph.blobs:
            what = f"there is no blob {name!r} to ask for"
            remedy = nearest_names(name, graph.blobs, "see `purine show` for the names")
            raise GraphError(what, "the name of a blob of the graph", repr(name), remedy, blob=name)
    roots = graph.states if states is None else states
    stack = [*wanted, *roots, *(graph.states[name].next for name in roots)]
    blobs: set[str] = set()
    ops: set[str] = set()
    while stack:
        name = stack.pop()
        if name in blobs:
            continue
        blobs.add(name)
        if name in graph.states:
            stack.append(graph.states[name].next)
        producer = graph.producers.get(name)
        if producer is not None and producer.name not in ops:
            ops.add(producer.name)
            stack += producer.inputs
    kept: dict[str, Op] = {}
    for name, op in graph.ops.items():
        if name in ops:
            results = tuple(blob if blob in blobs else NOTHING for blob in op.outputs)
            kept[name] = op if results == op.outputs else replace(op, outputs=results)
    return replace(graph.only(blobs, kept), outputs=wanted)


@checked
def evaluation(net: Graph, outputs: Sequence[str] | None = None) -> Graph:
    """The graph that measures a net: test-time kinds, the test source in order, no gradients.

    >>> from purine.zoo import nin
    >>> any(op.kind == "Dropout" for op in evaluation(nin(batch=2)).ops.values())
    False
    """
    net = complete(net)
    wanted = tuple(net.outputs if outputs is None else outputs)
    builder = Builder(net)
    passed: dict[str, str] = {}
    for op in net.in_order:
        name, op = op.name, replace(op, inputs=tuple(passed.get(item, item) for item in op.inputs))
        builder.ops[name] = op
        form = lookup(op).evaluation
        if op.kind == "Data":
            settings = {**op.attributes, "source": "test", "shuffle": False}
            builder.ops[name] = replace(op, attributes=settings)
        elif form == "pass" and op.outputs[0] not in wanted:
            passed[op.outputs[0]] = op.inputs[0]
            del builder.ops[name]
        elif form == "pass":
            builder.ops[name] = Op(name, "StopGradient", op.inputs[:1], op.outputs, {}, op.location)
        elif form is not None:
            # The test-time kind takes fewer inputs.
            count = len(lookup(replace(op, kind=form)).inputs)
            test = replace(op, kind=form, inputs=op.inputs[:count], outputs=op.outputs[:1])
            builder.ops[name] = test
            # Running statistics, the last of the inputs, keep their values.
            carried = zip(reversed(op.outputs[1:]), reversed(op.inputs), strict=False)
            passed.update((after, before) for after, before in carried if after != NOTHING)
    written = {blob for op in builder.ops.values() for blob in op.outputs}
    for name, state in builder.states.items():
        if state.next not in written:
            builder.states[name] = replace(state, next=name)
    return prune(builder.graph(), wanted, states=())


@checked
def inference(net: Graph, outputs: Sequence[str]) -> Graph:
    """The graph that computes `outputs` from data that the caller feeds.

    >>> from purine.zoo import lenet
    >>> inference(lenet(batch=2), ["fc2"]).inputs
    ('data',)
    """
    if not outputs:
        what, expected = "no outputs are asked for", "one or more names of blobs of the net"
        raise ConfigError(what, expected, "none", f"name blobs, for example {list(net.sinks[:1])}")
    measured = evaluation(net, outputs)
    builder = Builder(measured)
    for op in measured.ops.values():
        if op.kind == "Data":
            del builder.ops[op.name]
    return prune(builder.graph(), outputs, states=())
