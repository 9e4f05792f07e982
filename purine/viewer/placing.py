"""Rows for the members of each group of a graph document.

At the root a block of the net has one row for all columns: its weights, forward, backward,
gradients and update stand beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from purine.viewer.layering import Edge, layers_of, ordered, ranks_of

__all__ = ["Member", "Rows", "above", "rows_of"]

_APART = ("gradients", "update")
"""Columns whose blocks only buckets join: see `graph_edges`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the hierarchy: its column, and at the root the block that it belongs to."""

    column: str
    block: str = ""


@dataclass(slots=True)
class Rows:
    """For a group: rows of cells, a cell for each column, and the routes of edges over bends."""

    rows: list[list[list[int]]] = field(default_factory=list)
    ways: list[list[int]] = field(default_factory=list)


def above(parents: Mapping[int, int], number: int) -> list[int]:
    """The groups that contain a node, the nearest first."""
    groups = []
    while number in parents:
        number = parents[number]
        groups.append(number)
    return groups


def rows_of(
    members: Mapping[int, Member],
    parents: Mapping[int, int],
    edges: Iterable[Edge],
    order: Mapping[int, int],
    columns: Sequence[str],
) -> dict[int, Rows]:
    """The rows of each group. Edges are those of ops and blobs; `order` is the order of
    execution."""
    inside: dict[int, list[int]] = {}
    for number, parent in parents.items():
        inside.setdefault(parent, []).append(number)
    lifted = _lifted(parents, edges)
    first = dict(order)
    for number, when in order.items():
        for group in above(parents, number):
            first[group] = min(when, first.get(group, when))
    found = {0: Rows([[[]]])}
    for group, numbers in inside.items():
        numbers.sort(key=first.__getitem__)
        own = list(lifted.get(group, ()))
        if group == 0:
            found[0] = _rows_of_blocks(members, numbers, own, columns)
        else:
            layers = layers_of(numbers, own, upwards=members[group].column == "backward")
            found[group] = Rows([[row] for row in layers.rows], layers.ways)
    return found


def _lifted(parents: Mapping[int, int], edges: Iterable[Edge]) -> dict[int, dict[Edge, None]]:
    """For each group the edges between its members, for those of ops and blobs below them."""
    lifted: dict[int, dict[Edge, None]] = {}
    lines: dict[int, list[int]] = {}
    for source, target in edges:
        for number in (source, target):
            if number not in lines:
                lines[number] = [number, *above(parents, number)]
        line, other = lines[source], lines[target]
        common = next(group for group in line[1:] if group in other)
        pair = line[line.index(common) - 1], other[other.index(common) - 1]
        if source != target:
            lifted.setdefault(common, {})[pair] = None
    return lifted


def _rows_of_blocks(
    members: Mapping[int, Member], numbers: Sequence[int], edges: list[Edge], columns: Sequence[str]
) -> Rows:
    grid = _grid(members, numbers, edges, columns)
    found = Rows([[] for _ in grid])
    low = 0
    for at, column in enumerate(columns):
        joined = () if column in _APART else _inside(members, edges, column)
        layers = ordered([row[at] for row in grid], joined)
        for row, items in zip(found.rows, layers.rows, strict=True):
            row.append([item + low if item < 0 else item for item in items])
        found.ways += [[item + low if item < 0 else item for item in way] for way in layers.ways]
        low = min((item for way in found.ways for item in way if item < 0), default=0)
    return found


def _grid(
    members: Mapping[int, Member], numbers: Sequence[int], edges: list[Edge], columns: Sequence[str]
) -> list[list[list[int]]]:
    """The rows by the order of the net's blocks; blocks that the net does not have come last."""
    main = "forward" if "forward" in columns else columns[0]
    net = [number for number in numbers if members[number].column == main]
    ranks = ranks_of(net, _inside(members, edges, main))
    row_of = {members[number].block: ranks[number] for number in net}
    last = max(row_of.values(), default=0) + 1
    rows: dict[int, list[list[int]]] = {}
    for number in numbers:
        row = row_of.get(members[number].block, last)
        cells = rows.setdefault(row, [[] for _ in columns])
        cells[columns.index(members[number].column)].append(number)
    return [rows[row] for row in sorted(rows)]


def _inside(members: Mapping[int, Member], edges: Iterable[Edge], column: str) -> list[Edge]:
    return [edge for edge in edges if all(members[end].column == column for end in edge)]
