"""The rules that every graph obeys, as one list of small functions.

A rule yields one error per mistake. It tolerates the mistakes that other rules report, so that all
mistakes of a graph can be shown at once. A graph that passes has one producer per blob and no
cycle, and all its ops read and write at their own location, except `Copy` ops and collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from purine.arguments import checked
from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import CHANNELS_LAST, COLLECTIVES, NOTHING, Blob, Op, State
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
_SUGGESTIONS = 8  # finding a nearest name compares all names, so only the first errors get one


class Kinds(Protocol):
    """Checks that depend on the kind of an op; implemented by `purine.registry`."""

    def problems(
        self, op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob | None]
    ) -> Iterator[GraphError]:
        """The mistakes of `op`; an output without a blob is None."""
        ...


Rule: TypeAlias = Callable[[Graph, Kinds | None], Iterator[GraphError]]
"""Yields the mistakes of one sort; kinds are not checked without `Kinds`."""


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
        passed = True
        for error in rule(graph, kinds):
            passed = False
            yield error
        if rule is keys_are_names and not passed:
            return  # the other rules look nodes up by name


def keys_are_names(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every node is stored under its own name."""
    remedy = "add nodes with Builder.add, which keeps each under its own name"
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
                remedy=remedy,
            )


def names_are_usable(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Names are printable and have no spaces; an op and a blob may have the same name."""
    expected = "a name that is not empty, without white space or control characters"
    nodes: list[Blob | Op] = [*graph.blobs.values(), *graph.ops.values()]
    for node in nodes:
        if not node.name or not node.name.isprintable() or " " in node.name:
            what = "op" if isinstance(node, Op) else "blob"
            yield GraphError(
                f"{what} has the name {node.name!r}",
                op=node if what == "op" else None,
                blob=node if what == "blob" else None,
                expected=expected,
                found=repr(node.name),
                remedy=f"rename the {what}, for example to 'conv1/weight'",
            )


def blobs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Ops read and write blobs that the graph declares."""
    reported = 0
    for op in graph.ops.values():
        reads = ((name, "reads") for name in op.inputs)
        writes = ((name, "writes") for name in op.outputs if name != NOTHING)
        for name, verb in (*reads, *writes):
            if name not in graph.blobs:
                reported += 1
                what = f"op {op.name!r} {verb} blob {name!r}, which nothing declares"
                yield _undeclared(graph, what, name, op=op, suggest=reported <= _SUGGESTIONS)


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
    what = f"ops {first.name!r} and {second.name!r} both write blob {name!r}"
    if first is second:
        what = f"op {second.name!r} writes blob {name!r} twice"
    return GraphError(
        what,
        op=second,
        blob=name,
        expected="one producer for each blob",
        found=f"{_spot(first)} and {_spot(second)}",
        remedy="let each write a blob of its own, and add them with an op if a sum is meant",
    )


def states_have_blobs(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Both blobs of a state are declared."""
    for state in graph.states.values():
        for name in dict.fromkeys((state.read, state.next)):
            if name not in graph.blobs:
                role = "read" if name == state.read else "next"
                what = f"state {state.read!r} has the {role} blob {name!r}, which nothing declares"
                yield _undeclared(graph, what, name, where=state.where)


def states_are_not_produced(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """No op writes the blob through which a state is read."""
    for state in graph.states.values():
        producer = graph.producers.get(state.read)
        if producer is not None:
            yield GraphError(
                f"op {producer.name!r} writes blob {state.read!r}, which is a state",
                where=producer.where or state.where,
                op=producer,
                blob=state.read,
                expected="a state that only gets its value from the iteration before",
                found=f"{_spot(producer)} as its producer",
                remedy="write to another blob and name that one as the state's next",
            )


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
            yield _of_state(state, state.next, what, expected, found, remedy)


def states_are_carried_on(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op writes the next value of a state, unless the state keeps its value."""
    expected = "a next blob that an op writes, or the state's own blob to keep its value"
    for state in graph.states.values():
        carried = state.next == state.read or state.next in graph.producers
        if not carried and state.next in graph.blobs:
            what = f"state {state.read!r} is carried on by blob {state.next!r}, which no op writes"
            found, remedy = (
                f"{state.next!r} without a producer",
                f"add an op that writes {state.next!r}",
            )
            yield _of_state(state, state.next, what, expected, found, remedy)


def states_are_typed_alike(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The two blobs of a state have the same shape, dtype and location."""
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
        for aspect, own, other in pairs:
            if own != other:
                yield GraphError(
                    f"state {state.read!r} and its next blob {state.next!r} differ in {aspect}",
                    where=state.where,
                    blob=after,
                    expected=f"{aspect} {own}, as {state.read!r} has",
                    found=f"{aspect} {other}",
                    remedy=f"give both blobs the same {aspect}",
                )


def multipliers_are_factors(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """`lr_mult` and `decay_mult` of a state are finite and not negative."""
    expected = "a finite number, 0 or more"
    for state in graph.states.values():
        for name, value in (("lr_mult", state.lr_mult), ("decay_mult", state.decay_mult)):
            if not (math.isfinite(value) and value >= 0):
                what = f"state {state.read!r} has {name} {value}"
                remedy = f"write {name}: 1.0, or 0.0 to leave the state without it"
                yield _of_state(state, state.read, what, expected, str(value), remedy)


def outputs_exist(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The outputs of the graph are declared blobs."""
    for name in graph.outputs:
        if name not in graph.blobs:
            yield _undeclared(graph, f"output {name!r} is no blob of the graph", name)


def control_names_ops(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Both ends of a control edge are ops."""
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
    """A shape is a tuple of sizes; it may be missing only where an op produces the blob."""
    remedy = "correct the shape (in YAML: size)"
    for blob in graph.blobs.values():
        if blob.shape is None:
            if blob.name not in graph.producers:
                what = "has no shape, and no op produces it"
                expected = "a shape, which can be left out only where an op tells it"
                give = "give its shape (in YAML: size)"
                yield _of_blob(blob, what, expected, "no shape", give)
        elif not all(type(size) is int and size >= 0 for size in blob.shape):
            what, expected = f"has the shape {blob.shape}", "whole numbers, none below zero"
            yield _of_blob(blob, what, expected, str(blob.shape), remedy)
        elif len(blob.shape) > _DIMENSIONS or math.prod(blob.shape) >= _ELEMENTS:
            expected = f"at most {_DIMENSIONS} dimensions and less than 2^63 elements"
            found = f"{len(blob.shape)} dimensions, {_power(math.prod(blob.shape))} elements"
            yield _of_blob(blob, "is larger than a tensor can be", expected, found, remedy)


def _power(count: int) -> str:
    return str(count) if count < _ELEMENTS else f"2^{count.bit_length() - 1} or more"


def dtypes_are_known(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every dtype is one of `DTYPES`."""
    for blob in graph.blobs.values():
        if blob.dtype not in DTYPES:
            expected = f"one of {', '.join(sorted(DTYPES))}"
            remedy = nearest_name(blob.dtype, sorted(DTYPES), "correct the dtype")
            what = f"has the dtype {blob.dtype!r}"
            yield _of_blob(blob, what, expected, repr(blob.dtype), remedy)


def layouts_fit(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """The only layout is `channels-last`, for blobs of four dimensions."""
    for blob in graph.blobs.values():
        if blob.layout not in ("", CHANNELS_LAST):
            what, expected = f"has the layout {blob.layout!r}", f"{CHANNELS_LAST!r}, or none"
            remedy = "correct the layout, or leave it out"
            yield _of_blob(blob, what, expected, repr(blob.layout), remedy)
        elif blob.layout and blob.shape is not None and len(blob.shape) != 4:
            what = f"of {len(blob.shape)} dimensions is {blob.layout}"
            expected = "four dimensions: samples, channels, height and width"
            yield _of_blob(blob, what, expected, str(list(blob.shape)), "leave the layout out")


def no_cycle(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Data and control edges form no cycle; the error shows the first one.

    States and the credit cannot close a cycle. Proof: give each op of each iteration the key
    (iteration, position of the op in a topological order). Data and control edges lead to a larger
    position in the same iteration, states lead to the next iteration, and the credit leads from all
    ops of an iteration to ops of a later one. So an op waits only for smaller keys, the op with the
    smallest key that has not run waits for nothing, and a run never stalls.
    """
    members = _find_cycle(graph)
    if members:
        cycle = _cycle_text(graph, members)
        yield GraphError(
            f"the graph has a cycle: {cycle}",
            op=graph.ops[members[0]],
            expected="ops that can run one after the other",
            found=cycle,
            remedy="remove one of these edges, or carry a value to the next iteration with a state",
        )


def _find_cycle(graph: Graph) -> list[str]:
    """The ops of one cycle in the order of its edges, starting with the first in graph order."""
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
    """An op is at the location of its blobs, except for a `Copy` and inputs of a collective."""
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
                    op=op,
                    blob=name,
                    expected=f"{name!r} at {op.location}",
                    found=f"{name!r} at {blob.location}",
                    remedy="put both at one location, or insert a Copy op between them",
                )


def agrees_with_its_kind(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Every op whose blobs exist obeys the rules of its kind."""
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


def _spot(op: Op) -> str:
    return f"op {op.name!r} ({op.where})" if op.where else f"op {op.name!r}"


def _of_blob(blob: Blob, what: str, expected: str, found: str, remedy: str) -> GraphError:
    what = f"blob {blob.name!r} {what}"
    return GraphError(what, blob=blob, expected=expected, found=found, remedy=remedy)


def _of_state(
    state: State, blob: str, what: str, expected: str, found: str, remedy: str
) -> GraphError:
    where = state.where
    return GraphError(what, where=where, blob=blob, expected=expected, found=found, remedy=remedy)


def _undeclared(
    graph: Graph,
    what: str,
    name: str,
    *,
    op: Op | None = None,
    where: str | None = None,
    suggest: bool = True,
) -> GraphError:
    """The error for the name of a blob that is not declared."""
    question = nearest_name(name, graph.blobs, "") if suggest else ""
    remedy = "declare the blob, or correct the name" + (question and f": {question}")
    expected, found = "the name of a blob of the graph", repr(name)
    return GraphError(
        what, where=where, op=op, blob=name, expected=expected, found=found, remedy=remedy
    )
