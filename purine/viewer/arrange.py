"""Coordinates for a graph document: boxes, the routes of edges, and columns.

`static/graph_arrange.js` does the same in a browser, with the same numbers, so that a group can be
opened there. Rows and their order come from the document. Here items of a row move as near as
possible to the middle of their neighbours, without overlapping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from purine.viewer.columns import Document

__all__ = ["Box", "Picture", "arrange", "opened"]

PAD, HEAD, GAP_X, GAP_Y, GAP_COLUMN, BEND = 12.0, 26.0, 16.0, 26.0, 76.0, 10.0
_SWEEPS = 8
_BEND_WEIGHT = 4.0


@dataclass(slots=True)
class Box:
    """A rectangle: its left, its top, and its size."""

    x: float
    y: float
    w: float
    h: float
    is_open: bool = False


@dataclass(slots=True)
class Picture:
    """Boxes by node; bends by group and number: the middle, top and bottom of an edge that passes a
    row."""

    w: float = 0.0
    h: float = 0.0
    boxes: dict[int, Box] = field(default_factory=dict)
    bends: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    columns: list[tuple[float, float]] = field(default_factory=list)
    rows: dict[int, float] = field(default_factory=dict)
    """The top of the row of each member of the root."""


@dataclass(slots=True)
class _Level:
    """The members of an open group, placed from its own corner."""

    w: float
    h: float
    boxes: dict[int, Box]
    columns: list[tuple[float, float]]
    tops: list[float]
    heights: list[float]


def arrange(document: Document, unfolded: Collection[int]) -> Picture:
    """Place all visible items, with these groups open."""
    nodes: Sequence[Document] = document["nodes"]
    levels: dict[int, _Level] = {}
    _measure(nodes, 0, {0, *unfolded}, levels)
    picture = Picture()
    root = levels[0]
    picture.w, picture.h, picture.columns = root.w, root.h, root.columns
    for row, top in zip(nodes[0]["rows"], root.tops, strict=True):
        picture.rows.update((item, top) for cell in row for item in cell if item > 0)
    _compose(nodes, 0, 0.0, 0.0, levels, picture)
    return picture


def opened(document: Document, depth: int | None, most: int = 40) -> set[int]:
    """The groups to open: all above a depth, or as many as keep the number of boxes small."""
    nodes: Sequence[Document] = document["nodes"]
    unfolded: set[int] = set()
    layer = _members(nodes[0])
    level = 1
    while True:
        layer = [item for item in layer if nodes[item]["type"] == "group" and _is_deep(nodes[item])]
        inner = [item for group in layer for item in _members(nodes[group])]
        if not layer or (len(inner) > most if depth is None else level >= depth):
            return unfolded
        unfolded.update(layer)
        layer, level = inner, level + 1


def _is_deep(node: Document) -> bool:
    return len(_members(node)) > 1


def _members(node: Document) -> list[int]:
    return [item for row in node.get("rows", ()) for cell in row for item in cell if item > 0]


def _measure(
    nodes: Sequence[Document], number: int, unfolded: set[int], levels: dict[int, _Level]
) -> tuple[float, float]:
    node = nodes[number]
    if number not in unfolded or "rows" not in node:
        return node["size"][0], node["size"][1]
    sizes = {item: _measure(nodes, item, unfolded, levels) for item in _members(node)}
    level = levels[number] = _level(node, sizes)
    if number == 0:
        return level.w, level.h
    title = node["size"][0] + 16.0
    return max(level.w + 2 * PAD, title), level.h + HEAD + PAD


def _level(node: Document, sizes: Mapping[int, tuple[float, float]]) -> _Level:
    rows: list[list[list[int]]] = node["rows"]
    heights = [
        max((sizes[item][1] for cell in row for item in cell if item > 0), default=0.0)
        for row in rows
    ]
    tops, y = [], 0.0
    for height in heights:
        tops.append(y)
        y += height + GAP_Y
    level = _Level(0.0, max(0.0, y - GAP_Y), {}, [], tops, heights)
    left = 0.0
    for column in range(len(rows[0])):
        cells = [row[column] for row in rows]
        widths = {n: sizes[n][0] if n > 0 else BEND for cell in cells for n in cell}
        middles = _middles(cells, node["ways"], widths)
        start = min((middles[n] - widths[n] / 2 for n in widths), default=0.0)
        end = max((middles[n] + widths[n] / 2 for n in widths), default=0.0)
        for at, cell in enumerate(cells):
            for item in cell:
                width, height = widths[item], sizes[item][1] if item > 0 else heights[at]
                x = left + middles[item] - start - width / 2
                level.boxes[item] = Box(x, tops[at] + (heights[at] - height) / 2, width, height)
        level.columns.append((left, end - start))
        left += end - start + GAP_COLUMN
    level.w = left - GAP_COLUMN
    return level


def _middles(
    cells: Sequence[Sequence[int]], ways: Sequence[Sequence[int]], widths: Mapping[int, float]
) -> dict[int, float]:
    """The x of the middle of each item, near the mean of its neighbours above and below."""
    row_of = {item: at for at, cell in enumerate(cells) for item in cell}
    neighbours: dict[int, list[int]] = {item: [] for item in row_of}
    for way in ways:
        for first, second in pairwise(way):
            if first in row_of and second in row_of and row_of[first] != row_of[second]:
                neighbours[first].append(second)
                neighbours[second].append(first)
    middles: dict[int, float] = {}
    for cell in cells:
        x = -sum(widths[item] + GAP_X for item in cell) / 2
        for item in cell:
            middles[item] = x + (widths[item] + GAP_X) / 2
            x += widths[item] + GAP_X
    for sweep in range(_SWEEPS):
        order = range(len(cells)) if sweep % 2 == 0 else range(len(cells) - 1, -1, -1)
        side = -1 if sweep % 2 == 0 else 1
        for at in order:
            wanted = []
            for item in cells[at]:
                near = [n for n in neighbours[item] if (row_of[n] - at) * side > 0]
                if sweep >= _SWEEPS - 2:
                    near = neighbours[item]
                total = sum(middles[n] for n in near)
                wanted.append(total / len(near) if near else middles[item])
            middles.update(zip(cells[at], _spread(cells[at], wanted, widths), strict=True))
    return middles


def _spread(
    items: Sequence[int], wanted: Sequence[float], widths: Mapping[int, float]
) -> list[float]:
    """The positions nearest to the wanted ones (least squares) at which items keep their
    distance."""
    offsets, x = [], 0.0
    for at, item in enumerate(items):
        if at:
            x += (widths[items[at - 1]] + widths[item]) / 2 + GAP_X
        offsets.append(x)
    blocks: list[list[float]] = []  # weight, weighted sum, count: items that touch
    for item, want, offset in zip(items, wanted, offsets, strict=True):
        weight = 1.0 if item > 0 else _BEND_WEIGHT
        blocks.append([weight, weight * (want - offset), 1.0])
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] >= blocks[-1][1] / blocks[-1][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    places = [total / weight for weight, total, count in blocks for _ in range(int(count))]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]


def _compose(
    nodes: Sequence[Document],
    number: int,
    x: float,
    y: float,
    levels: Mapping[int, _Level],
    picture: Picture,
) -> None:
    """Move the members of an open group to its position."""
    level = levels[number]
    for item, box in level.boxes.items():
        left, top = x + box.x, y + box.y
        if item < 0:
            picture.bends[number, item] = (left + box.w / 2, top, top + box.h)
            continue
        picture.boxes[item] = Box(left, top, box.w, box.h, item in levels)
        if item in levels:
            inner = left + (box.w - levels[item].w) / 2
            _compose(nodes, item, inner, top + HEAD, levels, picture)
