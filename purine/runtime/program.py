"""A lowered graph with its kernels: the work of an executor on this machine for each op.

This file decides, before anything runs, when values are released, and which results are written
over an input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from purine.analysis.aliasing import Aliasing, constants
from purine.analysis.infer import results_of, spec_of
from purine.core import Plan, compile_plan
from purine.graph import FETCH, NOTHING, Graph, Op
from purine.kinds.fused import FUSED
from purine.kinds.packed_filters import with_packed
from purine.lowering import Lowered
from purine.lowering.segments import segment_kernel
from purine.registry import aten
from purine.registry.kind import Kernel
from purine.registry.lookup import lookup

__all__ = ["Program", "Step", "compile_program"]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do for one op; blobs are numbers into the values of an iteration.

    `writes` has -1 for results that nobody needs. `carries` are pairs (result, blob that the next
    iteration reads). `drops` are values that this op alone reads, `shared` those with several
    readers, `families` the watched families that it reads. `over` are pairs (input position,
    family) that the kernel writes over; it gets a copy unless it is the family's last reader.
    The op runs in iteration `phase` of `every`. `stale` are triples (next value of a state, value
    that is read late, in how many iterations).
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    carries: tuple[tuple[int, int], ...]
    drops: tuple[int, ...]
    shared: tuple[int, ...]
    families: tuple[int, ...]
    over: tuple[tuple[int, int], ...]
    every: int = 1
    phase: int = 0
    stale: tuple[tuple[int, int, int], ...] = ()
    checked: bool = field(init=False)
    """Whether there is something to decide before the kernel runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checked", bool(self.over) or self.every != 1)


@dataclass(frozen=True)
class Program:
    """A graph, its plan, a step for each op number, and the numbers of an iteration's values.

    `uses` are the readers of each blob. `watched` are those of each watched family. `constants` are
    the blobs that have one value in all iterations. `old` has for each state that is read late the
    number of the value that is read, and how many iterations it is older than the newest.
    `versions` has by op, and shared state that it reads, the number of the version that it reads.
    """

    graph: Graph
    plan: Plan
    steps: tuple[Step, ...]
    blobs: Mapping[str, int]
    uses: tuple[int, ...]
    watched: tuple[int, ...]
    constants: tuple[str, ...]
    old: Mapping[str, tuple[int, int]]
    versions: Mapping[tuple[str, str], int]


def compile_program(
    lowered: Lowered,
    sources: Mapping[str, Kernel] | None = None,
    *,
    fused: Callable[[Op], Kernel] | None = None,
) -> Program:
    """Decide for every op of a lowered graph what its execution does.

    `sources` are kernels by op name, for ops whose kind has none of its own or that run by another
    in this run. `fused` makes the kernel of a fused op; without it their ops run one by one.
    """
    graph, plan = lowered.graph, compile_plan(lowered.graph)
    inner = Aliasing(lowered.unsegmented or graph)
    whole = lowered.unsegmented is None
    aliasing = inner if whole else Aliasing(graph, lowered.members, inner)
    kernels = {**(sources or {}), **lowered.kernels}
    for name, ops in lowered.members.items():
        segment = graph.ops[name]
        parts = [with_packed(op, inner.graph.blobs) for op in ops]
        kernels[name] = segment_kernel(parts, segment.inputs, segment.outputs, inner.overwritable)
    for op in graph.ops.values():
        packed = with_packed(op, graph.blobs)
        if packed is not op and op.name not in kernels:
            kernels[op.name] = _in_place_of(op, packed)
    compiler = _Compiler(graph, aliasing, kernels, fused)
    return Program(
        graph,
        plan,
        tuple(compiler.step(graph.ops[name]) for name in plan.ops),
        compiler.numbers,
        compiler.uses,
        tuple(aliasing.readers[family] for family in aliasing.watched),
        tuple(constants(graph)),
        compiler.old,
        compiler.versions,
    )


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        aliasing: Aliasing,
        kernels: Mapping[str, Kernel],
        fused: Callable[[Op], Kernel] | None,
    ) -> None:
        self.graph, self.aliasing, self.kernels, self.fused = graph, aliasing, kernels, fused
        self.numbers = {name: index for index, name in enumerate(graph.blobs)}
        self.carried: dict[str, list[str]] = {}
        """By blob the states whose next value it is."""
        for state in graph.states.values():
            if state.next != state.read:
                self.carried.setdefault(state.next, []).append(state.read)
        late = (
            (name, state.staleness)
            for name, state in graph.states.items()
            if state.staleness and not state.shared and state.next != name
        )
        self.old = {name: (len(graph.blobs) + index, age) for index, (name, age) in enumerate(late)}
        pairs = (
            (op.name, name)
            for name, state in graph.states.items()
            if state.shared
            for op in graph.consumers[name]
        )
        first = len(graph.blobs) + len(self.old)
        self.versions = {pair: first + index for index, pair in enumerate(pairs)}
        readers = Counter(chain.from_iterable(set(self._reads(op)) for op in graph.ops.values()))
        self.uses = tuple(readers[number] for number in range(first + len(self.versions)))
        self.kept = {self.numbers[name] for name in aliasing.kept}

    def _reads(self, op: Op) -> tuple[int, ...]:
        if op.kind == FETCH and op.inputs[0] in self.old:
            return (self.old[op.inputs[0]][0],)
        versions, numbers = self.versions, self.numbers
        return tuple(versions.get((op.name, name), numbers[name]) for name in op.inputs)

    def step(self, op: Op) -> Step:
        aliasing, reads = self.aliasing, self._reads(op)
        overwrites = aliasing.overwrites(op)
        # Whoever hands out a version of a shared state knows whether it may be written over.
        over = tuple(
            (position, aliasing.watched[aliasing.family[op.inputs[position]]])
            for position in overwrites
            if (op.name, op.inputs[position]) not in self.versions
        )
        released = [number for number in dict.fromkeys(reads) if number not in self.kept]
        families = {aliasing.family[name] for name in op.inputs}
        carries = [
            (position, read)
            for position, name in enumerate(op.outputs)
            for read in self.carried.get(name, ())
        ]
        return Step(
            self._kernel(op, overwrites=bool(overwrites)),
            reads,
            tuple(self._write(name) for name in op.outputs),
            tuple((position, self.numbers[read]) for position, read in carries),
            tuple(number for number in released if self.uses[number] == 1),
            tuple(number for number in released if self.uses[number] > 1),
            tuple(aliasing.watched[family] for family in families if family in aliasing.watched),
            over,
            op.every,
            op.phase,
            tuple(
                (self.numbers[read], self.old[read][0], self.old[read][1] + 1)
                for _, read in carries
                if read in self.old
            ),
        )

    def _kernel(self, op: Op, *, overwrites: bool) -> Kernel:
        kind = lookup(op)
        if kind.function is None or op.name in self.kernels:
            return self.kernels[op.name]
        if op.kind == FUSED and self.fused is not None:
            return self.fused(op)
        if overwrites or op.kind == FUSED:
            return kind.bind_overwrite(op)
        position = self.aliasing.overwritable(op)
        kernel = kind.bind(op) if position is None else aten.bind_over(op, position)
        specs = [spec_of(self.graph.blobs[name]) for name in op.inputs]
        if len(op.outputs) == 1 and results_of(op, specs).several:
            return lambda *tensors: kernel(*tensors)[0]
        return kernel

    def _write(self, name: str) -> int:
        needed = name != NOTHING and (self.graph.consumers[name] or name in self.aliasing.kept)
        return self.numbers[name] if needed else -1


def _in_place_of(op: Op, packed: Op) -> Kernel:
    """The kernel of an op whose filters are packed. Results without readers repeat the first
    one."""
    wanted = next(name for name in op.outputs if name != NOTHING)
    outputs = [wanted if name == NOTHING else name for name in op.outputs]
    return segment_kernel([packed], op.inputs, outputs, lambda _: None)
