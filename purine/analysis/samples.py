"""How the values of a part of a batch relate to those of the whole batch.

A batch may be cut into parts if every value of the whole can be had from the values of the parts.
A blob is one of these:

- `SAME`: it does not depend on the samples, so every part has it.
- `Samples`: it has the samples along one of its axes; the whole is the parts side by side.
- `SUM`, `MEAN`: the whole is the sum of the parts, or their mean by number of samples.
- `EVERY`, `ANY`: a condition that holds for the whole if it does in every part, or in any.
- `MIXED`: it comes from an op that mixes samples, and cannot be had from parts at all.

Common or slow ops have rules (`sample_rules`). Every other op is tried out here: its kernel runs on
random samples, on two parts and on the whole, and the results are compared. This finds an op that
mixes samples (a softmax over the batch, say) whatever it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import torch
from torch import Tensor

from purine.graph import Blob, Location, Op
from purine.registry.aten import dtype_of
from purine.registry.lookup import lookup

__all__ = ["ANY", "EVERY", "MEAN", "MIXED", "SAME", "SUM", "Relation", "Samples", "try_out"]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples lie along `axis`, whose extent is `outer * samples * inner`.

    With `numbers`, the values are the indices of the samples, counted from 0 in every part.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    numbers: bool = False

    def sized(self, shape: Sequence[int], samples: int) -> list[int]:
        """The shape of such a blob with another number of samples."""
        extent = self.outer * samples * self.inner
        return [extent if axis == self.axis else size for axis, size in enumerate(shape)]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts side by side."""
        split = []
        for part in parts:
            samples = part.shape[self.axis] // (self.outer * self.inner)
            split.append(torch.unflatten(part, self.axis, (self.outer, samples, self.inner)))
        return torch.cat(split, self.axis + 1).flatten(self.axis, self.axis + 2)


_Reduced = Enum("_Reduced", "SAME SUM MEAN EVERY ANY MIXED")
SAME, SUM, MEAN = _Reduced.SAME, _Reduced.SUM, _Reduced.MEAN
EVERY, ANY, MIXED = _Reduced.EVERY, _Reduced.ANY, _Reduced.MIXED
Relation: TypeAlias = Samples | _Reduced

_PARTS = (2, 3)
_WHOLE = sum(_PARTS)
_SHARES = tuple(size / _WHOLE for size in _PARTS)
# Labels that modules commonly leave out of a loss: trials have to meet them.
_MARKS = (-100, -1, 255)
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex128: 1e-9}
_LOOSE = 3e-2


def try_out(
    op: Op, inputs: Sequence[Blob], given: Sequence[Relation], results: int
) -> tuple[Relation, ...] | None:
    """How an op's results relate to those of the whole batch, by running its kernel.

    None where they do not: the op mixes samples, or it cannot be run with other batch sizes.
    """
    local = replace(op, location=Location())
    known: list[Relation] | None = None
    whole = any(not dtype_of(blob.dtype).is_floating_point for blob in inputs)
    marks = dict.fromkeys([*_MARKS, *(v for v in op.attributes.values() if type(v) is int)])
    for mark in (None, None, *marks) if whole else (None,):
        seen = _tried(local, inputs, given, mark)
        if seen is None:
            continue  # the kernel does not take these values
        if len(seen) != results or None in seen:
            return None
        agreed = seen if known is None else list(map(_agreed, known, seen))
        known = [relation for relation in agreed if relation is not None]
        if len(known) < len(agreed):
            return None
    return None if known is None else tuple(known)


def _agreed(one: Relation | None, other: Relation | None) -> Relation | None:
    """The relation of both trials. A value may be the same in all parts by chance in one trial."""
    if one is SAME and other in (SUM, MEAN):
        return other
    if other is SAME and one in (SUM, MEAN):
        return one
    return one if one == other else None


def _tried(
    op: Op, inputs: Sequence[Blob], given: Sequence[Relation], mark: int | None
) -> list[Relation | None] | None:
    kernel = lookup(op).bind(op)
    for precise in (True, False):
        draw = _Draw(mark, precise=precise)
        pairs = [draw.parts(blob, relation) for blob, relation in zip(inputs, given, strict=True)]
        try:
            with torch.no_grad():
                results = [kernel(*values) for values in zip(*pairs, strict=True)]
        except Exception:
            continue
        *parts, whole = ([item] if isinstance(item, Tensor) else list(item) for item in results)
        if any(len(part) != len(whole) for part in parts):
            return []  # as many results as there are samples
        return [_relation(*each) for each in zip(*parts, whole, strict=True)]
    return None


class _Draw:
    """Random values for the inputs of an op: for each part of a batch, and for the whole."""

    def __init__(self, mark: int | None, *, precise: bool) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.mark = mark
        self.precise = precise

    def parts(self, blob: Blob, relation: Relation) -> list[Tensor]:
        shape = blob.sizes
        if relation is SAME:
            return [self.value(shape, blob.dtype)] * (len(_PARTS) + 1)
        if isinstance(relation, Samples):
            shapes = [relation.sized(shape, size) for size in _PARTS]
            if relation.numbers:
                return [_numbers(relation, shape, size) for size in (*_PARTS, _WHOLE)]
            parts = [self.value(shape, blob.dtype) for shape in shapes]
            if self.mark is not None and not _is_real(parts[0]) and parts[0].numel():
                parts[0].view(-1)[0] = self.mark  # in one part only, so that parts differ
            return [*parts, relation.joined(parts)]
        parts = [self.value(shape, blob.dtype) for _ in _PARTS]
        return [*parts, _total(parts, relation)]

    def value(self, shape: Sequence[int], name: str) -> Tensor:
        dtype = dtype_of(name)
        if dtype.is_floating_point:
            # Between 0 and 1, so that logarithms, roots and probabilities are all in order.
            drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64) * 0.6 + 0.2
            return drawn if self.precise and dtype is torch.float32 else drawn.to(dtype)
        if dtype.is_complex:
            return torch.complex(*(self.value(shape, "float64") for _ in range(2))).to(dtype)
        if dtype is torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        return torch.randint(2, tuple(shape), generator=self.generator).to(dtype)


def _numbers(relation: Samples, shape: Sequence[int], size: int) -> Tensor:
    counted = torch.arange(size)
    after = len(shape) - relation.axis - 1
    return counted.reshape(-1, *(1,) * after).expand(relation.sized(shape, size)).contiguous()


def _total(parts: Sequence[Tensor], relation: Relation) -> Tensor:
    """What the whole batch has where parts have partial sums or means."""
    shares = _SHARES if relation is MEAN else (1,) * len(parts)
    return sum((part * share for part, share in zip(parts, shares, strict=True)), parts[0] * 0)


def _relation(*values: Tensor | None) -> Relation | None:
    """How the last value, that of the whole batch, relates to the values of its parts."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return None if present else SAME
    *parts, whole = present
    if parts[0].shape != whole.shape:
        return next(_sides(parts, whole), None)
    if all(_equal(part, whole) for part in parts):
        return SAME
    if whole.is_floating_point() and _equal(_total(parts, MEAN), whole):
        return MEAN
    if whole.dtype is not torch.bool and _equal(_total(parts, SUM), whole):
        return SUM
    return None


def _sides(parts: Sequence[Tensor], whole: Tensor) -> Iterator[Samples]:
    """The ways in which the whole is its parts side by side."""
    if any(part.dim() != whole.dim() for part in parts):
        return
    changing = [a for a, size in enumerate(whole.shape) if parts[0].shape[a] != size]
    if len(changing) != 1:
        return
    (axis,) = changing
    each, rest = divmod(whole.shape[axis], _WHOLE)
    if rest or any(part.shape[axis] != each * n for part, n in zip(parts, _PARTS, strict=True)):
        return
    for outer in range(1, each + 1):
        if each % outer == 0:
            samples = Samples(axis, outer, each // outer)
            if _equal(samples.joined(parts), whole):
                yield samples
    if each == 1 and not whole.is_floating_point():
        numbers = Samples(axis, numbers=True)
        every = zip((*parts, whole), (*_PARTS, _WHOLE), strict=True)
        if all(part.equal(_numbers(numbers, part.shape, n).to(part.dtype)) for part, n in every):
            yield numbers


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not _is_real(one):
        return bool(one.eq(other).all())
    tolerance = _TOLERANCE.get(other.dtype, _LOOSE)
    one = one.to(other.dtype)
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))


def _is_real(value: Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())
