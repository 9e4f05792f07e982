"""Layered drawing (Sugiyama): the row of each node, and the order of each row.

Edges go down from row to row. An edge that crosses rows has a bend in each of them, a negative
number, so that it gets a gap between the nodes. Coordinates are computed where the picture is
drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Edge", "Layers", "layers_of", "ordered", "ranks_of"]

_SWEEPS = 8
_WIDEST = 6
"""Nodes in a row: a rank with more becomes several rows."""

Edge = tuple[int, int]


@dataclass(slots=True)
class Layers:
    """Rows of nodes and bends, and for each edge its path from row to row."""

    rows: list[list[int]] = field(default_factory=list)
    ways: list[list[int]] = field(default_factory=list)


def layers_of(nodes: Sequence[int], edges: Sequence[Edge], *, upwards: bool = False) -> Layers:
    """Rows for nodes, which are given in the order of execution.

    >>> layers_of([1, 2, 3], [(1, 2), (2, 3), (1, 3)])
    Layers(rows=[[1], [2, -1], [3]], ways=[[1, 2], [2, 3], [1, -1, 3]])
    """
    ranks = ranks_of(nodes, edges)
    by_rank: dict[int, list[int]] = {}
    for node in nodes:
        by_rank.setdefault(ranks[node], []).append(node)
    rows: list[list[int]] = []
    for rank in sorted(by_rank):
        members = by_rank[rank]
        count = -(-len(members) // _WIDEST)
        size = -(-len(members) // count)
        rows.extend(members[at : at + size] for at in range(0, len(members), size))
    layers = ordered(rows, edges)
    if upwards:
        layers.rows.reverse()
    return layers


def ranks_of(nodes: Sequence[int], edges: Sequence[Edge]) -> Mapping[int, int]:
    """The rank of each node: the longest path to it. A node without predecessors is near its
    reader.

    Folding by names can make cycles: there the node that runs first comes first.
    """
    place = {node: at for at, node in enumerate(_topological(nodes, edges))}
    before: dict[int, list[int]] = {node: [] for node in nodes}
    after: dict[int, list[int]] = {node: [] for node in nodes}
    for source, target in edges:
        if place[source] < place[target]:
            before[target].append(source)
            after[source].append(target)
    ranks: dict[int, int] = {}
    for node in place:
        ranks[node] = max((ranks[source] + 1 for source in before[node]), default=0)
    for node in nodes:
        if not before[node] and after[node]:
            ranks[node] = min(ranks[target] for target in after[node]) - 1
    return ranks


def _topological(nodes: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Nodes after their dependencies; on a cycle the first of the remaining nodes is next."""
    after: dict[int, list[int]] = {node: [] for node in nodes}
    waiting = dict.fromkeys(nodes, 0)
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    order: list[int] = []
    left = dict.fromkeys(nodes)
    while left:
        node = next((node for node in left if waiting[node] == 0), None)
        if node is None:
            node = min(left, key=lambda one: waiting[one])
        del left[node]
        order.append(node)
        for target in after[node]:
            waiting[target] -= 1
    return order


def ordered(rows: Sequence[Sequence[int]], edges: Iterable[Edge]) -> Layers:
    """Put bends into rows, and order each row so that few edges cross."""
    layers = Layers([list(row) for row in rows])
    row_of = {node: at for at, row in enumerate(rows) for node in row}
    bend = 0
    for source, target in dict.fromkeys(edges):
        first, last = row_of[source], row_of[target]
        step = 1 if first <= last else -1
        way = [source]
        for at in range(first + step, last, step):
            bend -= 1
            layers.rows[at].append(bend)
            way.append(bend)
        layers.ways.append([*way, target])
    if any(len(row) > 1 for row in layers.rows):
        _sweep(layers)
    return layers


def _sweep(layers: Layers) -> None:
    """Order rows by the mean position of their neighbours, down and up; keep the best order."""
    neighbours: dict[int, list[int]] = {item: [] for row in layers.rows for item in row}
    for way in layers.ways:
        for above, below in pairwise(way):
            neighbours[above].append(below)
            neighbours[below].append(above)
    row_of = {item: at for at, row in enumerate(layers.rows) for item in row}
    best, fewest = [list(row) for row in layers.rows], _crossings(layers.rows, neighbours, row_of)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        steps = range(len(layers.rows)) if downwards else reversed(range(len(layers.rows)))
        for at in steps:
            fixed = at - 1 if downwards else at + 1
            if 0 <= fixed < len(layers.rows):
                _order(layers.rows[at], layers.rows[fixed], neighbours)
        count = _crossings(layers.rows, neighbours, row_of)
        if count < fewest:
            best, fewest = [list(row) for row in layers.rows], count
    layers.rows = best


def _order(row: list[int], fixed: Sequence[int], neighbours: Mapping[int, list[int]]) -> None:
    place = {item: (at + 0.5) / len(fixed) for at, item in enumerate(fixed)}
    own = {item: (at + 0.5) / len(row) for at, item in enumerate(row)}

    def middle(item: int) -> float:
        places = [place[other] for other in neighbours[item] if other in place]
        return sum(places) / len(places) if places else own[item]

    row.sort(key=middle)


def _crossings(
    rows: Sequence[Sequence[int]], neighbours: Mapping[int, list[int]], row_of: Mapping[int, int]
) -> int:
    """How many pairs of edges between neighbouring rows cross."""
    count = 0
    for at, row in enumerate(rows[:-1]):
        place = {item: number for number, item in enumerate(rows[at + 1])}
        seen: list[int] = []
        for item in row:
            ends = [place[other] for other in neighbours[item] if row_of[other] == at + 1]
            count += sum(1 for end in ends for other in seen if other > end)
            seen.extend(ends)
    return count
