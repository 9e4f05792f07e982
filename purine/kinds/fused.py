"""Several ops as one: the kind of an op whose body is a graph.

The body is the YAML text of a graph without locations, so a fused op is plain data like any other.
Its inputs and outputs are those of the op, in order. Its ops run in the order in which they are
written: one after the other, or compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from torch import Tensor

from purine.analysis.infer import families, results_of
from purine.analysis.tracing import Inferred, Spec
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph, Location, Op, from_yaml, to_yaml
from purine.registry.kind import Attr, Kernel, Kind, PerOp, Results, register
from purine.registry.lookup import lookup

__all__ = ["FUSED", "bind_grouped", "body_of", "fused_op", "over_of", "refuse_fused"]

FUSED = "Fused"


def fused_op(
    name: str,
    graph: Graph,
    members: Sequence[Op],
    inputs: Sequence[str],
    outputs: Sequence[str],
    family: Mapping[str, str],
) -> Op:
    """The op that runs some ops of a graph; `family` tells which blobs share memory.

    The next value of a state that no other op may still read is written over the old one.
    """
    builder = Builder()
    results = chain.from_iterable(op.results for op in members)
    for blob in dict.fromkeys((*inputs, *results)):
        builder.add(replace(graph.blobs[blob], location=Location(), where=None))
    for op in members:
        builder.add(replace(op, location=Location(), lane="compute", where=None))
    builder.outputs = list(outputs)
    first = members[0]
    settings: dict[str, Attribute] = {"body": to_yaml(builder.graph())}
    op = Op(name, FUSED, tuple(inputs), tuple(outputs), settings, first.location, first.lane)
    over = tuple(_carried(op, members, graph, family))
    return replace(op, attributes={**settings, "over": over}) if over else op


def _carried(
    op: Op, members: Sequence[Op], graph: Graph, family: Mapping[str, str]
) -> Iterator[tuple[int, int]]:
    """The pairs (result, input) where the next value of a state can be written over the old one.

    When the op runs, nothing that shares memory with either value may be needed by the host, by the
    next iteration under another name, or by an op that does not come before.
    """
    carried = {state.next: state.read for state in graph.states.values()}
    inside = {member.name for member in members}
    before = _before(inside, graph)
    sharing: dict[str, list[str]] = {}
    for blob, first in family.items():
        sharing.setdefault(first, []).append(blob)

    def wanted(blob: str, allowed: Collection[str]) -> bool:
        """Whether somebody wants what a blob holds, other than `allowed` ops."""
        if blob in graph.outputs or blob in carried or blob in op.outputs:
            return True
        for user in graph.consumers[blob]:
            if user.kind == "Copy" and user.attributes.get("alias"):
                if wanted(user.outputs[0], allowed):
                    return True
            elif user.name not in allowed:
                return True
        return False

    for index, new in enumerate(op.outputs):
        old = carried.get(new, NOTHING)
        if old not in op.inputs or family[old] == family[new] or new in graph.outputs:
            continue
        users = [user.name for user in graph.consumers[new]]
        twins = [blob for blob in sharing[family[old]] if blob in op.inputs]
        if (
            len(twins) == 1
            and inside.issuperset(users)
            and not any(wanted(blob, before) for blob in sharing[family[old]])
            and not any(wanted(blob, inside) for blob in sharing[family[new]] if blob != new)
        ):
            yield index, op.inputs.index(old)


def _before(ops: Iterable[str], graph: Graph) -> set[str]:
    """These ops, and all that come before one of them in every order."""
    before = set(ops)
    for name in reversed(graph.order):
        if not before.isdisjoint(graph.successors[name]):
            before.add(name)
    return before


def body_of(op: Op) -> Graph:
    """The graph of a fused op, at the op's own location."""
    body = _body(str(op.attributes["body"]))
    builder = Builder(body)
    for name, blob in body.blobs.items():
        builder.blobs[name] = replace(blob, location=op.location)
    for name, member in body.ops.items():
        builder.ops[name] = replace(member, location=op.location)
    return builder.graph()


def refuse_fused(graph: Graph, transform: str) -> None:
    """Raise `GraphError` for a graph with a fused op."""
    for op in graph.ops.values():
        if op.kind == FUSED:
            what = f"the graph has a fused op, {op.name!r}"
            expected = f"a step whose ops {transform} can tell apart"
            found = f"{len(_body(str(op.attributes['body'])).ops)} ops in one"
            remedy = "use fuse last, behind all other transforms"
            raise GraphError(what, expected, found, remedy, op=op)


@lru_cache(maxsize=64)
def _body(text: str) -> Graph:
    return from_yaml(text, file="body")


@dataclass(frozen=True, slots=True)
class _Call:
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _bind(op: Op) -> Kernel:
    body = body_of(op)
    return _sequence(body, [_call(member) for member in body.ops.values()])


def bind_grouped(op: Op) -> Kernel:
    """As `_bind`, with one call for the updates of many parameters: less to compile and launch."""
    body = body_of(op)
    read = {name for member in body.ops.values() for name in member.inputs}
    calls: list[_Call] = []
    groups: dict[tuple[object, ...], list[Op]] = {}
    for member in body.ops.values():
        if lookup(member).variants.each is not None and read.isdisjoint(member.outputs):
            dtypes = tuple(body.blobs[name].dtype for name in member.inputs)
            key = (member.kind, repr(sorted(member.attributes.items())), dtypes)
            groups.setdefault(key, []).append(member)
        else:
            calls.append(_call(member))
    return _sequence(body, [*calls, *map(_grouped, groups.values())])


def _bind_overwrite(op: Op) -> Kernel:
    """As `_bind`, with the new values of states written over the old ones."""
    over, body = over_of(op), body_of(op)
    writable, base = {body.inputs[index] for _, index in over}, families(body)
    read = {base[name] for name in body.outputs}
    calls = []
    for member in reversed(list(body.ops.values())):
        kind = lookup(member)
        written = {member.inputs[index] for index in kind.overwrites(member)}
        fits = written and written <= writable - read
        calls.append(_call(member, kind.bind_overwrite(member) if fits else _on_copies(member)))
        read.update(base.get(name, name) for name in member.inputs)
    run = _sequence(body, calls[::-1])

    def overwriting(*tensors: Tensor) -> Results:
        returned = run(*tensors)
        results = [returned] if isinstance(returned, Tensor) else list(returned)
        for result, index in over:
            if results[result] is not tensors[index]:
                results[result] = tensors[index].copy_(results[result])
        return tuple(results) if len(results) > 1 else results[0]

    return overwriting


def _on_copies(member: Op) -> Kernel:
    """The in-place kernel of an op on copies of the inputs it overwrites, for the same bits."""
    kind = lookup(member)
    written = kind.overwrites(member)
    if not written:
        return kind.bind(member)
    run = kind.bind_overwrite(member)

    def kernel(*tensors: Tensor) -> Results:
        return run(*(t.clone() if k in written else t for k, t in enumerate(tensors)))

    return kernel


def _call(member: Op, kernel: Kernel | None = None) -> _Call:
    return _Call(kernel or lookup(member).bind(member), member.inputs, member.outputs)


def _grouped(members: Sequence[Op]) -> _Call:
    """One call for several ops that differ in their tensors alone."""
    kind = lookup(members[0])
    run, width = kind.bind_many(members[0], in_place=False), len(members[0].inputs)

    def kernel(*tensors: Tensor) -> Results:
        columns = run(*(list(tensors[index::width]) for index in range(width)))
        return tuple(value for row in zip(*columns, strict=True) for value in row)

    inputs = tuple(name for member in members for name in member.inputs)
    return _Call(kernel, inputs, tuple(name for member in members for name in member.outputs))


def _sequence(body: Graph, calls: Sequence[_Call]) -> Kernel:
    """The calls one after the other, each value held until its last reader."""
    kept = set(body.outputs)
    last: list[tuple[str, ...]] = []
    for call in reversed(calls):
        touched = dict.fromkeys((*call.inputs, *call.outputs))
        last.append(tuple(name for name in touched if name not in kept))
        kept.update(call.inputs)
    steps = list(zip(calls, reversed(last), strict=True))
    inputs, outputs = body.inputs, body.outputs

    def run(*tensors: Tensor) -> Results:
        values = dict(zip(inputs, tensors, strict=True))
        for call, done in steps:
            returned = call.kernel(*(values[name] for name in call.inputs))
            results = (returned,) if isinstance(returned, Tensor) else returned
            values.update(zip(call.outputs, results, strict=False))
            for name in done:
                values.pop(name, None)
        results = tuple(values[name] for name in outputs)
        return results if len(results) > 1 else results[0]

    return run


def _infer(op: Op, inputs: Sequence[Spec]) -> Inferred:
    """The results of the members, one by one, so that they agree with those of the unfused ops."""
    body = body_of(op)
    specs = dict(zip(body.inputs, inputs, strict=True))
    shared: dict[str, int | None] = {name: index for index, name in enumerate(body.inputs)}
    for member in body.ops.values():
        inferred = results_of(member, [specs[name] for name in member.inputs])
        results = zip(member.outputs, inferred.specs, inferred.aliases, strict=False)
        for name, spec, alias in results:
            if spec is not None:
                specs[name] = spec
            shared[name] = None if alias is None else shared[member.inputs[alias]]
    given = tuple(specs.get(name) for name in body.outputs)
    return Inferred(given, tuple(shared[name] for name in body.outputs), len(body.outputs) > 1)


def over_of(op: Op) -> tuple[tuple[int, int], ...]:
    """The pairs (result, input) of a fused op where the result may be written over the input."""
    return op.items("over")


register(
    Kind(
        FUSED,
        _bind,
        (),
        variadic=True,
        attributes={"body": Attr(str), "over": Attr(tuple[tuple[int, int], ...], ())},
        per_op=PerOp(
            _bind,
            _bind_overwrite,
            overwrites=lambda op: tuple(index for _, index in over_of(op)),
            infer=_infer,
        ),
    )
)
