"""Which blobs may share memory, and which results may be written over an input.

Blobs that may share memory (an input and its views) form one *family*. A kernel may write over a
value only if no other blob of the family is read afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from purine.analysis.infer import families, size_in_bytes
from purine.graph import FETCH, Graph, Op
from purine.registry.aten import OVERWRITES
from purine.registry.lookup import lookup

__all__ = ["Aliasing", "constants"]


def constants(graph: Graph) -> list[str]:
    """Blobs that have the same value in all iterations: states that keep theirs, and inputs."""
    kept = [name for name, state in graph.states.items() if state.next == name and not state.shared]
    return kept + list(graph.inputs)


class Aliasing:
    """What is known of the memory of a graph's blobs.

    Where `graph` has segments, `members` are the ops of each, and `unsegmented` has the aliasing of
    the graph before they were formed.
    """

    def __init__(
        self,
        graph: Graph,
        members: Mapping[str, Sequence[Op]] | None = None,
        unsegmented: Aliasing | None = None,
    ) -> None:
        self.graph = graph
        self.members = members or {}
        if unsegmented is None:
            self.family: Mapping[str, str] = families(graph)
            self.overlapping = _overlapping(graph, self.family)
        else:
            self.family, self.overlapping = unsegmented.family, unsegmented.overlapping
        self.kept = {*constants(graph), *graph.outputs}
        """Blobs that no reader may release or write over."""
        overwriting = [op for op in graph.ops.values() if self.overwrites(op)]
        written = (op.inputs[index] for op in overwriting for index in self.overwrites(op))
        watched = dict.fromkeys(self.family[name] for name in written)
        self.watched = {name: number for number, name in enumerate(watched)}
        """Numbers of the families whose readers are counted while the graph runs."""
        self.readers: Counter[str] = Counter()
        """By family the ops that read it, and one more for each reason never to write over it."""
        for op in graph.ops.values():
            self.readers.update({self.family[name] for name in op.inputs})
        self.readers.update(self._pinned(overwriting))

    def _pinned(self, overwriting: Sequence[Op]) -> list[str]:
        """Families that must not be written over, once per reason."""
        pinned = [self.family[name] for name in self.kept]
        # The memory of an arrival is a slot that the sender writes again later on. Other hosts read
        # that of a post, and other workers that of a fetched state.
        others = (op for op in self.graph.ops.values() if op.kind in ("Arrival", "Post", FETCH))
        pinned += [self.family[name] for op in others for name in op.outputs]
        for op in overwriting:
            read = [self.family[name] for name in op.inputs]
            pinned += [family for family in set(read) if read.count(family) > 1]
        for state in self.graph.states.values():
            if state.next != state.read:
                # The next value lives on in the next iteration. Nobody may write over it in this
                # one, and in the next one only if no op of this one may still be reading it.
                if self.readers[self.family[state.next]] or state.next in self.kept:
                    pinned.append(self.family[state.read])
                pinned.append(self.family[state.next])
                # In an iteration without its update a state is its own next value.
                if self.graph.producers[state.next].every != 1:
                    pinned.append(self.family[state.read])
        return pinned

    def overwrites(self, op: Op) -> tuple[int, ...]:
        """The inputs that an op writes over if it is their last reader while the graph runs."""
        width = 0
        indices: tuple[int, ...] = ()
        for member in self.members.get(op.name, (op,)):
            indices += tuple(width + index for index in lookup(member).overwrites(member))
            width += len(member.inputs)
        return indices

    def overwritable(self, op: Op) -> int | None:
        """The input that an elementwise op may write its result over: it is the only reader."""
        graph = self.graph
        for index in OVERWRITES.get(op.kind, ()):
            if index >= len(op.inputs) or len(op.outputs) != 1:
                continue
            name = op.inputs[index]
            before, after = graph.blobs[name], graph.blobs[op.outputs[0]]
            if (
                (before.shape, before.dtype) == (after.shape, after.dtype)
                and self.readers[self.family[name]] == 1
                and op.inputs.count(name) == 1
                and name in graph.producers
                and name not in self.overlapping
            ):
                return index
        return None


def _overlapping(graph: Graph, family: Mapping[str, str]) -> set[str]:
    """Blobs whose elements may share memory with each other, as those of `expand` do."""
    overlapping: set[str] = set()
    for op in graph.in_order:
        for output in op.results:
            source = next((item for item in op.inputs if family[item] == family[output]), None)
            # Without one it is a new value, which a `Last` op may pass on.
            if family[output] == output or source is None:
                continue
            before, after = (size_in_bytes(graph.blobs[item]) for item in (source, output))
            if source in overlapping or before < after:
                overlapping.add(output)
    return overlapping
