"""A plan with its kernels: what an executor on this machine does for each op.

Everything about buffers is decided here, before anything runs: when a value is released, which
results are written over an input that nobody reads again, and which states may be updated in place.

Values that may share memory (an input and its views) form one *family*. A kernel may write over a
value only when nothing else of its family is read afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import Tensor

from purine.analysis.infer import families, results_of, size_in_bytes, spec_of
from purine.core import Plan
from purine.graph import NOTHING, Blob, Graph, Op
from purine.kinds.filter_products import in_parts
from purine.kinds.fused import FUSED
from purine.kinds.packed_filters import with_packed
from purine.lowering.segments import segment_kernel
from purine.registry import aten
from purine.registry.kind import Kernel
from purine.registry.lookup import lookup

__all__ = ["Program", "Step", "compile_program"]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do for one op; blobs are numbers into the values of an iteration.

    `writes` has -1 for results that nobody needs. `carries` are pairs (result, blob that the next
    iteration reads). `drops` are values that this op alone reads; `shared` are values with several
    readers, released by the last. `families` are the watched families that it reads. `over` are
    pairs (input position, family) that the kernel writes over: when this op is not the last reader
    of the family, it gets a copy.
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    carries: tuple[tuple[int, int], ...]
    drops: tuple[int, ...]
    shared: tuple[int, ...]
    families: tuple[int, ...]
    over: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Program:
    """The steps by op number, and the layout of an iteration's values."""

    steps: tuple[Step, ...]
    blobs: Mapping[str, int]
    uses: tuple[int, ...]
    watched: tuple[int, ...]
    constants: tuple[str, ...]


def compile_program(
    graph: Graph,
    plan: Plan,
    sources: Mapping[str, Kernel],
    *,
    whole: Graph | None = None,
    members: Mapping[str, Sequence[Op]] | None = None,
    fused: Callable[[Op], Kernel] | None = None,
) -> Program:
    """Decide for every op of a plan what its execution does.

    `sources` are kernels by op name, for ops whose kind has none of its own or that run by another
    in this run. Where `graph` has segments, `whole` is the graph without, and `members` has the ops
    of each. `fused` makes the kernel of a fused op; without it their ops run one by one.
    """
    members = members or {}
    family = families(whole or graph)
    overlapping = _overlapping(whole or graph, family)
    layout = _Layout(graph, family, overlapping, members, fused)
    fine = layout if whole is None else _Layout(whole, family, overlapping, {}, fused)
    kernels = dict(sources)
    for name, ops in members.items():
        segment = graph.ops[name]
        parts = [part for op in ops for part in _parts(op, fine.graph.blobs)]
        kernels[name] = segment_kernel(parts, segment.inputs, segment.outputs, fine.overwritable)
    for op in graph.ops.values():
        parts = _parts(op, graph.blobs)
        if parts != [op] and op.name not in kernels:
            kernels[op.name] = _of_parts(op, parts)
    steps = tuple(layout.step(graph.ops[name], kernels) for name in plan.ops)
    return Program(
        steps,
        layout.numbers,
        tuple(layout.uses[name] for name in graph.blobs),
        tuple(layout.watched_uses[family] for family in layout.watched),
        tuple(layout.constants),
    )


class _Layout:
    """What is known of the blobs of a graph while its program is compiled."""

    def __init__(
        self,
        graph: Graph,
        family: Mapping[str, str],
        overlapping: Set[str],
        members: Mapping[str, Sequence[Op]],
        fused: Callable[[Op], Kernel] | None,
    ) -> None:
        self.graph = graph
        self.overlapping = overlapping
        self.members = members
        self.fused = fused
        self.numbers = {name: index for index, name in enumerate(graph.blobs)}
        self.constants = [
            name for name, state in graph.states.items() if state.next == name
        ] + list(graph.inputs)
        self.kept = set(self.constants) | set(graph.outputs)
        self.carried: dict[str, list[str]] = {}
        for state in graph.states.values():
            if state.next != state.read:
                self.carried.setdefault(state.next, []).append(state.read)
        self.family = family
        self.uses: Counter[str] = Counter()
        for name, readers in graph.consumers.items():
            self.uses[name] = len(readers)
        overwriting = [op for op in graph.ops.values() if self._over(op)]
        written = (op.inputs[place] for op in overwriting for place in self._over(op))
        self.watched = {
            name: index
            for index, name in enumerate(dict.fromkeys(self.family[item] for item in written))
        }
        self.watched_uses: Counter[str] = Counter()
        for op in graph.ops.values():
            self.watched_uses.update({self.family[name] for name in op.inputs})
        pinned = [self.family[name] for name in self.kept]
        for op in overwriting:
            families = [self.family[name] for name in op.inputs]
            pinned += [family for family in set(families) if families.count(family) > 1]
        for state in graph.states.values():
            if state.next != state.read:
                # Memory that lives on in the next iteration: nobody may write over it in this one,
                # and in the next one only if nobody of this one may still be reading it.
                if self.watched_uses[self.family[state.next]] or state.next in self.kept:
                    pinned.append(self.family[state.read])
                pinned.append(self.family[state.next])
        self.watched_uses.update(pinned)

    def step(self, op: Op, sources: Mapping[str, Kernel]) -> Step:
        kind = lookup(op)
        over = tuple(
            (place, self.watched[self.family[op.inputs[place]]]) for place in self._over(op)
        )
        if kind.function is None or op.name in sources:
            kernel = sources[op.name]
        elif op.kind == FUSED and self.fused is not None:
            kernel = self.fused(op)
        elif over or op.kind == FUSED:
            kernel = kind.bind_overwrite(op)
        else:
            place = self.overwritable(op)
            kernel = kind.bind(op) if place is None else aten.bind_over(op, place)
            specs = [spec_of(self.graph.blobs[name]) for name in op.inputs]
            if len(op.outputs) == 1 and results_of(op, specs).several:
                kernel = _first_of(kernel)
        reads = dict.fromkeys(op.inputs)
        families = {self.family[name] for name in reads}
        return Step(
            kernel,
            tuple(self.numbers[name] for name in op.inputs),
            tuple(self._write(name) for name in op.outputs),
            tuple(
                (place, self.numbers[read])
                for place, name in enumerate(op.outputs)
                for read in self.carried.get(name, ())
            ),
            tuple(self.numbers[n] for n in reads if self.uses[n] == 1 and n not in self.kept),
            tuple(self.numbers[n] for n in reads if self.uses[n] > 1 and n not in self.kept),
            tuple(self.watched[family] for family in families if family in self.watched),
            over,
        )

    def _over(self, op: Op) -> tuple[int, ...]:
        """The inputs that an op writes over where nobody else reads them any more."""
        width = 0
        places: tuple[int, ...] = ()
        for member in self.members.get(op.name, (op,)):
            places += tuple(width + place for place in lookup(member).overwrites(member))
            width += len(member.inputs)
        return places

    def _write(self, name: str) -> int:
        if name == NOTHING or not (self.uses[name] or name in self.kept):
            return -1
        return self.numbers[name]

    def overwritable(self, op: Op) -> int | None:
        """The input that an elementwise op may write its result over: nobody else ever reads it."""
        graph = self.graph
        for place in aten.OVERWRITES.get(op.kind, ()):
            if place >= len(op.inputs) or len(op.outputs) != 1:
                continue
            name = op.inputs[place]
            before, after = graph.blobs[name], graph.blobs[op.outputs[0]]
            if (
                (before.shape, before.dtype) == (after.shape, after.dtype)
                and self.watched_uses[self.family[name]] == 1
                and op.inputs.count(name) == 1
                and name in graph.producers
                and name not in self.overlapping
            ):
                return place
        return None


def _overlapping(graph: Graph, family: Mapping[str, str]) -> set[str]:
    """Blobs whose elements may share memory with each other, as those of `expand` do."""
    found: set[str] = set()
    for name in graph.order:
        op = graph.ops[name]
        for output in op.outputs:
            if output == NOTHING or family[output] == output:
                continue
            (source, *_) = (item for item in op.inputs if family[item] == family[output])
            before, after = (size_in_bytes(graph.blobs[item]) for item in (source, output))
            if source in found or before < after:
                found.add(output)
    return found


def _parts(op: Op, blobs: Mapping[str, Blob]) -> list[Op]:
    """The ATen ops that run in place of an op."""
    return list(in_parts(with_packed(op, blobs), blobs))


def _of_parts(op: Op, parts: Sequence[Op]) -> Kernel:
    """The kernel of an op that runs as several; a result that nobody wants may be any of them."""
    made = next(name for name in op.outputs if name != NOTHING)
    outputs = [made if name == NOTHING else name for name in op.outputs]
    return segment_kernel(parts, op.inputs, outputs, lambda _: None)


def _first_of(kernel: Kernel) -> Kernel:
    def first(*tensors: Tensor) -> Tensor:
        return kernel(*tensors)[0]

    return first
