"""The folded hierarchy: templates by the paths of their names, in columns by role.

A block of the net has the same row in each column: its backward is beside its forward, and the
reduction of its gradients beside that. So the picture of a step reads like that of its net.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from purine.graph import Blob
from purine.graph.names import GRADIENT, UPDATE
from purine.viewer.templates import Template, Templates

__all__ = ["COLUMNS", "Group", "Leaf", "grown"]

COLUMNS = ("clock", "weights", "forward", "backward", "gradients", "update")
"""From left to right: the clock, copies of weights, and the rest in the order of a step."""

_SIDES = frozenset((GRADIENT, UPDATE, "reduce", "again", "combine", "encode", "join", "units"))
"""First parts of names that transforms put before the name of what they were made for."""
_COLUMN_OF: Mapping[str, str] = {
    "forward": "forward",
    "data": "forward",
    "backward": "backward",
    "recompute": "backward",
    "update": "update",
    "clock": "clock",
}


@dataclass(slots=True)
class Leaf:
    """An op, or a blob that no op writes, by its index in `Templates`."""

    at: int
    is_op: bool
    label: str
    column: str
    block: str = ""


@dataclass(slots=True)
class Group:
    """Ops and blobs with a common path of names, in one column."""

    label: str
    column: str
    block: str = ""
    members: list[Group | Leaf] = field(default_factory=list)
    below: dict[str, Group] = field(default_factory=dict)

    def leaves(self) -> Iterable[Leaf]:
        """All ops and blobs of the group and of the groups in it."""
        for member in self.members:
            if isinstance(member, Leaf):
                yield member
            else:
                yield from member.leaves()


def grown(folded: Templates) -> Group:
    """The hierarchy, whose root has a member for each block and column."""
    columns = _columns_of_ops(folded)
    hosts = {location.host for op in folded.ops for location in op.locations}
    placed: list[tuple[str, list[str], Leaf]] = []
    for at, op in enumerate(folded.ops):
        name = _without_host(op.name, hosts)
        placed.append((columns[at], _path(name), Leaf(at, True, "", columns[at])))
    for at, blob in enumerate(folded.blobs):
        if not blob.inputs and (blob.outputs or at in folded.outputs):
            column, path = _place_of_blob(folded, columns, at)
            placed.append((column, path, Leaf(at, False, "", column)))
    prefixes = {
        (column, *path[:size]) for column, path, _ in placed for size in range(1, len(path))
    }
    root = Group("", "")
    for column, path, leaf in placed:
        own = (column, *path) in prefixes  # it has the name of a group, and is in it
        leaf.label = path[-1]
        group = root
        for name in path if own or len(path) == 1 else path[:-1]:
            key = f"{column}\n{name}" if group is root else name
            if key not in group.below:
                group.below[key] = Group(name, column, path[0] if group is root else "")
                group.members.append(group.below[key])
            group = group.below[key]
        group.members.append(leaf)
    _merge(root)
    return root


def _merge(group: Group) -> None:
    """Replace groups of one member by their member, which takes their place and name."""
    for at, member in enumerate(group.members):
        group.members[at] = _merged(member)


def _merged(member: Group | Leaf) -> Group | Leaf:
    while isinstance(member, Group) and len(member.members) == 1:
        (only,) = member.members
        only.block = member.block
        if isinstance(only, Leaf) and only.is_op:  # its kind says the rest
            only.label = member.label
        elif only.label != member.label:
            only.label = f"{member.label}/{only.label}"
        member = only
    if isinstance(member, Group):
        _merge(member)
    return member


def _without_host(name: str, hosts: Collection[str]) -> str:
    """The name without that of the host for which a transform made its own of something."""
    host, _, rest = name.partition("/")
    return rest if host in hosts and rest.partition("/")[0] in _SIDES else name


def _path(name: str) -> list[str]:
    parts = name.split("/")
    while len(parts) > 1 and parts[0] in _SIDES:
        del parts[0]
    head, at, _ = parts[-1].partition("@")
    return [*parts[:-1], head] if at else parts


def _columns_of_ops(folded: Templates) -> list[str]:
    """The column of each op; communication is in the column of its input."""
    columns: list[str] = []
    for at, op in enumerate(folded.ops):
        if op.role != "communication":
            columns.append(_COLUMN_OF[op.role])
            continue
        sources = {maker for blob in op.inputs for maker in folded.blobs[blob].inputs if maker < at}
        known = [columns[maker] for maker in sources] or ["weights"]
        column = max(known, key=COLUMNS.index)
        if column == "backward" and not _goes_on(folded, op):
            column = "gradients"
        columns.append(column)
    return columns


def _goes_on(folded: Templates, op: Template) -> bool:
    """Whether a copy is for more of the backward, not for an update."""
    readers = [folded.ops[at] for blob in op.outputs for at in folded.blobs[blob].outputs]
    return any(reader.role in ("backward", "recompute") for reader in readers)


def _place_of_blob(folded: Templates, columns: list[str], at: int) -> tuple[str, list[str]]:
    """The column and the path of a blob that no op writes: a state, or an input."""
    blob = folded.blobs[at]
    assert isinstance(blob.node, Blob)
    readers = list(blob.outputs)
    if blob.role == "clock" or not readers:
        return ("clock" if blob.role == "clock" else "forward"), _path(blob.name)
    first = min(readers, key=lambda reader: COLUMNS.index(columns[reader]))
    column, path = columns[first], _path(blob.name)
    if column == "update":  # what a solver keeps has the name of its parameter behind its own
        reader = _path(folded.ops[first].name)
        return column, [*reader, path[0]] if path[1:] == reader else path
    return column, path
