"""The rules that every graph obeys, as one list of small functions.

A rule yields one error per mistake. It tolerates the mistakes that other rules report, so that all
mistakes of a graph can be shown at once. A graph that passes has one producer per blob and no
cycle, and all its ops read and write at their own location, except `Copy` ops and collectives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from purine.arguments import checked
from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import CHANNELS_LAST, COLLECTIVES, Blob, Op, State, floats
from purine.graph.rule import Kinds, Rule, uses, wrong
from purine.graph.worker_rules import (
    periods_fit,
    shared_states_agree,
    states_are_versioned_rightly,
    workers_share_states_alone,
)
from purine.nearest import nearest_name

__all__ = [
    "DTYPES",
    "RULES",
    "Kinds",
    "Rule",
    "dependent_floating_lanes",
    "find_cycle",
    "problems",
    "verify",
]

DTYPES = frozenset(
    (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "bool"),
    )
)
"""The dtypes a blob may have."""

_DIMENSIONS = 64  # torch's own limit for most kernels
_ELEMENTS = 2**63
_SUGGESTIONS = 8  # finding a nearest name compares all names, so only the first errors get one


@checked
def verify(graph: Graph, kinds: Kinds | None = None) -> Graph:
    """Raise the first mistake of the graph, or return the graph.

    >>> from purine.graph.builder import Builder
    >>> b = Builder()
    >>> _ = b.op("relu1", "Relu", ["x"], [b.blob("y", (2, 3))])
    >>> verify(b.graph())
    Traceback (most recent call last):
    purine.errors.GraphError: op 'relu1' reads blob 'x', which nothing declares
      expected: the name of a blob of the graph
      found: 'x'
      to do: declare the blob, or correct the name
    """
    for error in _mistakes(graph, kinds):
        raise error
    return graph


@checked
def problems(graph: Graph, kinds: Kinds | None = None) -> list[GraphError]:
    """All mistakes of the graph, in the order of the rules."""
    return list(_mistakes(graph, kinds))


def _mistakes(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    for rule in RULES:
        mistakes = list(rule(graph, kinds))
        yield from mistakes
        if rule is keys_are_names and mistakes:
            return  # the other rules look nodes up by name


def keys_are_names(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every node is stored under its own name."""
    remedy = "add nodes with Builder.add, which keeps each under its own name"
    for members in (graph.blobs, graph.ops, graph.states):
        for key, node in members.items():
            name = node.read if isinstance(node, State) else node.name
            if key != name:
                what = f"{type(node).__name__.lower()} {name!r} is kept under the key {key!r}"
                yield wrong(node, what, f"the key {name!r}", f"the key {key!r}", remedy)


def names_are_usable(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Names are printable and have no spaces; an op and a blob may have the same name."""
    expected = "a name that is not empty, without white space or control characters"
    nodes: list[Blob | Op] = [*graph.blobs.values(), *graph.ops.values()]
    for node in nodes:
        if not node.name or not node.name.isprintable() or " " in node.name:
            sort, found = type(node).__name__.lower(), repr(node.name)
            remedy = f"rename the {sort}, for example to 'conv1/weight'"
            yield wrong(node, f"{sort} has the name {found}", expected, found, remedy)


def blobs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Ops read and write blobs that the graph declares."""
    reported = 0
    for op in graph.ops.values():
        for name, verb in uses(op):
            if name not in graph.blobs:
                reported += 1
                what = f"op {op.name!r} {verb} blob {name!r}, which nothing declares"
                yield _undeclared(graph, op, what, name, suggest=reported <= _SUGGESTIONS)


def one_producer(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """At most one op writes a blob, and writes it once."""
    remedy = "let each write a blob of its own, and add them with an op if a sum is meant"
    producer: dict[str, Op] = {}
    for op in graph.ops.values():
        for name in filter(None, op.outputs):
            if name not in producer:
                producer[name] = op
                continue
            first, what = producer[name], f"op {op.name!r} writes blob {name!r} twice"
            if first is not op:
                what = f"ops {first.name!r} and {op.name!r} both write blob {name!r}"
            found = f"{_spot(first)} and {_spot(op)}"
            yield wrong(op, what, "one producer for each blob", found, remedy, blob=name)


def states_have_blobs(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Both blobs of a state are declared."""
    for state in graph.states.values():
        for name in dict.fromkeys((state.read, state.next)):
            if name not in graph.blobs:
                role = "read" if name == state.read else "next"
                what = f"state {state.read!r} has the {role} blob {name!r}, which nothing declares"
                yield _undeclared(graph, state, what, name)


def states_are_not_produced(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """No op writes the blob through which a state is read."""
    expected = "a state that only gets its value from the iteration before"
    remedy = "write to another blob and name that one as the state's next"
    for name, state in graph.states.items():
        producer = graph.producers.get(name)
        if producer is not None:
            what = f"op {producer.name!r} writes blob {name!r}, which is a state"
            found = f"{_spot(producer)} as its producer"
            error = wrong(producer, what, expected, found, remedy, blob=name)
            error.where = error.where or state.where
            yield error


def states_have_their_own_next(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A blob is the next value of at most one state."""
    expected = "a next blob that belongs to one state"
    remedy = "give each state a next blob of its own"
    first: dict[str, str] = {}
    for state in graph.states.values():
        other = first.setdefault(state.next, state.read)
        if other != state.read:
            what = f"states {other!r} and {state.read!r} have the same next blob {state.next!r}"
            found = f"{state.next!r} for {other!r} and for {state.read!r}"
            yield wrong(state, what, expected, found, remedy, blob=state.next)


def states_are_carried_on(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op writes the next value of a state, unless the state keeps its value."""
    expected = "a next blob that an op writes, or the state's own blob to keep its value"
    for state in graph.states.values():
        carried = state.next == state.read or state.next in graph.producers
        if not carried and state.next in graph.blobs:
            what = f"state {state.read!r} is carried on by blob {state.next!r}, which no op writes"
            found = f"{state.next!r} without a producer"
            remedy = f"add an op that writes {state.next!r}"
            yield wrong(state, what, expected, found, remedy, blob=state.next)


def states_are_typed_alike(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The two blobs of a state have the same shape, dtype and location."""
    for state in graph.states.values():
        read, after = graph.blobs.get(state.read), graph.blobs.get(state.next)
        if read is None or after is None:
            continue
        for aspect in ("shape", "dtype", "location"):
            own, other = getattr(read, aspect), getattr(after, aspect)
            if own != other and own is not None and other is not None:
                what = f"state {state.read!r} and its next blob {state.next!r} differ in {aspect}"
                expected = f"{aspect} {own}, as {state.read!r} has"
                found, remedy = f"{aspect} {other}", f"give both blobs the same {aspect}"
                yield wrong(state, what, expected, found, remedy, blob=after)


def multipliers_are_factors(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """`lr_mult` and `decay_mult` of a state are finite and not negative."""
    expected = "a finite number, 0 or more"
    for state in graph.states.values():
        for name, value in (("lr_mult", state.lr_mult), ("decay_mult", state.decay_mult)):
            if not (math.isfinite(value) and value >= 0):
                what = f"state {state.read!r} has {name} {value}"
                remedy = f"write {name}: 1.0, or 0.0 to leave the state without it"
                yield wrong(state, what, expected, str(value), remedy)


def outputs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The outputs of the graph are declared blobs."""
    for name in graph.outputs:
        if name not in graph.blobs:
            yield _undeclared(graph, None, f"output {name!r} is no blob of the graph", name)


def control_names_ops(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Both ends of a control edge are ops."""
    expected = "the names of two ops of the graph"
    remedy = "correct the name, or remove the control edge"
    for before, after in sorted(graph.control):
        for name in dict.fromkeys((before, after)):
            if name not in graph.ops:
                what = f"control edge {before!r} -> {after!r} names {name!r}, which is no op"
                yield GraphError(what, expected, repr(name), remedy, op=name)


def shapes_are_sizes(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A shape is a tuple of sizes; it may be missing only where an op produces the blob."""
    remedy = "correct the shape (in YAML: size)"
    for blob in graph.blobs.values():
        name, shape = f"blob {blob.name!r}", blob.shape
        if shape is None:
            if blob.name not in graph.producers:
                what = f"{name} has no shape, and no op produces it"
                expected = "a shape, which can be left out only where an op tells it"
                yield wrong(blob, what, expected, "no shape", "give its shape (in YAML: size)")
        elif not all(type(size) is int and size >= 0 for size in shape):
            expected = "whole numbers, none below zero"
            yield wrong(blob, f"{name} has the shape {shape}", expected, str(shape), remedy)
        elif len(shape) > _DIMENSIONS or math.prod(shape) >= _ELEMENTS:
            count = math.prod(shape)
            size = str(count) if count < _ELEMENTS else f"2^{count.bit_length() - 1} or more"
            expected = f"at most {_DIMENSIONS} dimensions and less than 2^63 elements"
            found = f"{len(shape)} dimensions, {size} elements"
            yield wrong(blob, f"{name} is larger than a tensor can be", expected, found, remedy)


def dtypes_are_known(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every dtype is one of `DTYPES`."""
    for blob in graph.blobs.values():
        if blob.dtype not in DTYPES:
            what, expected = f"blob {blob.name!r} has the dtype", ", ".join(sorted(DTYPES))
            found = repr(blob.dtype)
            remedy = nearest_name(blob.dtype, sorted(DTYPES), "correct the dtype")
            yield wrong(blob, f"{what} {found}", f"one of {expected}", found, remedy)


def layouts_fit(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The only layout is `channels-last`, for blobs of four dimensions."""
    for blob in graph.blobs.values():
        name, shape, layout = f"blob {blob.name!r}", blob.shape, blob.layout
        if layout not in ("", CHANNELS_LAST):
            what, expected = f"{name} has the layout {layout!r}", f"{CHANNELS_LAST!r}, or none"
            yield wrong(blob, what, expected, repr(layout), "correct the layout, or leave it out")
        elif layout and shape is not None and len(shape) != 4:
            what = f"{name} of {len(shape)} dimensions is {layout}"
            expected = "four dimensions: samples, channels, height and width"
            yield wrong(blob, what, expected, str(list(shape)), "leave the layout out")


def no_cycle(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Data and control edges form no cycle; the error shows the first one, with hosts if several.

    States and the credit cannot close a cycle. Proof: give each op of each iteration the key
    (iteration, position of the op in a topological order). Data and control edges lead to a larger
    position in the same iteration, states lead to the next iteration, and the credit leads from all
    ops of an iteration to ops of a later one. So an op waits only for smaller keys, the op with the
    smallest key that has not run waits for nothing, and a run never stalls.
    """
    members = find_cycle(graph)
    if members:
        several = len({graph.ops[name].location.host for name in members}) > 1
        shown = {n: f"{n} on {graph.ops[n].location.host}" if several else n for n in members}
        parts = [shown[members[0]]]
        for name, after in zip(members, [*members[1:], members[0]], strict=True):
            shared = [blob for blob in graph.ops[name].outputs if blob in graph.ops[after].inputs]
            parts += [repr(shared[0]), shown[after]] if shared else [shown[after]]
        cycle, expected = " -> ".join(parts), "ops that can run one after the other"
        remedy = "remove one of these edges, or carry a value to the next iteration with a state"
        op = graph.ops[members[0]]
        yield wrong(op, f"the graph has a cycle: {cycle}", expected, cycle, remedy)


def find_cycle(graph: Graph) -> list[str]:
    """The ops of one cycle in the order of its edges, starting with the first in graph order."""
    done = set(graph.order)
    stuck = {name: number for number, name in enumerate(graph.ops) if name not in done}
    if not stuck:
        return []
    before = {after: name for name in stuck for after in graph.successors[name]}
    path: dict[str, int] = {}
    name = next(iter(stuck))
    while name not in path:  # every stuck op has a stuck op before it
        path[name] = len(path)
        name = before[name]
    members = list(path)[path[name] :][::-1]
    start = members.index(min(members, key=stuck.__getitem__))
    return members[start:] + members[:start]


def one_location(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op is at the location of its blobs, except for a `Copy` and inputs of a collective."""
    remedy = "put both at one location, or insert a Copy op between them"
    for op in graph.ops.values():
        for name, verb in [] if op.kind == "Copy" else dict.fromkeys(uses(op)):
            blob = graph.blobs.get(name)
            if op.kind in COLLECTIVES and verb == "reads":
                continue
            if blob is not None and blob.location != op.location:
                what = f"op {op.name!r} at {op.location} {verb} {name!r} at {blob.location}"
                expected, found = (f"{name!r} at {node.location}" for node in (op, blob))
                yield wrong(op, what, expected, found, remedy, blob=name)


def floating_lanes_are_independent(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Lanes that float are at CPU devices and do not wait for each other within an iteration."""
    remedy = "leave the lane (in YAML: thread) out to run on compute"
    for op in graph.ops.values():
        if floats(op.lane) and not op.location.device.startswith("cpu:"):
            what = f"op {op.name!r} at {op.location} is on lane {op.lane!r}"
            yield wrong(op, what, "CPU devices for lanes that float", op.location.device, remedy)
    for before, op in dependent_floating_lanes(graph):
        what = f"op {op.name!r} on lane {op.lane!r} waits for op {before.name!r}"
        expected, found = f"no wait for lane {before.lane!r}", "one within an iteration"
        yield wrong(op, what, expected, found, remedy)


def dependent_floating_lanes(graph: Graph) -> Iterator[tuple[Op, Op]]:
    """Pairs of ops of different floating lanes of which the second waits for the first."""
    bits = {(op.location.host, op.lane): 0 for op in graph.ops.values() if floats(op.lane)}
    bits = {lane: 1 << number for number, lane in enumerate(bits)}
    last: dict[int, Op] = {}
    behind = dict.fromkeys(graph.ops, 0)
    """By op the lanes that it waits for, as bits."""
    for name in graph.order if bits else ():
        op = graph.ops[name]
        own = bits.get((op.location.host, op.lane), 0)
        others = behind[name] & ~own
        if own and others:
            yield last[others & -others], op
        if own:
            last[own] = op
        for after in graph.successors[name]:
            behind[after] |= behind[name] | own


def agrees_with_its_kind(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every op whose blobs exist obeys the rules of its kind."""
    if kinds is None:
        return
    for op in graph.ops.values():
        if all(name in graph.blobs for name, _ in uses(op)):
            inputs = [graph.blobs[name] for name in op.inputs]
            yield from kinds.problems(op, inputs, [graph.blobs.get(name) for name in op.outputs])


RULES: tuple[Rule, ...] = (
    keys_are_names,
    names_are_usable,
    blobs_exist,
    one_producer,
    states_have_blobs,
    states_are_not_produced,
    states_have_their_own_next,
    states_are_carried_on,
    states_are_typed_alike,
    multipliers_are_factors,
    states_are_versioned_rightly,
    shared_states_agree,
    workers_share_states_alone,
    periods_fit,
    outputs_exist,
    control_names_ops,
    shapes_are_sizes,
    dtypes_are_known,
    layouts_fit,
    no_cycle,
    one_location,
    floating_lanes_are_independent,
    agrees_with_its_kind,
)
"""All rules, in the order in which they are applied."""


def _spot(op: Op) -> str:
    return f"op {op.name!r} ({op.where})" if op.where else f"op {op.name!r}"


def _undeclared(
    graph: Graph, node: Op | State | None, what: str, name: str, *, suggest: bool = True
) -> GraphError:
    question = nearest_name(name, graph.blobs, "") if suggest else ""
    remedy = "declare the blob, or correct the name" + (question and f": {question}")
    return wrong(node, what, "the name of a blob of the graph", repr(name), remedy, blob=name)
