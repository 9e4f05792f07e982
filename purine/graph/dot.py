"""A graph in the language of Graphviz: ops are boxes, blobs are ellipses, colours are locations.

Equal graphs have equal texts. Render one with `dot -Tsvg`.
"""

from __future__ import annotations

from collections.abc import Iterator

from purine.arguments import checked
from purine.graph.graph import Graph
from purine.graph.nodes import Blob, Location, Op

__all__ = ["to_dot"]

_COLOURS = (
    *("#cfe2f3", "#fce5cd", "#d9ead3", "#ead1dc"),
    *("#fff2cc", "#d9d2e9", "#d0e0e3", "#f4cccc"),
)


@checked
def to_dot(graph: Graph) -> str:
    """The graph in the language of Graphviz.

    A state has a double border and a dashed edge from its next blob. Control edges are dotted. With
    several locations a legend names their colours, which repeat after eight.

    >>> from purine.graph.builder import Builder
    >>> b = Builder()
    >>> _ = b.op("relu1", "Relu", [b.blob("x", (2, 3))], [b.blob("y", (2, 3))])
    >>> print(to_dot(b.graph()).splitlines()[0])
    digraph purine {
    """
    body = "\n".join(f"  {line}" for line in _lines(graph))
    return f"digraph purine {{\n{body}\n}}\n"


def _lines(graph: Graph) -> Iterator[str]:
    nodes: list[Blob | Op] = [*graph.blobs.values(), *graph.ops.values()]
    locations = sorted({node.location for node in nodes})
    colours = {location: _COLOURS[i % len(_COLOURS)] for i, location in enumerate(locations)}
    yield 'node [style=filled, fontname="Helvetica", fontsize=11];'
    yield 'edge [color="#555555", arrowsize=0.7];'
    if len(locations) > 1:
        yield from _legend(colours)
    for blob in graph.blobs.values():
        label = _quoted(f"{blob.name}\n{blob.type_text}")
        border = ", peripheries=2" if blob.name in graph.states else ""
        colour = colours[blob.location]
        yield f'{_blob(blob.name)} [shape=ellipse, label={label}, fillcolor="{colour}"{border}];'
    for op in graph.ops.values():
        label = _quoted(f"{op.name}\n{op.kind}")
        yield f'{_op(op.name)} [shape=box, label={label}, fillcolor="{colours[op.location]}"];'
    for op in graph.ops.values():
        for name in op.inputs:
            yield f"{_blob(name)} -> {_op(op.name)};"
        for name in op.results:
            yield f"{_op(op.name)} -> {_blob(name)};"
    for state in graph.states.values():
        if state.next != state.read:
            yield f"{_blob(state.next)} -> {_blob(state.read)} [style=dashed, constraint=false];"
    for before, after in sorted(graph.control):
        yield f"{_op(before)} -> {_op(after)} [style=dotted];"


def _legend(colours: dict[Location, str]) -> Iterator[str]:
    yield "subgraph cluster_legend {"
    yield '  label="locations"; fontname="Helvetica"; fontsize=11; color="#aaaaaa";'
    for location, colour in colours.items():
        node, text = _quoted(f"location:{location}"), _quoted(str(location))
        yield f'  {node} [shape=plain, label={text}, fillcolor="{colour}"];'
    yield "}"


def _op(name: str) -> str:
    return _quoted(f"op:{name}")


def _blob(name: str) -> str:
    return _quoted(f"blob:{name}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
