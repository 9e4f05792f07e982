"""Batch norm that sees the samples of all replicas at once.

Every batch norm of a graph of replicas is cut in three: each replica computes the statistics of its
own samples, one device combines them, and each replica normalises its samples with the result. The
backward is cut alike. The combining device also computes the running statistics. A micro-batch of
one replica goes together with the same micro-batch of the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import purine.kinds.average  # noqa: F401  (registers the kinds)
from purine.analysis.infer import infer_op, spec_of
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph, Location, Op, Origin
from purine.graph.names import combined_of, origin_of
from purine.parallel._parts import BESIDE, Part, weighting

__all__ = ["synchronise"]

_LOWERED = "aten._native_batch_norm_legit_functional"
_BACKWARD = "aten.native_batch_norm_backward"
_PER_SAMPLE = ("BatchNormTest", "CaffeBatchNormTest", "aten._native_batch_norm_legit_no_training")


def synchronise(graph: Graph, parts: Sequence[Part]) -> Graph:
    """The graph of these replicas with batch norm over the samples of all."""
    return _Synchronised(graph, parts).graph()


class _Synchronised:
    """The graph while its batch norms are replaced, those of all replicas at a time."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.base, self.parts = graph, parts
        self.builder = Builder(graph)
        self.combined: dict[str, str] = {}
        """By a replica's running statistic, the one of all."""
        self.batch: dict[str, tuple[str, str]] = {}
        """By the mean that a replica saved, the mean and the variance of all."""
        self.homes: dict[str, Location] = {}
        """By running statistic, the device that makes the next one."""
        self.turns = itertools.count()
        self.first: dict[str, str] = {}
        """By an op that was cut, its first part."""

    def graph(self) -> Graph:
        for name in self.base.order:
            op = self.base.ops[name]
            if origin_of(op).replica != 0:
                continue
            rest = name.removeprefix(self.parts[0].name(""))
            if op.kind in (_LOWERED, "BatchNorm"):
                self._forward(rest, self._peers(op, rest))
            elif op.kind == _BACKWARD and op.inputs[5:] and op.inputs[5] in self.batch:
                self._backward(rest, self._peers(op, rest))
            else:
                _refuse(op)
        builder, combined = self.builder, self.combined
        for name, op in builder.ops.items():
            if not combined.keys().isdisjoint(op.inputs):
                inputs = tuple(combined.get(item, item) for item in op.inputs)
                builder.ops[name] = replace(op, inputs=inputs)
        builder.outputs = list(dict.fromkeys(combined.get(n, n) for n in builder.outputs))
        builder.control = {(before, self.first.get(b, b)) for before, b in builder.control}
        return builder.graph()

    def _peers(self, op: Op, rest: str) -> list[Op]:
        """The same batch norm in all replicas."""
        ops = [self.base.ops.get(part.name(rest)) for part in self.parts]
        peers = [peer for peer in ops if peer is not None and peer.kind == op.kind]
        if len(peers) == len(ops):
            return peers
        what = f"op {op.name!r} ({op.kind}) at {op.location} is not in all replicas"
        found = f"{len(peers)} of {len(ops)} replicas that have it"
        remedy = "make all steps from one net; recompute after replicate, or name the blocks"
        raise GraphError(what, "steps that differ only in their batch", found, remedy, op=op)

    def _forward(self, rest: str, peers: Sequence[Op]) -> None:
        builder, settings = self.builder, peers[0].attributes
        statistics: list[str] = []
        counts: list[Attribute] = []
        for op in peers:
            batch, _, *image = spec_of(builder.blobs[op.inputs[0]]).shape
            counts.append(math.prod((batch, *image)))
            self.first[op.name] = part = builder.fresh(f"{op.name}/statistics")
            names = [f"{part}/mean", f"{part}/variance"]
            own = replace(op, name=part, kind="BatchNormStatistics", attributes={})
            statistics += self._add(own, op.inputs[:1], names)
        running = [self.combined.get(name, name) for name in peers[0].inputs[3:]]
        owner = self._owner(running, peers)
        name = builder.fresh(combined_of(rest))
        names = [f"{name}/mean", f"{name}/variance"]
        for label, index in (("mean_next", -2), ("variance_next", -1)):
            parts = [op.outputs[index] for op in peers]
            names.append(self._next(f"{name}/{label}", parts, owner))
        combining = {"counts": tuple(counts), "momentum": settings.get("momentum", 0.1)}
        combine = Op(name, "CombineStatistics", (), (), combining, owner, BESIDE)
        mean, variance, *_ = self._add(combine, [*running, *statistics], names)
        for op in peers:
            if op.kind == _LOWERED:
                self.batch[op.outputs[1]] = mean, variance
                for saved in op.outputs[1:3]:
                    builder.blobs.pop(saved, None)
            self._replace(op, "BatchNormTest", mean, variance)

    def _replace(self, op: Op, kind: str, *statistics: str) -> None:
        """Put an op that reads statistics of all replicas in place of one that computes its own."""
        inputs, eps = (*op.inputs[:3], *statistics), {"eps": op.attributes.get("eps", 1e-5)}
        own = replace(op, kind=kind, inputs=inputs, outputs=op.outputs[:1], attributes=eps)
        self.builder.ops[op.name] = own

    def _backward(self, rest: str, peers: Sequence[Op]) -> None:
        """Sums by replica, their mean, and the gradients of the samples of each replica.

        A replica's gradients are those of the mean over its own samples, so its sums count with
        its share of the batch.
        """
        builder = self.builder
        mean, variance = self.batch[peers[0].inputs[5]]
        eps = {"eps": peers[0].attributes.get("eps", 1e-5)}
        wanted = peers[0].outputs[0] != NOTHING
        sums: list[str] = []
        for op in peers:
            part = op.name
            if wanted:
                self.first[op.name] = part = builder.fresh(f"{op.name}/sums")
            else:
                del builder.ops[op.name]
            names = [
                given or (f"{part}/{label}" if wanted else NOTHING)
                for given, label in zip(op.outputs[1:], ("weight", "bias"), strict=True)
            ]
            own = replace(op, name=part, kind="BatchNormSums", attributes=eps)
            sums += self._add(own, [*op.inputs[:2], mean, variance], names)
        if not wanted:
            return
        settings = {"groups": 2, **weighting(self.parts)}
        name, owner = builder.fresh(combined_of(rest)), builder.blobs[mean].location
        average = Op(name, "Average", (), (), settings, owner, BESIDE)
        totals = self._add(average, sums, [f"{name}/weight", f"{name}/bias"])
        for op in peers:
            self._replace(op, "BatchNormGradient", mean, variance, *totals)

    def _owner(self, running: Sequence[str], peers: Sequence[Op]) -> Location:
        """The device that combines statistics and keeps the running ones: replicas take turns."""
        if running[0] in self.homes:
            return self.homes[running[0]]
        owner = peers[next(self.turns) % len(peers)].location
        for name in running:
            if name in self.base.states:
                self.homes[name] = owner
                self.builder.blobs[name] = replace(self.builder.blobs[name], location=owner)
        return owner

    def _next(self, name: str, parts: Sequence[str], owner: Location) -> str:
        """The one blob that replaces the replicas' next running statistics."""
        builder = self.builder
        if not any(parts):
            return NOTHING
        for part in parts:
            builder.blobs.pop(part)
        readers = self.base.consumers[parts[0]]
        means = (op for op in readers if op.kind == "Average" and op.inputs == tuple(parts))
        mean = next(means, None)
        if mean is not None:
            name = mean.outputs[0]
            del builder.ops[mean.name]
            builder.blobs[name] = replace(builder.blobs[name], location=owner)
        self.combined |= dict.fromkeys(parts, name)
        self.homes[name] = owner
        return name

    def _add(self, op: Op, inputs: Sequence[str], outputs: Sequence[str]) -> Sequence[str]:
        """Add an op that reads and writes these blobs, and those of its results that are new."""
        origin = Origin(op.name, "reduce")
        op = replace(op, inputs=tuple(inputs), outputs=tuple(outputs), where=None, origin=origin)
        self.builder.add(op)
        specs = infer_op(op, [spec_of(self.builder.blobs[item]) for item in inputs])
        for output, spec in zip(outputs, specs, strict=True):
            if output != NOTHING and output not in self.builder.blobs:
                assert spec is not None
                self.builder.blob(output, spec.shape, spec.dtype, op.location)
        return outputs


def _refuse(op: Op) -> None:
    """Refuse batch norms that see a whole batch and are not supported here."""
    train = op.attributes.get("train", op.attributes.get("training", True))
    name = op.kind.lower().replace("_", "")
    if "batchnorm" in name and op.kind not in _PER_SAMPLE and train:
        what = f"op {op.name!r} ({op.kind}) at {op.location} cannot be synchronised"
        remedy = 'use BatchNorm with Scale and Bias in it, or batch_norm="replica"'
        raise GraphError(what, "batch norm of kind BatchNorm", op.kind, remedy, op=op)
