"""`update`: registers the formula of a solver as a kind, with the variants derived from it.

On a CPU, torch's fused kernels update a parameter in one pass over memory. They walk the bytes of
all tensors side by side, so they are used only where the tensors are dense, of one memory layout
and of one dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from purine.graph import Attribute
from purine.kinds.update._arithmetic import EACH, IN_PLACE, PURE, Arithmetic, TensorList, Term
from purine.registry.facts import Facts, Role
from purine.registry.kind import Kernel, Results, Variants, kind

__all__ = ["Step", "update"]

Formula: TypeAlias = Callable[..., Any]
"""A function of a `Step`, of the slots, of the iteration if it is needed, and of attributes."""
Fused: TypeAlias = Callable[..., bool]
"""Updates parameters in place by torch's fused kernel, given lists of weights, gradients and each
slot, then by name `lr` times `lr_mult`, other scalars, and all other attributes. It returns False
where the kernel cannot do it."""

_FUSED_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Step:
    """What every formula begins with; `lr` is the rate of this parameter."""

    ops: Arithmetic
    weight: Tensor
    gradient: Tensor
    lr: Tensor
    weight_decay: float

    @property
    def terms(self) -> list[Term]:
        """The gradient in the dtype of the weight, and that of the weight decay."""
        terms = [Term(self.gradient.to(self.weight.dtype))]
        return [*terms, Term(self.weight, self.weight_decay)] if self.weight_decay else terms

    @property
    def rate(self) -> Tensor:
        return self.ops.scalar(self.lr, self.weight)

    def descend(self, terms: Sequence[Term]) -> Tensor:
        """The next weight: `weight - rate * total(terms)`."""
        return self.ops.descend(self.weight, terms, self.rate)


def update(
    *, slots: int, fused: Fused | None = None, many: bool = False, elementwise: bool = True
) -> Callable[[Formula], Kernel]:
    """Register the kind of a formula: its inputs are the weight, the gradient, slots and scalars.

    `slots` is the number of states per parameter. All kinds have attributes `weight_decay` and
    `lr_mult`. The in-place variant writes over the weight and the slots, and uses `fused` where it
    can. `many` lets one call update several parameters. `elementwise` updates may be divided among
    devices.
    """

    def declare(formula: Formula) -> Kernel:
        parameters, tensors = _parameters(formula, slots), 2 + slots
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        names = [p.name for p in parameters[tensors:]]
        solver = _Solver(formula, tensors, (0, *range(2, tensors)), fused, defaults, names)

        @wraps(formula)
        def pure(*inputs: Tensor, **settings: Attribute) -> Results:
            results: Results = solver.run(PURE, inputs, settings)
            return results

        vars(pure)["__signature__"] = inspect.Signature(parameters)
        common = {"weight_decay": "float", "lr_mult": "float"}
        pure.__annotations__ = {**formula.__annotations__, **common}
        several = (solver.update_all, solver.each) if many else ()
        variants = Variants(solver.in_place, solver.over, *several)
        role = Role.ELEMENTWISE_UPDATE if elementwise else None
        return kind(variants=variants, facts=Facts(role=role))(pure)

    return declare


@dataclass(frozen=True, slots=True)
class _Solver:
    """A formula and the variants that are derived from it.

    The first `tensors` inputs are tensors like the weight, those `over` are written over, and
    `names` are those of the others: the rate and the number of the iteration.
    """

    formula: Formula
    tensors: int
    over: tuple[int, ...]
    fused: Fused | None
    defaults: Mapping[str, Any]
    names: Sequence[str]

    def run(self, ops: Arithmetic, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Any:
        given = {"weight_decay": 0.0, "lr_mult": 1.0, **settings}
        decay, mult, lr = given.pop("weight_decay"), given.pop("lr_mult"), inputs[self.tensors]
        step = Step(ops, inputs[0], inputs[1], lr if mult == 1.0 else lr * mult, decay)
        return self.formula(step, *inputs[2 : self.tensors], *inputs[self.tensors + 1 :], **given)

    def run_fused(
        self,
        lists: Sequence[Sequence[Tensor]],
        scalars: Sequence[Tensor],
        settings: Mapping[str, Attribute],
    ) -> bool:
        """Update by torch's fused kernel, if it can."""
        if self.fused is None or not all(map(_fusable, zip(*lists, strict=True))):
            return False
        given = {**self.defaults, **settings, **dict(zip(self.names, scalars, strict=False))}
        given["lr"] = given["lr"].item() * given.pop("lr_mult")
        return self.fused(*map(_in_order, lists), **given)

    def in_place(self, *inputs: Tensor, **settings: Attribute) -> Results:
        tensors = self.tensors
        if self.run_fused([[tensor] for tensor in inputs[:tensors]], inputs[tensors:], settings):
            return tuple(inputs[k] for k in self.over) if tensors > 2 else inputs[0]
        results: Results = self.run(IN_PLACE, inputs, settings)
        return results

    def update_all(
        self, *columns: Sequence[Tensor], **settings: Attribute
    ) -> list[Sequence[Tensor]]:
        """Update several parameters in place, in one fused call if they share their scalars."""
        tensors, scalars = columns[: self.tensors], columns[self.tensors :]
        same = all(value is column[0] for column in scalars for value in column)
        if not (same and self.run_fused(tensors, [column[0] for column in scalars], settings)):
            for row in zip(*columns, strict=True):
                self.in_place(*row, **settings)
        return [columns[k] for k in self.over]

    def each(self, *columns: Sequence[Tensor], **settings: Attribute) -> Sequence[Sequence[Tensor]]:
        """The next values of several parameters, by calls that take lists of tensors."""
        lists = (TensorList(list(column)) for column in columns[: self.tensors])
        scalars = (column[0] for column in columns[self.tensors :])
        results = self.run(EACH, [*lists, *scalars], settings)
        return [result.tensors for result in (results if self.tensors > 2 else (results,))]


def _parameters(formula: Formula, slots: int) -> list[inspect.Parameter]:
    """The inputs and attributes of a formula's kind."""
    _, *own = inspect.signature(formula).parameters.values()
    positional = [p for p in own if p.kind is not p.KEYWORD_ONLY]
    return [
        *(_parameter("weight"), _parameter("gradient"), *positional[:slots]),
        *(_parameter("lr"), *positional[slots:], *own[len(positional) :]),
        *(_parameter("weight_decay", 0.0), _parameter("lr_mult", 1.0)),
    ]


def _parameter(name: str, default: float | None = None) -> inspect.Parameter:
    """An input of a kind, or an attribute if it has a default."""
    if default is None:
        return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _fusable(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    if first.dtype not in _FUSED_DTYPES or first.device.type != "cpu":
        return False
    plain = first.is_contiguous()
    images = torch.channels_last
    if not plain and not (first.dim() == 4 and first.is_contiguous(memory_format=images)):
        return False
    return all(
        tensor.dtype == first.dtype
        and (tensor.is_contiguous() if plain else tensor.stride() == first.stride())
        for tensor in tensors[1:]
    )


def _in_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views whose axes are in the order of memory: fused kernels are slow on any other."""
    return [item if item.is_contiguous() else item.permute(0, 2, 3, 1) for item in tensors]
