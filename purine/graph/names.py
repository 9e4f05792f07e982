"""The names that transforms build, and the one place that reads provenance from names.

Names are a contract with users: `grad/fc1/weight` is found in traces and checkpoints. What a node
was made for is not read from its name but from its `Origin`; only `restored` reads names, since a
graph from a file has nothing else. A net may use every name but those of blobs under `grad/`. Where
a transform would give a name that is taken, the builder refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from purine.graph.graph import Graph
from purine.graph.nodes import Op, Origin, Role, State

__all__ = [
    "AGAIN",
    "GRADIENT",
    "UPDATE",
    "again_of",
    "combined_of",
    "copied_from",
    "copy_of",
    "encoded_of",
    "encoder_of",
    "gradient_of",
    "has_gradients",
    "is_late",
    "late_of",
    "loss_of",
    "micro_batch",
    "of_worker",
    "origin_of",
    "reduced_of",
    "replica",
    "restored",
    "result_of",
    "shard_name",
    "slot_of",
    "template_of",
    "unit_of",
    "update_of",
    "worker_of",
]

GRADIENT = "grad"
"""The first part of the names of everything that `backward` adds."""
UPDATE = "update"
"""The first part of the names of the ops that a solver adds."""
AGAIN = "again"
"""The first part of the names of what `recompute` adds, behind replica and micro-batch."""

_WORKER = re.compile(r"^worker\d+/")
_LATE = re.compile(r"^late\d+/")
_PARTS = re.compile(r"(?:worker\d+/)?((?:replica|micro)\d+/)*")
_PLACE = re.compile(r"@([^@]*?)(?:/results)?$")
_SHARD = re.compile(r"/shard(\d+)(?=/|@|$)")
_UNIT = re.compile(r"/unit(\d+)(?=/next$|@|$)")
_CLIPPING = frozenset({"ClipGradient", "GlobalNorm", "Unscale"})
_SUMS = frozenset({"AddScaled", "Average", "CountSum", "Reduce"})


update_of: Callable[[str], str] = f"{UPDATE}/{{}}".format
"""The name of the op that updates a state."""
slot_of: Callable[[str, str], str] = "{}/{}".format
"""The name of a state, such as `momentum`, that a solver keeps for a parameter."""
shard_name: Callable[[str, int], str] = "{}/shard{}".format
"""The name of what one of several devices has of an op or a blob."""
unit_of: Callable[[str, int], str] = "{}/unit{}".format
"""The name of what a unit of a large parameter has of an op or a blob."""
replica: Callable[[int], str] = "replica{}".format
"""The first part of the names of a replica."""
worker_of: Callable[[int, str], str] = "worker{}/{}".format
"""The name of what a worker of asynchronous training has to itself."""
late_of: Callable[[int, str], str] = "late{}/{}".format
"""The name of a parameter as it was so many iterations ago."""
micro_batch: Callable[[int], str] = "micro{}".format
"""The first part of the names of a micro-batch."""
reduced_of: Callable[[str], str] = "reduce/{}".format
"""The name of the op that adds up the parts of a blob over replicas."""
combined_of: Callable[[str], str] = "combine/{}".format
"""The name of the op that combines the statistics of a batch norm over replicas."""
copy_of: Callable[[str, str], str] = "{}@{}".format
"""The name of the copy of a blob at a location."""
result_of: Callable[[str, str], str] = "{}@{}/results".format
"""The name of the copy of a scalar that a step returns, at a host that does not compute it."""
encoded_of: Callable[[str, str], str] = "{}/{}".format
"""The name of a part of the encoded form in which a blob goes to another host."""
encoder_of: Callable[[str], str] = "encode/{}".format
"""The name of the op that encodes a blob for other hosts."""


def of_worker(name: str) -> str:
    """The name that something of a worker has in the step of that worker.

    >>> of_worker("worker2/loss"), of_worker("loss")
    ('loss', 'loss')
    """
    return _WORKER.sub("", name)


def is_late(name: str) -> bool:
    """Whether something is called as a parameter of earlier iterations is.

    >>> is_late("late1/fc1/weight"), is_late("fc1/weight")
    (True, False)
    """
    return _LATE.match(name) is not None


def gradient_of(blob: str) -> str:
    """The name of the blob that holds the gradient of another.

    >>> gradient_of("conv1/weight")
    'grad/conv1/weight'
    """
    return f"{GRADIENT}/{blob}"


def again_of(name: str, parts: str) -> str:
    """The name of what is computed a second time; `parts` is the prefix of its part of the batch.

    >>> again_of("micro1/conv1", "micro1/")
    'micro1/again/conv1'
    """
    return f"{parts}{AGAIN}/{name.removeprefix(parts)}"


def copied_from(name: str) -> str:
    """The name of the blob that a copy is of; of a blob that is no copy, its own."""
    return name.rpartition("@")[0] or name


def has_gradients(graph: Graph) -> bool:
    """Whether a graph is no net any more, but has a backward."""
    return any(name.startswith(f"{GRADIENT}/") for name in graph.blobs)


def loss_of(constant: str) -> str:
    """The loss whose gradient begins with a constant of this name.

    >>> loss_of("replica1/micro0/grad/loss")
    'loss'
    """
    return f"/{constant}".rpartition(f"/{GRADIENT}/")[2]


def origin_of(node: Op) -> Origin:
    """What an op was made for. One that no transform made is an op of the net."""
    return node.origin or Origin(node.name)


def template_of(
    name: str, op: Op | None, *, workers: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What nodes that a scheme made of one share of their names, and what tells them apart.

    `op` has the name, or writes the blob that has it. With `workers` names may begin with one. The
    two zipped are the name again: the holes
    hold the part of the batch, the shard or unit of a parameter, and the device of a copy.

    >>> origin = Origin("replica1/pool", "copy", "replica1/", replica=1)
    >>> made = Op("replica1/pool@cpu:1", "Copy", (), (), origin=origin)
    >>> template_of("replica1/pool@cpu:1", made)
    (('', 'pool@', ''), ('replica1/', 'cpu:1'))
    """
    origin = Origin(name) if op is None or op.origin is None else op.origin
    worker = _WORKER.match(name) if workers else None
    head = ("" if worker is None else worker[0]) + _WORKER.sub("", origin.parts)
    if not name.startswith(head):
        head = ""
    spans: set[tuple[int, int]] = set()
    if origin.shard is not None:
        spans.update(match.span(1) for match in _SHARD.finditer(name, len(head)))
    if origin.role in ("copy", "reduce", "update"):
        spans.update(match.span(1) for match in _UNIT.finditer(name, len(head)))
    place = _PLACE.search(name, len(head)) if origin.role == "copy" else None
    if place is not None:
        spans = {span for span in spans if span[1] <= place.start()} | {place.span(1)}
    pieces, holes, end = ([""], [head], len(head)) if head else ([], [], 0)
    for first, last in sorted(spans):
        pieces.append(name[end:first])
        holes.append(name[first:last])
        end = last
    return (*pieces, name[end:]), tuple(holes)


def restored(graph: Graph) -> Graph:
    """A graph that was read from a file, with the origins that its names tell of.

    In a step, a block of the net that is called like a part of a batch (`micro1`) is taken for one.
    """
    if not any(_parted(name)[1].startswith(f"{GRADIENT}/") for name in graph.blobs):
        return graph
    ops = {name: replace(op, origin=_origin(graph, op)) for name, op in graph.ops.items()}
    states = {name: _with_parameter(graph, state) for name, state in graph.states.items()}
    return replace(graph, ops=ops, states=states)


def _origin(graph: Graph, op: Op) -> Origin:
    parts, rest = _parted(op.name)
    counted = reversed(re.findall(r"(\D+)(\d+)/", parts))
    numbers = {kind: int(number) for kind, number in counted if kind != "worker"}

    def known(path: str) -> str:
        """The longest beginning of a path that is the name of an op, a blob or a state."""
        while path:
            for name in (f"{parts}{path}", path):
                if name in graph.blobs or name in graph.ops:
                    return name
            path = path.rpartition("/")[0]
        return op.name

    head, _, below = rest.partition("/")
    if op.kind == "Copy" and op.inputs:
        return Origin(op.inputs[0], "copy", parts, **numbers)
    if head == UPDATE and below in graph.states:
        return Origin(below, "update", parts, **numbers)
    if head == GRADIENT and below:
        sums: Role = "reduce" if op.kind in _SUMS else "backward"
        return Origin(known(below), "update" if op.kind in _CLIPPING else sums, parts, **numbers)
    if head == AGAIN and below:
        return Origin(known(below), "recompute", parts, **numbers)
    above, _, last = op.name.rpartition("/")
    if above in graph.ops:  # which may have been lowered to this op
        called = op.kind.split(".")[min(1, op.kind.count("."))].strip("_")
        read = not set(op.outputs).isdisjoint(graph.ops[above].inputs)
        if last.partition(".")[0] == called or read:
            return Origin(above, "forward", parts, **numbers)
    return Origin(op.name, "reduce" if op.kind in _SUMS else "forward", parts, **numbers)


def _with_parameter(graph: Graph, state: State) -> State:
    """A state with the parameter that a solver keeps it for, as `momentum/fc/weight` is."""
    parts = state.read.split("/")
    own = graph.blobs.get(state.read)
    for start in range(1, len(parts)):
        parameter = "/".join(parts[start:])
        blob = graph.blobs.get(parameter) if parameter in graph.states else None
        if own is not None and blob is not None and blob.shape == own.shape:
            return replace(state, origin=Origin(parameter, "update"))
    return state


def _parted(name: str) -> tuple[str, str]:
    """The prefix of replicas and micro-batches, and the name behind it."""
    match = _PARTS.match(name)
    assert match is not None
    return match[0], name[match.end() :]
