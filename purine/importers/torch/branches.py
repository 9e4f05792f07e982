"""Branches of a forward whose outcome is known, or can be expected, without the values of tensors.

A trace follows one path. Where a module asks a tensor which way to go, the answer is

- known, if it compares a random number with a threshold outside of its range (see `draws`),
- expected, if it asks whether values are finite, or fails otherwise (`assert`, `if ...: raise`,
  the checks of `torch.distributions`). The path of good values is traced, and the condition is
  kept: where it does not hold, the loss of the imported net is not a number,
- refused otherwise, at the user's line.
"""

from __future__ import annotations

import ast
import linecache
import operator
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from purine.importers.torch.autograd import AutogradMode
from purine.importers.torch.draws import Draw, Drawn, compared, refuse_draw
from purine.importers.torch.lines import TORCH, code_at, user_line
from purine.importers.torch.tracing import AnyFunction

__all__ = ["Branches"]


@dataclass(frozen=True, slots=True)
class _Truth:
    """A tensor of booleans that are known, or only `expected`, to have one value."""

    value: bool
    expected: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    """A tensor of booleans that depend on random numbers."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A tensor of whole numbers that do not depend on data, by the greatest of them."""

    greatest: int


_Fact = Draw | _Truth | _Choice | _Lengths


@dataclass(frozen=True, slots=True)
class Expected:
    """A condition that a trace took to hold, the user's line that asked for it, and its code."""

    condition: Tensor
    where: str
    code: str


class Branches(AutogradMode):
    """Answers a module that asks for the value of a tensor; `expected` grows.

    `functions` take the place of functions of torch by name.
    """

    def __init__(self, functions: Mapping[str, AnyFunction]) -> None:
        super().__init__()
        self.functions = functions
        self.expected: list[Expected] = []
        # With the tensors themselves, so that no other tensor gets the id of one.
        self._facts: dict[int, tuple[Tensor, _Fact]] = {}

    def call(
        self, function: AnyFunction, args: tuple[object, ...], named: dict[str, object]
    ) -> object:
        name = getattr(function, "__name__", "")
        if name in _QUESTIONS and args and isinstance(args[0], Tensor):
            answer = self._answer(name, args[0])
            if answer is not None:
                return answer
        result: object = self.functions.get(name, function)(*args, **named)
        if _writes(name) or "out" in named:
            self._facts.clear()  # of all: views of one tensor change with it
        first = result[0] if name == "sort" and isinstance(result, tuple) else result
        if isinstance(first, Tensor):
            fact = self._learnt(name, args, named)
            if fact is not None:
                self._facts[id(first)] = first, fact
        return result

    def greatest(self, lengths: Tensor) -> int | None:
        """The greatest of some lengths, if they do not depend on data."""
        fact = self._fact(lengths)
        return fact.greatest if isinstance(fact, _Lengths) else None

    def _learnt(
        self, name: str, args: tuple[object, ...], named: Mapping[str, object]
    ) -> _Fact | None:
        """What is known of the result of a function."""
        if name in ("rand", "rand_like"):
            return Draw(0.0, 1.0)
        if name == "uniform_":
            low = args[1] if len(args) > 1 else named.get("from", 0.0)
            high = args[2] if len(args) > 2 else named.get("to", 1.0)
            assert isinstance(low, int | float)
            assert isinstance(high, int | float)
            return Draw(low, high)
        if name in _FINITE:
            return _Truth(_FINITE[name], expected=True)
        if name in ("as_tensor", "tensor") and _are_counts(args[0]):
            return _Lengths(max(args[0]))
        facts = [self._fact(value) for value in args[:2]]
        match facts:
            case [Draw() as draw, *_] if name in _COMPARISONS and len(args) == 2:
                value = compared(_COMPARISONS[name], draw, args[1])
                return _Choice() if value is None else _Truth(value, expected=False)
            case [_Truth() as truth] if name in _NEGATIONS:
                return _Truth(not truth.value, truth.expected)
            case [_Truth(a, e), _Truth(b, f)] if name in _JOINS:
                return _Truth(_JOINS[name](a, b), e or f)
            case [_Choice(), *_] if name in _NEGATIONS:
                return _Choice()
            case [_Lengths() as lengths, *_] if name in ("cpu", "sort", "to"):
                return lengths
            case [Draw() | _Truth() | _Choice() as fact, *_] if name in _KEEPS:
                return fact
        return None

    def _fact(self, value: object) -> _Fact | None:
        known = self._facts.get(id(value))
        if known is not None:
            return known[1]
        return _lengths_of(value) if type(value) is Tensor else None

    def _answer(self, name: str, asked: Tensor) -> object:
        """The answer to a question about a value, None where the value is needed."""
        if asked.numel() != 1:
            return None
        fact = self._fact(asked)
        if isinstance(fact, Draw) and name == "item":
            return Drawn(fact)
        if isinstance(fact, Draw | _Choice):
            refuse_draw()
        if fact is None and name in ("__bool__", "item"):
            wanted = _wanted()
            if wanted is not None and asked.dtype != torch.bool and name == "item":
                return Asked(self, asked)
            fact = None if wanted is None else _Truth(wanted, expected=True)
        if not isinstance(fact, _Truth):
            return None
        if fact.expected:
            condition = asked if fact.value else asked.logical_not()
            line = user_line() or ""
            self.expected.append(Expected(condition.reshape(()), line, code_at(line)))
        return fact.value

    def holds(self, comparison: Tensor) -> object:
        """The truth of a comparison that code would fail without."""
        return self._answer("__bool__", comparison)


class Asked:
    """A number of a tensor as Python sees it, in code that fails unless a comparison holds."""

    __slots__ = ("_branches", "_value")

    def __init__(self, branches: Branches, value: Tensor) -> None:
        self._branches = branches
        self._value = value

    def __hash__(self) -> int:
        raise TypeError("unhashable type: 'Asked'")

    def _holds(self, compare: AnyFunction, other: object) -> object:
        return self._branches.holds(compare(self._value, other))

    def __lt__(self, other: object) -> object:
        return self._holds(operator.lt, other)

    def __le__(self, other: object) -> object:
        return self._holds(operator.le, other)

    def __gt__(self, other: object) -> object:
        return self._holds(operator.gt, other)

    def __ge__(self, other: object) -> object:
        return self._holds(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        return self._holds(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._holds(operator.ne, other)


def _writes(name: str) -> bool:
    """Whether a function writes into a tensor that it is given."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name != "__invert__")
    return name.endswith("_")


def _lengths_of(value: Tensor) -> _Lengths | None:
    """The fact of a tensor of the module's own: unlike others of a trace it has values."""
    if value.dtype != torch.int64 or value.numel() == 0:
        return None
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return _Lengths(int(value.max()))


def _are_counts(values: object) -> TypeGuard[Sequence[int]]:
    return isinstance(values, list | tuple) and bool(values) and all(type(v) is int for v in values)


_QUESTIONS = frozenset({"__bool__", "__float__", "__int__", "is_nonzero", "item", "tolist"})
_COMPARISONS = {
    name: sign
    for sign, names in {"<": "lt le less less_equal", ">": "gt ge greater greater_equal"}.items()
    for name in (*names.split(), *(f"__{name}__" for name in names.split()))
}
_FINITE = {"isfinite": True, "isinf": False, "isnan": False, "isneginf": False, "isposinf": False}
_NEGATIONS = frozenset({"__invert__", "bitwise_not", "logical_not"})
_JOINS: Mapping[str, Callable[[bool, bool], bool]] = {
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), lambda a, b: a and b),
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), lambda a, b: a or b),
}
_FORMS = "__getitem__ cpu detach double flatten float reshape squeeze to unsqueeze view"
_KEEPS = frozenset((*_FORMS.split(), "all", "any", "bool", "max", "min"))


def _wanted() -> bool | None:
    """The answer without which the code that asks fails, None where it takes another path."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(_DISTRIBUTIONS) or frame.name.startswith("_check_"):
            return True  # what checks of arguments ask: torch._check_tensor_all is one
        if not frame.filename.startswith((_OURS, TORCH)):
            return _needed(frame.filename, frame.lineno or 0)
    return None


_OURS = os.path.dirname(os.path.dirname(__file__))
_DISTRIBUTIONS = os.path.join(TORCH, "distributions", "")


@cache
def _needed(file: str, line: int) -> bool | None:
    """The truth of all tests in a line of code without which it raises, None if they differ."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and _spans(node.test, line):
            return _truths(node.test, wanted=True)
        if isinstance(node, ast.If) and _spans(node.test, line) and not node.orelse:
            raises = isinstance(node.body[0], ast.Raise)
            return _truths(node.test, wanted=False) if raises else None
    return None


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _truths(test: ast.expr, *, wanted: bool) -> bool | None:
    """The truth that every part of a test must have for the whole to be as `wanted`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _truths(test.operand, wanted=not wanted)
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is not wanted:
            return None
        truths = {_truths(part, wanted=wanted) for part in test.values}
        return truths.pop() if len(truths) == 1 else None
    return wanted
