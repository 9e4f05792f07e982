"""Predictions of a trained net for samples: classes, and which classes it confuses."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from purine.arguments import checked
from purine.data.source import Indices, NumpyArray
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, Op
from purine.job.folder import RunFolder
from purine.job.measuring import measuring_run

__all__ = ["Confusion", "Predictions", "confusion", "infer", "scores_op"]

_MOST_CLASSES = 4096  # in a table of confusions
_SCORED = ("Accuracy", "SoftmaxLoss", "aten.cross_entropy_loss")


@dataclass(frozen=True, slots=True)
class Predictions:
    """The `top` likeliest classes of each sample, the likeliest first, and their probabilities.

    Both arrays are [samples, top], or [samples, ..., top] where a net has several answers for each.
    """

    iteration: int
    data: str
    classes: Indices
    probabilities: NumpyArray

    def as_csv(self) -> str:
        """A line for each sample: its index, then class and probability, the likeliest first."""
        if self.classes.ndim != 2:
            what = "the net has several answers for a sample"
            expected = "one answer for a sample, for a table with a line for each"
            found, remedy = f"{list(self.classes.shape[1:-1])} answers", "write --out FILE.npz"
            raise ConfigError(what, expected, found, remedy)
        ranks = range(1, self.classes.shape[1] + 1)
        suffixes = ["" if rank == 1 else f"_{rank}" for rank in ranks]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["index", *(f"{n}{s}" for s in suffixes for n in ("class", "probability"))])
        for index, (classes, shares) in enumerate(
            zip(self.classes.tolist(), self.probabilities.tolist(), strict=True)
        ):
            pairs = zip(classes, shares, strict=True)
            table.writerow([index, *(cell for c, p in pairs for cell in (c, f"{p:.6g}"))])
        return text.getvalue()

    def as_npz(self) -> bytes:
        """Arrays `index`, `classes` and `probabilities` in numpy's format."""
        data = io.BytesIO()
        index = np.arange(len(self.classes))
        np.savez(data, index=index, classes=self.classes, probabilities=self.probabilities)
        return data.getvalue()


@dataclass(frozen=True, slots=True)
class Confusion:
    """`counts[a, b]` samples of class a were predicted as class b; `left_out` had no class."""

    iteration: int
    data: str
    counts: Indices
    left_out: int

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / max(self.samples, 1)

    def of_class(self, number: int) -> tuple[int, float | None, float | None]:
        """The number of samples of a class, its recall and its precision."""
        right, own = int(self.counts[number, number]), int(self.counts[number].sum())
        taken = int(self.counts[:, number].sum())
        return own, right / own if own else None, right / taken if taken else None

    def worst(self, most: int) -> list[tuple[int, int, int]]:
        """The pairs (class, predicted class, samples) that were confused most often."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [(int(a), int(b), int(wrong[a, b])) for a, b in pairs if wrong[a, b]]


@checked
def infer(
    folder: RunFolder, *, data: str | None = None, iteration: int | None = None, top: int = 1
) -> Predictions:
    """The predictions of a run for the samples of its data or of `data`, in their order.

    Of data with a test part, these are the samples of that part.
    """
    net = folder.read_test_net() or folder.read_net()
    op = scores_op(net)
    classes = _classes_of(net, op)
    if not 1 <= top <= classes:
        what, expected = f"the {top} likeliest classes are asked for", f"1 to {classes}"
        raise ConfigError(what, expected, str(top), "change --top")
    opened = measuring_run(
        folder, data=data, iteration=iteration, outputs=lambda _: op.inputs[:1], any_part=True
    )
    parts = []
    with opened as measuring:
        for outputs in measuring.run.predictions(measuring.graph):
            scores = _scores(outputs, op)
            shares = scores if _are_probabilities(net, op) else scores.softmax(-1)
            best = shares.topk(top, dim=-1)
            parts.append((best.indices.numpy(), best.values.numpy()))
    classes_of, shares_of = (np.concatenate(some) for some in zip(*parts, strict=True))
    return Predictions(measuring.iteration, measuring.spec, classes_of, shares_of)


@checked
def confusion(
    folder: RunFolder, *, data: str | None = None, iteration: int | None = None
) -> Confusion:
    """The confusion matrix of a run's net on the test samples."""
    net = folder.read_test_net() or folder.read_net()
    op = scores_op(net)
    classes = _classes_of(net, op)
    if classes > _MOST_CLASSES:
        what, expected = "a table of confusions is too large", f"at most {_MOST_CLASSES} classes"
        remedy = "leave --confusion out, or count the predictions of purine infer"
        raise ConfigError(what, expected, str(classes), remedy)
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    left_out = 0
    opened = measuring_run(folder, data=data, iteration=iteration, outputs=lambda _: op.inputs[:2])
    with opened as measuring:
        for scores, labels in _pairs(measuring.run.predictions(measuring.graph), op):
            known = (labels >= 0) & (labels < classes)
            known &= labels != op.attributes.get("ignore_label", -1)
            left_out += int((~known).sum())
            index = labels[known] * classes + scores.argmax(-1)[known]
            counts += torch.bincount(index, minlength=classes * classes)
    table = counts.reshape(classes, classes).numpy()
    return Confusion(measuring.iteration, measuring.spec, table, left_out)


def _pairs(batches: Iterator[Mapping[str, Tensor]], op: Op) -> Iterator[tuple[Tensor, Tensor]]:
    """The scores [samples, classes] and the labels [samples] of batches."""
    for outputs in batches:
        scores = _scores(outputs, op)
        labels = outputs[op.inputs[1]].cpu().long().reshape(-1)
        yield scores.reshape(-1, scores.shape[-1]), labels


def _scores(outputs: Mapping[str, Tensor], op: Op) -> Tensor:
    """The scores of a batch, those of the classes along the last axis."""
    return outputs[op.inputs[0]].movedim(_axis(op), -1).float().cpu()


def scores_op(net: Graph) -> Op:
    """The op that compares class scores, its first input, with labels, its second.

    An accuracy is preferred to a loss, and a later op to an earlier one.
    """
    scored = [op for kind in _SCORED for op in reversed(list(net.ops.values())) if op.kind == kind]
    if not scored:
        losses = sorted({op.kind for op in net.ops.values() if op.outputs[:1] == net.outputs[:1]})
        what, expected = "this net predicts no classes", f"an op of kind {' or '.join(_SCORED)}"
        remedy = "run the net in Python: pu.compute(pu.inference(net, [...]), ...)"
        raise GraphError(what, expected, f"outputs of {', '.join(losses) or 'no op'}", remedy)
    return scored[0]


def _axis(op: Op) -> int:
    return op.whole("axis", 1)


def _classes_of(net: Graph, op: Op) -> int:
    shape = net.blobs[op.inputs[0]].shape
    assert shape is not None, "the net of a run is complete"
    return shape[_axis(op)]


def _are_probabilities(net: Graph, op: Op) -> bool:
    """Whether the scores come from a softmax already."""
    producer = net.producers.get(op.inputs[0])
    return producer is not None and producer.kind in ("Softmax", "aten._softmax")
