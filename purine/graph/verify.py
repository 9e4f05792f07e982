"""What makes a graph a good one: one list of small rules, each of which finds its own mistakes.

A rule yields one error per mistake and never stumbles over what another rule reports, so all the
mistakes of a graph can be shown at once. A graph that passes has one producer per blob, no cycle
and no op that reaches over to another location, unless it is a `Copy` or a collective.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from purine.arguments import checked
from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import CHANNELS_LAST, COLLECTIVES, NOTHING, Blob, Op
from purine.nearest import nearest_name

__all__ = ["DTYPES", "RULES", "Kinds", "Rule", "problems", "verify"]

DTYPES = frozenset(
    (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "bool"),
    )
)
"""The dtypes a blob may have."""

_DIMENSIONS = 64  # torch's own limit for most kernels
_ELEMENTS = 2**63
_SUGGESTIONS = 8  # a nearest name costs a walk over all names, so only the first few get one


class Kinds(Protocol):
    """What the kinds of ops say about one op and its blobs; implemented by `purine.kinds`."""

    def problems(
        self, op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob | None]
    ) -> Iterator[GraphError]:
        """What is wrong with `op`; an output that nobody asked for is None."""
        ...


Rule: TypeAlias = Callable[[Graph, Kinds | None], Iterator[GraphError]]
"""Yields the mistakes of one sort."""


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
    """All mistakes of the graph, in the order of the rules; an empty list for a good graph."""
    return list(_mistakes(graph, kinds))


def _mistakes(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    for rule in RULES:
        found = False
        for error in rule(graph, kinds):
            found = True
            yield error
        if found and rule is keys_are_names:
            return  # every other rule finds nodes by name


def keys_are_names(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every node is kept under its own name."""
    nodes = (
        *(("blob", key, blob.name, blob.where) for key, blob in graph.blobs.items()),
        *(("op", key, op.name, op.where) for key, op in graph.ops.items()),
        *(("state", key, state.read, state.where) for key, state in graph.states.items()),
    )
    for what, key, name, where in nodes:
        if key != name:
            yield GraphError(
                f"{what} {name!r} is kept under the key {key!r}",
                where=where,
                op=name if what == "op" else None,
                blob=None if what == "op" else name,
                expected=f"the key {name!r}",
                found=f"the key {key!r}",
                remedy="add nodes with Builder.add, which keeps each under its own name",
            )


def names_are_usable(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Names can be printed and have no spaces; an op and a blob may share one."""
    nodes: list[Blob | Op] = [*graph.blobs.values(), *graph.ops.values()]
    for node in nodes:
        name = node.name
        if name and name.isprintable() and " " not in name:
            continue
        what = "op" if isinstance(node, Op) else "blob"
        yield GraphError(
            f"{what} has the name {name!r}",
            where=node.where,
            op=name if what == "op" else None,
            blob=None if what == "op" else name,
            location=str(node.location),
            expected="a name that is not empty, without white space or control characters",
            found=repr(name),
            remedy=f"rename the {what}, for example to 'conv1/weight'",
        )


def blobs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Ops read and write blobs of the graph."""
    reported = 0
    for op in graph.ops.values():
        reads = ((name, "reads") for name in op.inputs)
        writes = ((name, "writes") for name in op.outputs if name != NOTHING)
        for name, verb in (*reads, *writes):
            if name in graph.blobs:
                continue
            reported += 1
            yield GraphError(
                f"op {op.name!r} {verb} blob {name!r}, which nothing declares",
                where=op.where,
                op=op.name,
                blob=name,
                location=str(op.location),
                expected="the name of a blob of the graph",
                found=repr(name),
                remedy="declare the blob, or correct the name"
                + _nearest(graph, name, suggest=reported <= _SUGGESTIONS),
            )


def one_producer(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """At most one op writes a blob, and writes it once."""
    first: dict[str, Op] = {}
    for op in graph.ops.values():
        for name in op.outputs:
            if name == NOTHING:
                continue
            if name in first:
                yield _second_producer(name, first[name], op)
            first.setdefault(name, op)


def _second_producer(name: str, first: Op, second: Op) -> GraphError:
    writers = (
        f"op {second.name!r} writes blob {name!r} twice"
        if first is second
        else f"ops {first.name!r} and {second.name!r} both write blob {name!r}"
    )
    return GraphError(
        writers,
        where=second.where,
        op=second.name,
        blob=name,
        location=str(second.location),
        expected="one producer for each blob",
        found=f"{_spot(first)} and {_spot(second)}",
        remedy="let each write a blob of its own, and add them with an op if a sum is meant",
    )


def states_have_blobs(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A state reads and is carried on by blobs of the graph."""
    for state in graph.states.values():
        for name in dict.fromkeys((state.read, state.next)):
            if name in graph.blobs:
                continue
            role = "read" if name == state.read else "next"
            yield GraphError(
                f"state {state.read!r} has the {role} blob {name!r}, which nothing declares",
                where=state.where,
                blob=name,
                expected="the name of a blob of the graph",
                found=repr(name),
                remedy="declare the blob, or correct the name" + _nearest(graph, name),
            )


def states_are_not_produced(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """No op writes the blob that a state is read from."""
    for state in graph.states.values():
        producer = graph.producers.get(state.read)
        if producer is not None:
            yield GraphError(
                f"op {producer.name!r} writes blob {state.read!r}, which is a state",
                where=producer.where or state.where,
                op=producer.name,
                blob=state.read,
                location=str(producer.location),
                expected="a state that only gets its value from the iteration before",
                found=f"{_spot(producer)} as its producer",
                remedy="write to another blob and name that one as the state's next",
            )


def states_have_their_own_next(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A blob carries on at most one state."""
    first: dict[str, str] = {}
    for state in graph.states.values():
        other = first.setdefault(state.next, state.read)
        if other != state.read:
            yield GraphError(
                f"states {other!r} and {state.read!r} have the same next blob {state.next!r}",
                where=state.where,
                blob=state.next,
                expected="a next blob that belongs to one state",
                found=f"{state.next!r} for {other!r} and for {state.read!r}",
                remedy="give each state a next blob of its own",
            )


def states_are_carried_on(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op makes the next value of a state, unless the state keeps its value."""
    for state in graph.states.values():
        carried = state.next == state.read or state.next in graph.producers
        if not carried and state.next in graph.blobs:
            yield GraphError(
                f"state {state.read!r} is carried on by blob {state.next!r}, which no op writes",
                where=state.where,
                blob=state.next,
                expected="a next blob that an op writes, or the state's own blob to keep its value",
                found=f"{state.next!r} without a producer",
                remedy=f"add an op that writes {state.next!r}",
            )


def states_are_typed_alike(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The two blobs of a state have one shape, dtype and location."""
    for state in graph.states.values():
        read, after = graph.blobs.get(state.read), graph.blobs.get(state.next)
        if read is None or after is None:
            continue
        pairs: list[tuple[str, object, object]] = [
            ("dtype", read.dtype, after.dtype),
            ("location", read.location, after.location),
        ]
        if read.shape is not None and after.shape is not None:
            pairs.insert(0, ("shape", read.shape, after.shape))
        for what, expected, found in pairs:
            if expected != found:
                yield GraphError(
                    f"state {state.read!r} and its next blob {state.next!r} differ in {what}",
                    where=state.where or after.where,
                    blob=state.next,
                    location=str(after.location),
                    expected=f"{what} {expected}, as {state.read!r} has",
                    found=f"{what} {found}",
                    remedy=f"give both blobs the same {what}",
                )


def multipliers_are_factors(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A state scales a solver's rate and decay by finite numbers that are not negative."""
    for state in graph.states.values():
        for name, value in (("lr_mult", state.lr_mult), ("decay_mult", state.decay_mult)):
            if not (math.isfinite(value) and value >= 0):
                yield GraphError(
                    f"state {state.read!r} has {name} {value}",
                    where=state.where,
                    blob=state.read,
                    expected="a finite number, 0 or more",
                    found=str(value),
                    remedy=f"write {name}: 1.0, or 0.0 to leave the state without it",
                )


def outputs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The outputs of the graph are blobs of the graph."""
    for name in graph.outputs:
        if name not in graph.blobs:
            yield GraphError(
                f"output {name!r} is no blob of the graph",
                blob=name,
                expected="the name of a blob of the graph",
                found=repr(name),
                remedy="declare the blob, or correct the name" + _nearest(graph, name),
            )


def control_names_ops(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Both ends of a control edge are ops of the graph."""
    for before, after in sorted(graph.control):
        for name in dict.fromkeys((before, after)):
            if name not in graph.ops:
                yield GraphError(
                    f"control edge {before!r} -> {after!r} names {name!r}, which is no op",
                    op=name,
                    expected="the names of two ops of the graph",
                    found=repr(name),
                    remedy="correct the name, or remove the control edge",
                )


def shapes_are_sizes(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A known shape is made of sizes, and a shape that no op can tell is known."""
    for blob in graph.blobs.values():
        if blob.shape is None:
            if blob.name not in graph.producers:
                yield _bad_blob(
                    blob,
                    f"blob {blob.name!r} has no shape, and no op produces it",
                    expected="a shape, which can be left out only where an op tells it",
                    found="no shape",
                    remedy="give its shape (in YAML: size)",
                )
        elif not all(type(size) is int and size >= 0 for size in blob.shape):
            yield _bad_blob(
                blob,
                f"blob {blob.name!r} has the shape {blob.shape}",
                expected="whole numbers, none below zero",
                found=str(blob.shape),
                remedy="correct the shape (in YAML: size)",
            )
        elif len(blob.shape) > _DIMENSIONS or math.prod(blob.shape) >= _ELEMENTS:
            yield _bad_blob(
                blob,
                f"blob {blob.name!r} is larger than a tensor can be",
                expected=f"at most {_DIMENSIONS} dimensions and less than 2^63 elements",
                found=f"{len(blob.shape)} dimensions, {_power(math.prod(blob.shape))} elements",
                remedy="correct the shape (in YAML: size)",
            )


def _power(count: int) -> str:
    return str(count) if count < _ELEMENTS else f"2^{count.bit_length() - 1} or more"


def dtypes_are_known(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every dtype is one of `DTYPES`."""
    for blob in graph.blobs.values():
        if blob.dtype not in DTYPES:
            close = difflib.get_close_matches(blob.dtype, sorted(DTYPES), n=1)
            yield _bad_blob(
                blob,
                f"blob {blob.name!r} has the dtype {blob.dtype!r}",
                expected=f"one of {', '.join(sorted(DTYPES))}",
                found=repr(blob.dtype),
                remedy=f"write {close[0]!r}" if close else "correct the dtype",
            )


def layouts_fit(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A layout is `channels-last`, and that of a blob of four dimensions."""
    for blob in graph.blobs.values():
        if blob.layout not in ("", CHANNELS_LAST):
            yield _bad_blob(
                blob,
                f"blob {blob.name!r} has the layout {blob.layout!r}",
                expected=f"{CHANNELS_LAST!r}, or none",
                found=repr(blob.layout),
                remedy="correct the layout, or leave it out",
            )
        elif blob.layout and blob.shape is not None and len(blob.shape) != 4:
            yield _bad_blob(
                blob,
                f"blob {blob.name!r} of {len(blob.shape)} dimensions is {blob.layout}",
                expected="four dimensions: samples, channels, height and width",
                found=str(list(blob.shape)),
                remedy="leave the layout out",
            )


def no_cycle(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """No op waits for itself, over data and control edges; the first cycle found is shown.

    States and the credit need no rule, since they cannot close a cycle. Give an op of an iteration
    the key (iteration, place of the op in an order without cycles). Data and control edges lead to
    a larger place in the same iteration, states to the next iteration, the credit from all ops of
    an iteration to some of a later one: whatever an op waits for has a smaller key. So the op with
    the smallest key of those that have not run waits for nothing, and a run never stalls.
    """
    members = _find_cycle(graph)
    if not members:
        return
    op = graph.ops[members[0]]
    cycle = _cycle_text(graph, members)
    yield GraphError(
        f"the graph has a cycle: {cycle}",
        where=op.where,
        op=op.name,
        location=str(op.location),
        expected="ops that can run one after the other",
        found=cycle,
        remedy="remove one of these edges, or carry a value to the next iteration with a state",
    )


def _find_cycle(graph: Graph) -> list[str]:
    """The ops of one cycle in the order in which they wait, from the first in graph order."""
    done = set(graph.order)
    stuck = [name for name in graph.ops if name not in done]
    if not stuck:
        return []
    before = {after: name for name in stuck for after in graph.successors[name]}
    path: dict[str, None] = {}
    name = stuck[0]
    while name not in path:  # every stuck op has a stuck op before it
        path[name] = None
        name = before[name]
    backwards = list(path)
    members = backwards[backwards.index(name) :][::-1]
    position = {name: number for number, name in enumerate(stuck)}
    start = members.index(min(members, key=position.__getitem__))
    return members[start:] + members[:start]


def _cycle_text(graph: Graph, members: list[str]) -> str:
    parts = [members[0]]
    for name, after in zip(members, [*members[1:], members[0]], strict=True):
        shared = [blob for blob in graph.ops[name].outputs if blob in graph.ops[after].inputs]
        parts += [repr(shared[0]), after] if shared else [after]
    return " -> ".join(parts)


def one_location(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op and its blobs are at one location, but for a `Copy` and what a collective reads."""
    for op in graph.ops.values():
        if op.kind == "Copy":
            continue
        read = () if op.kind in COLLECTIVES else op.inputs
        reads = ((name, "reads") for name in read)
        writes = ((name, "writes") for name in op.outputs)
        for name, verb in dict.fromkeys((*reads, *writes)):
            blob = graph.blobs.get(name)
            if blob is not None and blob.location != op.location:
                yield GraphError(
                    f"op {op.name!r} at {op.location} {verb} {name!r} at {blob.location}",
                    where=op.where,
                    op=op.name,
                    blob=name,
                    location=str(op.location),
                    expected=f"{name!r} at {op.location}",
                    found=f"{name!r} at {blob.location}",
                    remedy="put both at one location, or insert a Copy op between them",
                )


def agrees_with_its_kind(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The kinds have nothing to say against any op whose blobs exist."""
    if kinds is None:
        return
    for op in graph.ops.values():
        inputs = [graph.blobs[name] for name in op.inputs if name in graph.blobs]
        outputs = [graph.blobs.get(name) for name in op.outputs]
        missing = [name for name in op.outputs if name != NOTHING and name not in graph.blobs]
        if len(inputs) == len(op.inputs) and not missing:
            yield from kinds.problems(op, inputs, outputs)


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
    outputs_exist,
    control_names_ops,
    shapes_are_sizes,
    dtypes_are_known,
    layouts_fit,
    no_cycle,
    one_location,
    agrees_with_its_kind,
)
"""All rules, in the order in which they are applied."""


def _bad_blob(blob: Blob, what: str, *, expected: str, found: str, remedy: str) -> GraphError:
    return GraphError(
        what,
        where=blob.where,
        blob=blob.name,
        location=str(blob.location),
        expected=expected,
        found=found,
        remedy=remedy,
    )


def _spot(op: Op) -> str:
    return f"op {op.name!r} ({op.where})" if op.where else f"op {op.name!r}"


def _nearest(graph: Graph, name: str, *, suggest: bool = True) -> str:
    question = nearest_name(name, graph.blobs, "") if suggest else ""
    return question and f": {question}"
