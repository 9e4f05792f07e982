"""The edges of a picture: which boxes they join, and the lines that they take.

`static/graph_edges.js` draws the same lines in a browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from purine.viewer.arrange import GAP_Y, Box, Picture
from purine.viewer.columns import Document

__all__ = ["Edge", "edges_of", "path_of"]


@dataclass(slots=True)
class Edge:
    """From box to box; `level` is the group that has both, `first` and `last` its members there.

    `form` is `in` for an edge inside a column, `side` for one to the next column, `far` for one to
    another, and `bucket` for gradients of several blocks that are reduced together, whose edges
    would cover the picture.
    """

    source: int
    target: int
    level: int
    first: int
    last: int
    form: str
    blobs: list[int] = field(default_factory=list)


def edges_of(document: Document, picture: Picture) -> list[Edge]:
    """The edges between the visible boxes, each once with all blobs that it carries."""
    nodes = document["nodes"]
    makers, readers = _ends(nodes)
    columns = {name: at for at, name in enumerate(document["columns"])}
    edges: dict[tuple[int, int], Edge] = {}
    for blob, targets in readers.items():
        sources = [blob] if "parent" in nodes[blob] else makers.get(blob, [])
        for source in (_seen(nodes, picture, n) for n in sources):
            for target in (_seen(nodes, picture, n) for n in targets):
                if source != target:
                    edge = edges.get((source, target))
                    if edge is None:
                        edge = edges[source, target] = _edge(nodes, source, target, columns)
                    if blob not in edge.blobs:
                        edge.blobs.append(blob)
    return list(edges.values())


def _ends(nodes: Sequence[Document]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    makers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        for blob in node.get("out", ()):
            makers.setdefault(blob, []).append(number)
        for blob in node.get("in", ()):
            readers.setdefault(blob, []).append(number)
    return makers, readers


def _seen(nodes: Sequence[Document], picture: Picture, number: int) -> int:
    """The innermost visible box that is the node or contains it."""
    while number not in picture.boxes:
        number = nodes[number]["parent"]
    return number


def _edge(nodes: Sequence[Document], source: int, target: int, columns: Mapping[str, int]) -> Edge:
    above, other = _line(nodes, source), _line(nodes, target)
    level = next(group for group in above[1:] if group in other[1:])
    first, last = above[above.index(level) - 1], other[other.index(level) - 1]
    form = "in"
    if level == 0:
        apart = abs(columns[nodes[first]["column"]] - columns[nodes[last]["column"]])
        form = "in" if apart == 0 else "side" if apart == 1 else "far"
        late = nodes[last]["column"] in ("gradients", "update")
        if late and nodes[first]["block"] != nodes[last]["block"]:
            form = "bucket"
    return Edge(source, target, level, first, last, form)


def _line(nodes: Sequence[Document], number: int) -> list[int]:
    line = [number]
    while line[-1]:
        line.append(nodes[line[-1]]["parent"])
    return line


def path_of(document: Document, picture: Picture, edge: Edge) -> str:
    """The line of an edge, as the `d` of an SVG path."""
    a, b = picture.boxes[edge.source], picture.boxes[edge.target]
    if edge.form in ("side", "bucket"):
        return _sideways(a, b)
    if edge.form == "far":
        return _far(a, b, picture.rows[edge.last] - GAP_Y / 2)
    ways = document["nodes"][edge.level]["ways"]
    way = next((w for w in ways if w[0] == edge.first and w[-1] == edge.last), ())
    bends = [picture.bends[edge.level, item] for item in way[1:-1]]
    return _along(a, b, bends)


def _along(a: Box, b: Box, bends: list[tuple[float, float, float]]) -> str:
    down = a.y + a.h <= b.y + 1
    if not down and a.y < b.y + b.h - 1:  # beside each other: an arc below both
        low = max(a.y + a.h, b.y + b.h)
        start, end = _middle(a), _middle(b)
        return (
            f"M{_n(start)} {_n(a.y + a.h)}C{_n(start)} {_n(low + 18)} {_n(end)} {_n(low + 18)} "
            f"{_n(end)} {_n(b.y + b.h)}"
        )
    start_y, end_y = (a.y + a.h, b.y) if down else (a.y, b.y + b.h)
    x = _port(a, bends[0][0] if bends else _middle(b))
    path, y = f"M{_n(x)} {_n(start_y)}", start_y
    for middle, top, bottom in bends:
        near, away = (top, bottom) if down else (bottom, top)
        path += f"{_curve(x, y, middle, near)}V{_n(away)}"
        x, y = middle, away
    return path + _curve(x, y, _port(b, x), end_y)


def _sideways(a: Box, b: Box) -> str:
    right = a.x < b.x
    x1, x2 = (a.x + a.w, b.x) if right else (a.x, b.x + b.w)
    y1, y2 = _level(a, b), _level(b, a)
    half = (x1 + x2) / 2
    return f"M{_n(x1)} {_n(y1)}C{_n(half)} {_n(y1)} {_n(half)} {_n(y2)} {_n(x2)} {_n(y2)}"


def _far(a: Box, b: Box, gap: float) -> str:
    """The line to a column further away, through the gap above the row of the target."""
    side = 1 if a.x < b.x else -1
    x1, x2 = (a.x + a.w, b.x) if side > 0 else (a.x, b.x + b.w)
    y1, y2 = a.y + a.h / 2, b.y + b.h / 2
    first, second = x1 + 26 * side, x2 - 26 * side
    return (
        f"M{_n(x1)} {_n(y1)}C{_n(first)} {_n(y1)} {_n(x1)} {_n(gap)} {_n(first)} {_n(gap)}"
        f"H{_n(second)}C{_n(x2)} {_n(gap)} {_n(second)} {_n(y2)} {_n(x2)} {_n(y2)}"
    )


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    if x1 == x2:
        return f"V{_n(y2)}"
    half = (y1 + y2) / 2
    return f"C{_n(x1)} {_n(half)} {_n(x2)} {_n(half)} {_n(x2)} {_n(y2)}"


def _middle(box: Box) -> float:
    return box.x + box.w / 2


def _port(box: Box, towards: float) -> float:
    """Where an edge meets the top or bottom of a box: a little towards the side of the other
    end."""
    most = box.w * 0.36
    return _middle(box) + max(-most, min(most, (towards - _middle(box)) * 0.4))


def _level(box: Box, other: Box) -> float:
    most = box.h * 0.3
    apart = other.y + other.h / 2 - box.y - box.h / 2
    return box.y + box.h / 2 + max(-most, min(most, apart * 0.2))


def _n(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0")
