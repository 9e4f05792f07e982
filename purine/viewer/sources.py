"""The source lines of the ops of a step: the file and line of the net that they come from.

Ops that transforms make are in no file. Their `Origin` names an op or a parameter of the net, which
has a line in the file of the net.
"""

from __future__ import annotations

from purine.graph import Graph
from purine.graph.names import GRADIENT, origin_of

__all__ = ["source_lines"]


def source_lines(step: Graph, net: Graph) -> dict[str, str]:
    """By op of a step the `file:line` of its origin, if the net was read from a file."""
    known = {name: blob.where for name, blob in net.blobs.items() if name in net.states}
    known |= {name: op.where for name, op in net.ops.items()}
    lines = {}
    for name, op in step.ops.items():
        origin = origin_of(op)
        line = op.where or _line(origin.of.removeprefix(origin.parts), known)
        if line is not None:
            lines[name] = line
    return lines


def _line(name: str, known: dict[str, str | None]) -> str | None:
    """The line of the longest beginning of a name that the net has."""
    _, gradient, of = f"/{name}".partition(f"/{GRADIENT}/")
    path = of if gradient else name
    while path and path not in known:
        path = path.rpartition("/")[0]
    return known.get(path)
