"""Filling in and checking what a graph's kinds determine: implied inputs, shapes, dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from purine.analysis import shapes, tracing
from purine.analysis.purity import ImpureCall, is_foreign, refuse_impure, refused_call
from purine.analysis.tracing import Inferred, Spec
from purine.arguments import at_least, checked
from purine.errors import GraphError, KindError
from purine.graph import NOTHING, Blob, Builder, Graph, Op, verify
from purine.graph.verify import problems as structural
from purine.registry.aten import canonical, device_of, dtype_of
from purine.registry.clock import add_clock
from purine.registry.fillers import filler_problems
from purine.registry.kind import IMPLIED, Kind, generation
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

    Kinds get their canonical spelling, the one that tables of kinds have. Shapes that are declared
    stay as they are; `check` compares them with what the kinds say.
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
    for name in completed.order:
        op = completed.ops[name]
        unknown = [n for n in op.outputs if n and builder.blobs[n].shape is None]
        if unknown:
            for output, spec in zip(op.outputs, _infer_checked(op, builder.blobs), strict=True):
                if output in unknown and spec is not None:
                    blob = builder.blobs[output]
                    builder.blobs[output] = replace(blob, shape=spec.shape, dtype=spec.dtype)
    return builder.graph()


def families(graph: Graph) -> dict[str, str]:
    """For each blob the first of those it may share memory with, itself for most.

    The two blobs of a state share memory too, but in different iterations: that is not told here.
    """
    family: dict[str, str] = {}
    for name in graph.order:
        op = graph.ops[name]
        kind = lookup(op)
        if kind.function is None or not op.inputs:
            continue
        aliases = results_of(op, [spec_of(graph.blobs[name]) for name in op.inputs]).aliases
        for output, shared in zip(op.outputs, aliases, strict=True):
            if shared is not None or kind.view:
                base = op.inputs[shared or 0]
                family[output] = family.setdefault(base, base)
    return {name: family.get(name, name) for name in (*graph.blobs, NOTHING)}


@checked
def with_batch(net: Graph, batch: int) -> Graph:
    """The same net for another batch size: sources changed, all other shapes inferred anew.

    For nets, imported ones among them; what `backward` adds holds shapes in its attributes. Inputs
    without dimensions stay as they are. An imported net that cannot follow the batch size raises an
    error that names the op to blame.
    """
    at_least("batch", batch, 1)
    builder = Builder(net)
    sources = {name for op in net.ops.values() if op.kind == "Data" for name in op.outputs}
    for name, blob in net.blobs.items():
        assert blob.shape is not None
        if name in sources or name in net.inputs:
            if blob.shape:
                builder.blobs[name] = replace(blob, shape=(batch, *blob.shape[1:]))
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
    found = structural(graph)
    if found:
        return found
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
        except KindError as error:
            yield error
            return
        wrong = list(kind.problems(op))
        if wrong:
            yield from wrong
            return
        if kind.function is None:
            return
        try:
            found = infer_op(op, [spec_of(blob) for blob in inputs])
        except KindError as error:
            yield error
            return
        if len(found) != len(outputs):
            yield _wrong_count(op, len(found))
            return
        for blob, spec in zip(outputs, found, strict=True):
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
        defaults = {key: attr.default for key, attr in kind.attributes.items()}
        found = shapes.told(op, {**defaults, **op.attributes}, inputs)
        if found is not None:
            return found
    return tracing.infer(kind.bind(op), inputs, watch=is_foreign(kind))


_INFERRED: dict[tuple[object, ...], Inferred] = {}


def _refused(op: Op, inputs: Sequence[Spec], error: Exception) -> KindError:
    """What torch said of an op's inputs, told with names."""
    message = str(error).strip().splitlines()
    given = "; ".join(
        f"{name}: {spec.dtype} {list(spec.shape)}"
        for name, spec in zip(op.inputs, inputs, strict=True)
    )
    return KindError(
        f"op {op.name!r} ({op.kind}) at {op.location} cannot take its inputs",
        where=op.where,
        op=op.name,
        location=str(op.location),
        expected=f"inputs that fit together for {op.kind}",
        found=f"{given} ({message[0] if message else type(error).__name__})",
        remedy="change the sizes or dtypes of these blobs, or the op's attributes",
    )


def spec_of(blob: Blob) -> Spec:
    """The spec of a blob whose shape is known."""
    assert blob.shape is not None, f"blob {blob.name!r} has no shape yet: complete the graph first"
    return Spec(blob.shape, blob.dtype, str(device_of(blob.location)))


def size_in_bytes(blob: Blob) -> int:
    """The bytes of a blob's value."""
    elements = 1
    for extent in blob.shape or ():
        elements *= extent
    return elements * int(dtype_of(blob.dtype).itemsize)


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
        raise KindError(
            f"op {op.name!r} ({op.kind}) at {op.location} writes blob {missing!r} of unknown size",
            where=op.where,
            op=op.name,
            blob=missing,
            location=str(op.location),
            expected=f"a blob entry for {missing!r} with its size",
            found="none",
            remedy=f"declare blob {missing!r}: {op.kind} cannot tell its size",
        )
    found = infer_op(op, [spec_of(blobs[name]) for name in op.inputs])
    if len(found) != len(op.outputs):
        raise _wrong_count(op, len(found))
    return found


def _wrong_count(op: Op, count: int) -> KindError:
    return KindError(
        f"op {op.name!r} ({op.kind}) at {op.location} has {len(op.outputs)} outputs",
        where=op.where,
        op=op.name,
        location=str(op.location),
        expected=f"{count}",
        found=", ".join(name or "~" for name in op.outputs) or "none",
        remedy="name every result; write ~ for one that nobody needs",
    )


def _disagreement(op: Op, blob: Blob, spec: Spec, inputs: Sequence[Blob]) -> Iterator[KindError]:
    for what, declared, found in (
        ("size", list(blob.shape or ()), list(spec.shape)),
        ("dtype", blob.dtype, spec.dtype),
    ):
        if declared != found:
            given = "; ".join(str(item) for item in inputs)
            yield KindError(
                f"blob {blob.name!r} at {blob.location} has {what} {declared}, "
                f"but op {op.name!r} ({op.kind}) makes {found}",
                where=blob.where or op.where,
                op=op.name,
                blob=blob.name,
                location=str(blob.location),
                expected=f"{what} {found} (from {given})" if given else f"{what} {found}",
                found=f"{what} {declared}",
                remedy=f"change the {what} of blob {blob.name!r} or leave its entry out",
            )
