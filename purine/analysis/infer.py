"""Filling in and checking what a graph's kinds determine: implied inputs, shapes, dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from purine.analysis import shapes, tracing
from purine.analysis.purity import ImpureCall, is_foreign, refuse_impure, refused_call
from purine.analysis.tracing import Inferred, Spec
from purine.arguments import at_least, checked
from purine.errors import GraphError, KindError
from purine.graph import NOTHING, Blob, Builder, Graph, Op, verify
from purine.graph.nodes import LAST
from purine.graph.verify import problems as structural
from purine.registry.aten import canonical, device_of, dtype_of
from purine.registry.clock import add_clock
from purine.registry.fillers import filler_problems
from purine.registry.kind import IMPLIED, Kind, generation, op_error
from purine.registry.lookup import lookup

__all__ = [
    "RegisteredKinds",
    "check",
    "complete",
    "families",
    "infer_op",
    "op_key",
    "problems",
    "results_of",
    "size_in_bytes",
    "spec_of",
    "with_batch",
]


@checked
def complete(graph: Graph) -> Graph:
    """The graph with implied inputs, random streams, and shapes and dtypes of results filled in.

    Kinds get their canonical spelling. Declared shapes stay; `check` compares them with the kinds.
    """
    builder = Builder(graph)
    for op in graph.ops.values():
        kind = lookup(op)
        implied = [name for name in kind.inputs if name in IMPLIED]
        if implied and len(op.inputs) == len(kind.inputs) - len(implied):
            op = replace(op, inputs=(*op.inputs, *implied))
            add_clock(builder)
        if "stream" in kind.attributes and "stream" not in op.attributes:
            op = replace(op, attributes={**op.attributes, "stream": op.name})
        if op.kind != canonical(op.kind):
            op = replace(op, kind=canonical(op.kind))
        builder.ops[op.name] = op
    completed = builder.graph()
    if all(blob.shape is not None for blob in completed.blobs.values()):
        return completed
    for op in completed.in_order:
        unknown = [name for name in op.results if builder.blobs[name].shape is None]
        if unknown:
            for output, spec in zip(op.outputs, _infer_checked(op, builder.blobs), strict=True):
                if output in unknown and spec is not None:
                    blob = builder.blobs[output]
                    builder.blobs[output] = replace(blob, shape=spec.shape, dtype=spec.dtype)
    return builder.graph()


def families(graph: Graph) -> dict[str, str]:
    """For each blob the first blob it may share memory with in an iteration, itself for most."""
    family: dict[str, str] = {}
    for op in graph.in_order:
        kind = lookup(op)
        if kind.function is None or not op.inputs:
            continue
        aliases = results_of(op, [spec_of(graph.blobs[name]) for name in op.inputs]).aliases
        for output, shared in zip(op.outputs, aliases, strict=True):
            if shared is not None or kind.view:
                base = op.inputs[shared or 0]
                family[output] = family.setdefault(base, base)
        if op.kind == LAST:  # the result may be any of the inputs
            own = family[op.outputs[0]]
            others = {family.get(name, name) for name in op.inputs} - {own}
            joined = {name for name, first in family.items() if first in others}
            family |= dict.fromkeys((*joined, *others, *op.inputs), own)
    return {name: family.get(name, name) for name in (*graph.blobs, NOTHING)}


@checked
def with_batch(net: Graph, batch: int) -> Graph:
    """The same net for another batch size: sources changed, all other shapes inferred anew.

    Use it before `backward`, whose ops have shapes in their attributes. An imported net that only
    takes one batch size raises an error that names the op.
    """
    at_least("batch", batch, 1)
    builder = Builder(net)
    sources = {name for op in net.ops.values() if op.kind == "Data" for name in op.outputs}
    for name, blob in net.blobs.items():
        if name in sources or name in net.inputs:
            if blob.sizes:
                builder.blobs[name] = replace(blob, shape=(batch, *blob.sizes[1:]))
        elif name in net.producers and name not in sources:
            builder.blobs[name] = replace(blob, shape=None)
    return complete(builder.graph())


@checked
def check(graph: Graph) -> Graph:
    """The graph itself, completed, if every rule holds; else the first error.

    >>> from purine.zoo import mlp
    >>> len(check(mlp(batch=8)).ops) > 0
    True
    """
    completed = verify(complete(verify(graph)), kinds=RegisteredKinds())
    for error in _filler_problems(completed):
        raise error
    return completed


@checked
def problems(graph: Graph) -> list[GraphError]:
    """Everything that is wrong with a graph, in the order of the rules."""
    errors = structural(graph)
    if errors:
        return errors
    try:
        completed = complete(graph)
    except GraphError as error:
        return [error]
    return structural(completed, kinds=RegisteredKinds()) or list(_filler_problems(completed))


def _filler_problems(graph: Graph) -> Iterator[KindError]:
    for name, state in graph.states.items():
        yield from filler_problems(state, graph.blobs[name])


class RegisteredKinds:
    """The rules that need to know kinds, for `verify`."""

    def problems(
        self, op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob | None]
    ) -> Iterator[GraphError]:
        try:
            kind = lookup(op)
            wrong = list(kind.problems(op))
            if wrong or kind.function is None:
                yield from wrong
                return
            specs = _infer_all(op, [spec_of(blob) for blob in inputs])
        except KindError as error:
            yield error
            return
        for blob, spec in zip(outputs, specs, strict=True):
            if blob is not None and spec is not None:
                yield from _disagreement(op, blob, spec, inputs)


def infer_op(op: Op, inputs: Sequence[Spec]) -> tuple[Spec | None, ...]:
    """The specs of an op's results, by running its kernel on fake tensors."""
    return results_of(op, inputs).specs


def results_of(op: Op, inputs: Sequence[Spec]) -> Inferred:
    """All that is known of an op's results: from its kind, by a rule, or from fake tensors."""
    key = op_key(op, inputs)
    if key not in _INFERRED:
        kind = lookup(op)
        refuse_impure(op, kind)
        try:
            _INFERRED[key] = _results(op, kind, inputs)
        except KindError:
            raise
        except ImpureCall as error:
            raise refused_call(op, kind, error) from None
        except Exception as error:
            raise _refused(op, inputs, error) from error
    return _INFERRED[key]


def _results(op: Op, kind: Kind, inputs: Sequence[Spec]) -> Inferred:
    if kind.per_op.infer is not None:
        return kind.per_op.infer(op, inputs)
    if not any(kind.problems(op)):
        by_rule = shapes.told(op, kind.settings(op), inputs)
        if by_rule is not None:
            return by_rule
    return tracing.infer(kind.bind(op), inputs, watch=is_foreign(kind))


_INFERRED: dict[tuple[object, ...], Inferred] = {}


def _refused(op: Op, inputs: Sequence[Spec], error: Exception) -> KindError:
    message = str(error).strip().splitlines()
    given = "; ".join(
        f"{name}: {spec.dtype} {list(spec.shape)}"
        for name, spec in zip(op.inputs, inputs, strict=True)
    )
    expected = f"inputs that fit together for {op.kind}"
    found = f"{given} ({message[0] if message else type(error).__name__})"
    remedy = "change the sizes or dtypes of these blobs, or the op's attributes"
    return op_error(op, "cannot take its inputs", expected, found, remedy)


def spec_of(blob: Blob) -> Spec:
    """The spec of a blob whose shape is known."""
    return Spec(blob.sizes, blob.dtype, str(device_of(blob.location)))


def size_in_bytes(blob: Blob) -> int:
    """The bytes of a blob's value."""
    return math.prod(blob.shape or ()) * int(dtype_of(blob.dtype).itemsize)


def op_key(op: Op, inputs: Sequence[Spec]) -> tuple[object, ...]:
    """What determines the results of tracing an op."""
    # By repr, since 1, 1.0 and True are equal and mean different things to a kernel.
    settings = repr(sorted(op.attributes.items()))
    return op.kind, generation(), settings, tuple(inputs), str(device_of(op.location))


def _infer_checked(op: Op, blobs: Mapping[str, Blob]) -> tuple[Spec | None, ...]:
    kind = lookup(op)
    for error in kind.problems(op):
        raise error
    if kind.function is None:
        missing = next(name for name in op.outputs if blobs[name].shape is None)
        what = f"writes blob {missing!r} of unknown size"
        expected = f"a blob entry for {missing!r} with its size"
        remedy = f"declare blob {missing!r}: {op.kind} cannot tell its size"
        raise op_error(op, what, expected, "none", remedy, blob=missing)
    return _infer_all(op, [spec_of(blobs[name]) for name in op.inputs])


def _infer_all(op: Op, inputs: Sequence[Spec]) -> tuple[Spec | None, ...]:
    """As `infer_op`; an error where the op does not name each of its results."""
    specs = infer_op(op, inputs)
    if len(specs) != len(op.outputs):
        what, found = f"has {len(op.outputs)} outputs", ", ".join(n or "~" for n in op.outputs)
        remedy = "name every result; write ~ for one that nobody needs"
        raise op_error(op, what, str(len(specs)), found or "none", remedy)
    return specs


def _disagreement(op: Op, blob: Blob, spec: Spec, inputs: Sequence[Blob]) -> Iterator[KindError]:
    for what, declared, inferred in (
        ("size", list(blob.shape or ()), list(spec.shape)),
        ("dtype", blob.dtype, spec.dtype),
    ):
        if declared != inferred:
            given = "; ".join(map(str, inputs))
            text = f"blob {blob.name!r} at {blob.location} has {what} {declared}, but op "
            text += f"{op.name!r} ({op.kind}) makes {inferred}"
            expected = f"{what} {inferred}" + (f" (from {given})" if given else "")
            remedy = f"change the {what} of blob {blob.name!r} or leave its entry out"
            where, found = blob.where or op.where, f"{what} {declared}"
            yield KindError(text, expected, found, remedy, where=where, op=op.name, blob=blob)
