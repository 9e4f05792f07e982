"""Three ways to compute the formula of a solver: pure, in place, and on lists of tensors.

A formula calls the methods of an `Arithmetic` instead of torch, so it is written once. `PURE` makes
new tensors. `IN_PLACE` writes each result over the argument that the method names. `EACH` is pure
and takes `TensorList`s; a compiler turns its `_foreach` calls into a few kernels. The three agree
to rounding, because torch's in-place operations of two steps round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["EACH", "IN_PLACE", "PURE", "Arithmetic", "TensorList", "Term"]


class Term(NamedTuple):
    """One summand of a linear combination: `factor * value`, times `rate` where there is one."""

    value: Tensor
    factor: float = 1.0
    rate: Tensor | None = None


class Arithmetic:
    """The operations that formulas consist of, on tensors or what has a tensor's operators.

    "Over x" says which argument the in-place variant overwrites.
    """

    def scalar(self, value: Tensor, like: Tensor) -> Tensor:
        """A float64 scalar as a factor of `like`: float64 where that keeps the dtype of `like`."""
        return value if like.dim() else value.to(like.dtype)

    def scaled(self, value: Tensor, rate: Tensor) -> Term:
        """`rate * value` as a summand."""
        return Term(rate * value)

    def total(self, terms: Sequence[Term]) -> Tensor:
        """The sum of the terms, of which the first has no factor."""
        value = terms[0].value
        for term in terms[1:]:
            value = value + term.factor * term.value
        return value

    def accumulate(
        self, velocity: Tensor, momentum: float, terms: Sequence[Term], rate: Tensor | None = None
    ) -> Tensor:
        """`momentum * velocity + rate * total(terms)`, over velocity."""
        total = self.total(terms)
        return momentum * velocity + (total if rate is None else rate * total)

    def descend(self, weight: Tensor, terms: Sequence[Term], rate: Tensor | None = None) -> Tensor:
        """`weight - rate * total(terms)`, over weight."""
        total = self.total(terms)
        return weight - (total if rate is None else rate * total)

    def shrink(self, weight: Tensor, rate: Tensor, decay: float) -> Tensor:
        """`weight - rate * decay * weight`, over weight.

        Never as a factor `1 - rate * decay`, which float32 rounds to a few digits of the decay.
        """
        return weight - self.scalar(rate * decay, weight) * weight

    def mean(self, mean: Tensor, value: Tensor, beta: float) -> Tensor:
        """`beta * mean + (1 - beta) * value`, over mean."""
        return beta * mean + (1.0 - beta) * value

    def mean_square(self, mean: Tensor, value: Tensor, beta: float) -> Tensor:
        """`beta * mean + (1 - beta) * value²`, over mean."""
        return beta * mean + (1.0 - beta) * value * value

    def add_square(self, total: Tensor, value: Tensor) -> Tensor:
        """`total + value²`, over total."""
        return total + value * value

    def root(self, value: Tensor, *, eps: float = 0.0) -> Tensor:
        """The square root of `value + eps`, always a new tensor."""
        return (value + eps).sqrt() if eps else value.sqrt()

    def add(self, value: Tensor, number: float) -> Tensor:
        """`value + number`, over value."""
        return value + number

    def multiply(self, value: Tensor, factor: Tensor) -> Tensor:
        """`value * factor`, over value."""
        return value * factor

    def divide(self, value: Tensor, divisor: Tensor) -> Tensor:
        """`value / divisor`, over divisor."""
        return value / divisor


class _InPlace(Arithmetic):
    def scaled(self, value: Tensor, rate: Tensor) -> Term:
        return Term(value, rate=rate)  # multiplied where it is added, without a tensor of its own

    def total(self, terms: Sequence[Term]) -> Tensor:
        value = terms[0].value
        for term in terms[1:]:
            value = value.add(term.value, alpha=term.factor)
        return value

    def accumulate(
        self, velocity: Tensor, momentum: float, terms: Sequence[Term], rate: Tensor | None = None
    ) -> Tensor:
        velocity.mul_(momentum)
        for term in terms:
            _add_term(velocity, term, rate, 1.0)
        return velocity

    def descend(self, weight: Tensor, terms: Sequence[Term], rate: Tensor | None = None) -> Tensor:
        # The term of the weight itself comes first, while the weight still has its old value.
        for term in sorted(terms, key=lambda term: term.value is not weight):
            _add_term(weight, term, rate, -1.0)
        return weight

    def shrink(self, weight: Tensor, rate: Tensor, decay: float) -> Tensor:
        return weight.addcmul_(weight, self.scalar(rate, weight), value=-decay)

    def mean(self, mean: Tensor, value: Tensor, beta: float) -> Tensor:
        return mean.lerp_(value, 1.0 - beta)

    def mean_square(self, mean: Tensor, value: Tensor, beta: float) -> Tensor:
        return mean.mul_(beta).addcmul_(value, value, value=1.0 - beta)

    def add_square(self, total: Tensor, value: Tensor) -> Tensor:
        return total.addcmul_(value, value)

    def root(self, value: Tensor, *, eps: float = 0.0) -> Tensor:
        return value.add(eps).sqrt_() if eps else value.sqrt()

    def add(self, value: Tensor, number: float) -> Tensor:
        return value.add_(number)

    def multiply(self, value: Tensor, factor: Tensor) -> Tensor:
        return value.mul_(factor)

    def divide(self, value: Tensor, divisor: Tensor) -> Tensor:
        return torch.div(value, divisor, out=divisor)


def _add_term(target: Tensor, term: Term, rate: Tensor | None, sign: float) -> None:
    rate = term.rate if rate is None else rate
    if rate is None:
        target.add_(term.value, alpha=sign * term.factor)
    else:
        target.addcmul_(term.value, rate, value=sign * term.factor)


class _Each(Arithmetic):
    def scalar(self, value: Tensor, like: Tensor) -> Tensor:
        return value.to(like.dtype)

    def mean_square(self, mean: Tensor, value: Tensor, beta: float) -> Tensor:
        return self.mean(mean, value * value, beta)


@dataclass(frozen=True, slots=True)
class TensorList:
    """Tensors of one dtype, with the operators of a tensor applied to each."""

    tensors: tuple[Tensor, ...] | list[Tensor]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    def to(self, dtype: torch.dtype) -> TensorList:
        return TensorList([tensor.to(dtype) for tensor in self.tensors])

    def sqrt(self) -> TensorList:
        return TensorList(torch._foreach_sqrt(self.tensors))

    def _with(
        self, foreach: Callable[..., tuple[Tensor, ...]], other: TensorList | Tensor | float
    ) -> TensorList:
        values = other.tensors if isinstance(other, TensorList) else other
        return TensorList(foreach(self.tensors, values))

    def __add__(self, other: TensorList | float) -> TensorList:
        return self._with(torch._foreach_add, other)

    def __sub__(self, other: TensorList) -> TensorList:
        return self._with(torch._foreach_sub, other)

    def __mul__(self, other: TensorList | Tensor | float) -> TensorList:
        return self._with(torch._foreach_mul, other)

    def __rmul__(self, other: Tensor | float) -> TensorList:
        return self * other

    def __truediv__(self, other: TensorList) -> TensorList:
        return self._with(torch._foreach_div, other)


PURE = Arithmetic()
IN_PLACE = _InPlace()
EACH = _Each()
