"""Where a net needs values of its whole batch: marked, so that any scheme can cut the batch.

`mark_batch` walks a net from its data to its losses and says for every blob how a part of the batch
relates to the whole (`samples`). Plain means over samples need no mark: gradients of parts are
averaged anyway. Marks are added behind sums over samples that are losses, outputs or next values of
states; in front of ops that are not linear in a sum or a mean, such as a square root; and in front
of ops that mix samples: a batch with such an op cannot be cut (`WholeBatch`).

Means over those labels that count (`ignore_index`, weights of classes) are one op in torch. They
become a numerator and a denominator, which depends on the labels alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import purine.kinds.batch_reduce  # noqa: F401  (registers the kinds)
from purine.analysis.sample_rules import is_batch_norm, relate
from purine.analysis.samples import MEAN, MIXED, SAME, SUM, Relation, Samples
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Op

__all__ = ["Batch", "batch_of_net", "mark_batch"]

_COUNTING = frozenset({"aten.cross_entropy_loss", "aten.nll_loss_nd"})
"""Torch's losses whose mean is over the labels that count, by their weights."""
_IGNORING = {
    "Accuracy": "valid",
    "InfogainLoss": "valid",
    "SigmoidCrossEntropyLoss": "batch",
    "SoftmaxLoss": "valid",
}
"""Our kinds that can leave labels out, with their default normalization."""
_COPIES = frozenset({"aten.alias", "aten.clone", "aten.detach", "aten.lift_fresh_copy"})
_MEAN_OF_TORCH = 1
_SUM_OF_TORCH = 2


def mark_batch(net: Graph, losses: Iterable[str]) -> Graph:
    """The net with ops where a value of the whole batch is needed; itself where there are none."""
    marking = _marking(net, losses)
    return net if marking is None else marking.graph()


@dataclass(frozen=True, slots=True)
class Batch:
    """What a net does with its batch: how a part of it relates to the whole, by blob.

    `reduced` are the blobs of which values of the whole batch are needed, `mixing` the ops that mix
    samples or count them.
    """

    relations: Mapping[str, Relation]
    reduced: tuple[str, ...]
    mixing: tuple[str, ...]


def batch_of_net(net: Graph, losses: Iterable[str]) -> Batch:
    """What a net does with its batch, op by op."""
    marking = _marking(net, losses)
    if marking is None:
        return Batch(dict.fromkeys(net.blobs, SAME), (), ())
    marked = marking.graph()
    reduced = (op.inputs[0] for op in marked.ops.values() if op.kind == "BatchReduce")
    mixing = (op.attributes["op"] for op in marked.ops.values() if op.kind == "WholeBatch")
    relations = marking.relations
    counting = (
        maker.name
        for blob, maker in net.producers.items()
        if isinstance(relation := relations.get(blob), Samples) and relation.numbers
    )
    return Batch(relations, tuple(reduced), tuple(dict.fromkeys([*map(str, mixing), *counting])))


def _marking(net: Graph, losses: Iterable[str]) -> _Marking | None:
    sources = {
        name: blob
        for name, blob in net.blobs.items()
        if name in net.inputs or (name in net.producers and net.producers[name].kind == "Data")
    }
    batch = next((blob.shape[0] for blob in sources.values() if blob.shape), None)
    return None if batch is None else _Marking(net, set(losses), sources, batch)


class _Marking:
    """One walk over a net; the new graph grows beside it."""

    def __init__(
        self, net: Graph, losses: set[str], sources: Mapping[str, Blob], batch: int
    ) -> None:
        self.net = net
        self.builder = Builder(net)
        self.reported = losses | set(net.outputs)
        self.carried = {
            state.next
            for state in net.states.values()
            if state.next in net.producers and not is_batch_norm(net.producers[state.next])
        }
        self.relations: dict[str, Relation] = {NOTHING: SAME, **dict.fromkeys(net.states, SAME)}
        for name, blob in sources.items():
            whole = not blob.shape or blob.shape[0] != batch
            self.relations[name] = SAME if whole else Samples(0)
        self.whole: dict[str, str] = {}
        """By a blob that is a sum or a mean of a part, that of the whole batch."""

    def graph(self) -> Graph:
        wanted = {*self.reported, *(state.next for state in self.net.states.values())}
        for op in self.net.leading_to(wanted, stop="Data"):
            for part in self._taken_apart(op):
                self._visit(part)
        if self.whole:
            self._find_shared()
        return self.builder.graph()

    def _visit(self, op: Op) -> None:
        op = self._reading_whole(op)
        if any(self.relations[name] is MIXED for name in op.inputs):
            self.builder.ops[op.name] = op
            self.relations.update(dict.fromkeys(op.outputs, MIXED))
            return
        related = relate(op, self.builder.blobs, self.relations)
        if related is None:
            partial = [name for name in op.inputs if self.relations[name] in (SUM, MEAN)]
            for name in dict.fromkeys(partial):
                self._reduce(name)
            if partial:
                op = self._reading_whole(op)
                related = relate(op, self.builder.blobs, self.relations)
        if related is None:
            self._refuse_cuts(op)
            return
        self.builder.ops[op.name] = op
        for name, relation in zip(op.outputs, related, strict=True):
            self.relations[name] = relation
            reported = name in self.reported and relation is SUM
            if reported or (name in self.carried and relation in (SUM, MEAN)):
                self._reduce(name, keep_name=True)

    def _reading_whole(self, op: Op) -> Op:
        inputs = tuple(self.whole.get(name, name) for name in op.inputs)
        return op if inputs == op.inputs else replace(op, inputs=inputs)

    def _reduce(self, name: str, *, keep_name: bool = False) -> None:
        """Add the value of the whole batch; under the blob's own name if others know it by that."""
        builder, relation = self.builder, self.relations[name]
        blob = builder.blobs[name]
        part, whole = name, builder.fresh(f"{name}/whole")
        if keep_name:
            part, whole = builder.fresh(f"{name}/part"), name
            maker = next(op for op in builder.ops.values() if name in op.outputs)
            builder.ops[maker.name] = maker.renamed({name: part})
            builder.add(replace(blob, name=part))
            self.relations[part] = relation
        else:
            builder.add(replace(blob, name=whole))
            self.whole[name] = whole
        operation = "sum" if relation is SUM else "mean"
        reduce = builder.fresh(f"{name}/reduce")
        settings: dict[str, Attribute] = {"operation": operation}
        builder.op(reduce, "BatchReduce", [part], [whole], settings, location=blob.location)
        self.relations[whole] = SAME
        self.whole.setdefault(whole, whole)

    def _refuse_cuts(self, op: Op) -> None:
        """Mark what an op reads that mixes samples."""
        builder = self.builder
        (name, *_) = (n for n in op.inputs if self.relations[n] is not SAME)
        blob = builder.blobs[name]
        marked = builder.fresh(f"{name}/batch")
        builder.add(replace(blob, name=marked))
        because = f"{op.kind} mixes the samples of a batch"
        settings: dict[str, Attribute] = {"op": op.name, "because": because, "line": op.where or ""}
        mark = Op(marked, "WholeBatch", (name,), (marked,), settings, op.location, where=op.where)
        builder.add(mark)
        builder.ops[op.name] = op.renamed({name: marked})
        self.relations[marked] = MIXED
        self.relations.update(dict.fromkeys(op.outputs, MIXED))

    def _find_shared(self) -> None:
        """Mark the reductions behind which nothing depends on single samples."""
        graph = self.builder.graph()
        for name, op in graph.ops.items():
            if op.kind == "BatchReduce":
                blobs = (blob for item in graph.behind([name]) for blob in graph.ops[item].outputs)
                if not any(isinstance(self.relations.get(blob), Samples) for blob in blobs):
                    shared = {**op.attributes, "shared": True}
                    self.builder.ops[name] = replace(op, attributes=shared)

    def _taken_apart(self, op: Op) -> list[Op]:
        """A mean over the labels that count as a sum, a count and their quotient."""
        label = self.builder.blobs[op.inputs[1]] if len(op.inputs) > 1 else None
        if label is None or not isinstance(self.relations.get(op.inputs[1]), Samples):
            return [op]
        ignored, settings = self._weighting(op, label)
        if not settings:
            return [op]
        builder = self.builder
        (loss,) = op.outputs
        blob = builder.blobs[loss]
        total, count = builder.fresh(f"{loss}/sum"), builder.fresh(f"{loss}/count")
        for name in (total, count):
            builder.blob(name, (), blob.dtype, op.location)
        weight = tuple(map(self._source, op.inputs[2:3])) if op.kind in _COUNTING else ()
        labels, label_ops = self._apart(op.inputs[1], count)

        def step(name: str, kind: str, inputs: Sequence[str], **settings: Attribute) -> Op:
            outputs = (loss,) if name == op.name else (name,)
            own = replace(op, name=name, kind=kind, inputs=tuple(inputs), outputs=outputs)
            return replace(own, attributes=settings)

        parts = [*label_ops, step(total, op.kind, op.inputs, **{**op.attributes, **settings})]
        counted, dtype = (labels, *weight), blob.dtype
        parts.append(step(count, "LabelCount", counted, ignore_label=ignored, dtype=dtype))
        divisor = count
        if op.kind not in _COUNTING:
            divisor = builder.blob(builder.fresh(f"{count}/least"), (), blob.dtype, op.location)
            parts.append(step(divisor, "aten.clamp_min", [count], min=1))
        parts.append(step(op.name, "aten.div.Tensor", [total, divisor]))
        del builder.ops[op.name]
        for part in parts:
            builder.ops[part.name] = part
        return parts

    def _apart(self, name: str, prefix: str) -> tuple[str, list[Op]]:
        """A second copy of a blob computed from data alone, and the ops that compute it.

        It is the blob itself, without ops, where it depends on more than data.
        """
        ops = self.net.leading_to([name], stop="Data")
        read = {name, *(item for op in ops for item in op.inputs)}
        if NOTHING in read or not read.isdisjoint(self.net.states):
            return name, []
        again = {item: f"{prefix}/{item}" for op in ops for item in op.outputs}
        for item, copied in again.items():
            self.builder.add(replace(self.builder.blobs[item], name=copied))
        copies = [replace(op.renamed(again), name=f"{prefix}/{op.name}") for op in ops]
        return again.get(name, name), copies

    def _source(self, name: str) -> str:
        """What a blob is a copy of: a state is there before anything is computed."""
        maker = self.net.producers.get(name)
        while maker is not None and maker.kind in _COPIES:
            name = maker.inputs[0]
            maker = self.net.producers.get(name)
        return name

    def _weighting(self, op: Op, label: Blob) -> tuple[Attribute, dict[str, Attribute]]:
        """The label that does not count, and what makes a sum of a loss; nothing for other ops."""
        if op.kind in _COUNTING:
            labels = not label.dtype.startswith(("float", "bfloat"))
            if labels and op.attributes.get("reduction", _MEAN_OF_TORCH) == _MEAN_OF_TORCH:
                return op.attributes.get("ignore_index", -100), {"reduction": _SUM_OF_TORCH}
        elif op.kind in _IGNORING:
            ignored = op.attributes.get("ignore_label")
            default = _IGNORING[op.kind]
            if ignored is not None and op.attributes.get("normalization", default) == "valid":
                return ignored, {"normalization": "none"}
        return None, {}
