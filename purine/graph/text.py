"""A graph as short text: one line per op, in topological order.

Equal graphs have equal texts, so tests can compare them. The text cannot be read back; the form
that can is `purine.graph.yaml`. `Graph.__str__` is defined by this module, which therefore needs
`Graph` only as a type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from purine.graph.nodes import NOTHING, Attribute, Blob, Location, Op, State

if TYPE_CHECKING:
    from purine.graph.graph import Graph

__all__ = ["graph_lines", "type_text"]

_HERE = Location()


def type_text(blob: Blob | None) -> str:
    """Dtype, shape and layout of a blob; `?` for a blob that does not exist."""
    return "?" if blob is None else blob.type_text


def graph_lines(graph: Graph) -> Iterator[str]:
    """The ops of a graph, then its inputs, states, control edges and outputs."""
    for name in dict.fromkeys((*graph.order, *graph.ops)):  # ops on a cycle come last
        yield _op_line(graph, graph.ops[name])
    for name in graph.inputs:
        blob = graph.blobs[name]
        yield f"input {name}: {type_text(blob)}{_at(blob.location)}"
    for state in graph.states.values():
        yield _state_line(graph, state)
    for before, after in sorted(graph.control):
        yield f"control {before} -> {after}"
    for name in graph.outputs:
        yield f"output {name}"


def _op_line(graph: Graph, op: Op) -> str:
    arguments = ", ".join((*op.inputs, *_settings(op.attributes)))
    lane = "" if op.lane == "compute" else f" lane {op.lane}"
    call = f"{op.name}: {op.kind}({arguments}){_at(op.location)}{lane}"
    if not op.outputs:
        return call
    results = ", ".join(name or "_" for name in op.outputs)
    types = ", ".join(_result_type(graph, op, name) for name in op.outputs)
    return f"{results} = {call}    # {types}"


def _result_type(graph: Graph, op: Op, name: str) -> str:
    if name == NOTHING:
        return "_"
    blob = graph.blobs.get(name)
    if blob is None or blob.location == op.location:
        return type_text(blob)
    return f"{type_text(blob)} @ {blob.location}"


def _state_line(graph: Graph, state: State) -> str:
    settings = ", ".join(_settings(state.filler.attributes))
    notes = ["trainable"] if state.trainable else []
    notes.append(f"{state.filler.kind}({settings})" if settings else state.filler.kind)
    if state.lr_mult != 1.0:
        notes.append(f"lr_mult={state.lr_mult}")
    if state.decay_mult != 1.0:
        notes.append(f"decay_mult={state.decay_mult}")
    blob = graph.blobs.get(state.read)
    location = "" if blob is None else _at(blob.location)
    pair = f"state {state.read} -> {state.next}"
    return f"{pair} ({', '.join(notes)}){location}    # {type_text(blob)}"


def _settings(attributes: Mapping[str, Attribute]) -> Iterator[str]:
    return (f"{key}={value!r}" for key, value in attributes.items())


def _at(location: Location) -> str:
    return "" if location == _HERE else f" @ {location}"
