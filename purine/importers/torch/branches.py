"""Branches of a forward whose outcome is known, or can be expected, without the values of tensors.

A trace follows one path. Where a module asks a tensor which way to go, the answer is

- known, if it compares a random number with a threshold outside of the range that is drawn from:
  with layer drop at 0, `random.random() < 0.0` is false whatever is drawn,
- expected, if it asks whether values are finite, or fails otherwise (`assert`, `if ...: raise`,
  the checks of `torch.distributions`). The path of good values is traced, and the condition is
  kept: where it does not hold, the loss of the imported net is not a number,
- refused otherwise, at the user's line.

Python and NumPy draw numbers, too. Those that follow a seed of the module's own are the same each
time, so they are constants.
"""

from __future__ import annotations

import ast
import linecache
import operator
import os
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import NoReturn, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from purine.importers.torch.autograd import AutogradMode
from purine.importers.torch.lines import TORCH, code_at, refusal, user_line
from purine.importers.torch.tracing import AnyFunction, Args, Named, current

__all__ = ["PYTHON_DRAWS", "Branches"]


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random numbers between two bounds, which are taken never to be drawn themselves.

    A number of 24 bits is 0 once in 16 million times; nobody's layer drop of 0 means that.
    """

    low: float
    high: float


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


_Fact = _Draw | _Truth | _Choice | _Lengths


class Branches(AutogradMode):
    """Answers a module that asks for the value of a tensor; `expected` grows.

    `functions` take the place of functions of torch by name.
    """

    def __init__(self, functions: Mapping[str, AnyFunction]) -> None:
        super().__init__()
        self.functions = functions
        self.expected: list[tuple[Tensor, str, str]] = []
        """Conditions that the trace took to hold, the user's lines that asked, and their code."""
        # With the tensors themselves, so that no other tensor gets the id of one.
        self._facts: dict[int, tuple[Tensor, _Fact]] = {}

    def call(self, function: AnyFunction, args: Args, named: Named) -> object:
        name = getattr(function, "__name__", "")
        if name in _QUESTIONS and args and isinstance(args[0], Tensor):
            answer = self.answer(name, args[0])
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

    def _learnt(self, name: str, args: Args, named: Named) -> _Fact | None:
        """What is known of the result of a function."""
        if name in ("rand", "rand_like"):
            return _Draw(0.0, 1.0)
        if name == "uniform_":
            low = args[1] if len(args) > 1 else named.get("from", 0.0)
            high = args[2] if len(args) > 2 else named.get("to", 1.0)
            assert isinstance(low, int | float)
            assert isinstance(high, int | float)
            return _Draw(low, high)
        if name in _FINITE:
            return _Truth(_FINITE[name], expected=True)
        if name in ("as_tensor", "tensor") and _are_counts(args[0]):
            return _Lengths(max(args[0]))
        match [self._fact(value) for value in args[:2]]:
            case [_Draw() as draw, *_] if name in _COMPARISONS and len(args) == 2:
                value = _compared(_COMPARISONS[name], draw, args[1])
                return _Choice() if value is None else _Truth(value, expected=False)
            case [_Truth() as truth] if name in _NEGATIONS:
                return _Truth(not truth.value, truth.expected)
            case [_Truth(a, e), _Truth(b, f)] if name in _JOINS:
                return _Truth(_JOINS[name](a, b), e or f)
            case [_Choice(), *_] if name in _NEGATIONS:
                return _Choice()
            case [_Lengths() as lengths, *_] if name in ("cpu", "sort", "to"):
                return lengths
            case [_Draw() | _Truth() | _Choice() as fact, *_] if name in _KEEPS:
                return fact
        return None

    def _fact(self, value: object) -> _Fact | None:
        known = self._facts.get(id(value))
        if known is not None:
            return known[1]
        return _lengths_of(value) if type(value) is Tensor else None

    def answer(self, name: str, asked: Tensor) -> object:
        """The answer to a question about a value, None where the value is needed."""
        if asked.numel() != 1:
            return None
        fact = self._fact(asked)
        if isinstance(fact, _Draw) and name == "item":
            return _Drawn(fact)
        if isinstance(fact, _Draw | _Choice):
            _refuse_draw()
        if fact is None and name in ("__bool__", "item"):
            wanted = _wanted()
            if wanted is not None and asked.dtype != torch.bool and name == "item":
                return _Asked(self, asked)
            fact = None if wanted is None else _Truth(wanted, expected=True)
        if not isinstance(fact, _Truth):
            return None
        if fact.expected:
            condition = asked if fact.value else asked.logical_not()
            line = user_line() or ""
            self.expected.append((condition.reshape(()), line, code_at(line)))
        return fact.value


def _comparison(compare: AnyFunction) -> AnyFunction:
    """A method of `_Asked`: the truth of a comparison that code would fail without."""

    def method(self: _Asked, other: object) -> object:
        return self.branches.answer("__bool__", compare(self.value, other))

    return method


@dataclass(eq=False, slots=True)
class _Asked:
    """A number of a tensor as Python sees it, in code that fails unless a comparison holds."""

    branches: Branches
    value: Tensor

    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)


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


@dataclass(eq=False, slots=True)
class _Drawn:
    """A random number as Python sees it: it can be compared with what is out of its range."""

    _draw: _Draw

    def _compared(self, sign: str, other: object) -> bool:
        value = _compared(sign, self._draw, other)
        if value is None:
            _refuse_draw()
        return value

    def __lt__(self, other: object) -> bool:
        return self._compared("<", other)

    def __gt__(self, other: object) -> bool:
        return self._compared(">", other)

    __le__, __ge__ = __lt__, __gt__

    def _refuse(self, *_: object) -> NoReturn:
        _refuse_draw()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = _refuse
    __mod__ = __rmod__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = __bool__ = _refuse
    __index__ = __eq__ = __ne__ = __hash__ = __getattr__ = __array__ = _refuse


def _compared(sign: str, draw: _Draw, other: object) -> bool | None:
    """Whether all numbers of a draw are on one side of a threshold, None where it is among them."""
    if isinstance(other, bool) or not isinstance(other, int | float):
        return None
    if other <= draw.low:
        return sign == ">"
    if other >= draw.high:
        return sign == "<"
    return None


def _refuse_draw() -> NoReturn:
    what = "the forward takes its path, or a Python number, from a random number"
    found = code_at(user_line()) or "a number that is drawn anew in each step"
    remedy = "set the probability (such as layerdrop) to 0; or keep the number a tensor and "
    remedy += "compute both ways: torch.where(torch.rand([]) < p, a, b)"
    raise refusal(what, "a trace that is right for every number that is drawn", found, remedy)


def _watched_draw(source: ModuleType, original: AnyFunction) -> AnyFunction:
    """A function that draws numbers, or that sets the state they are drawn from."""
    name = original.__name__

    def draw(*args: object, **named: object) -> object:
        trace, caller = current(), sys._getframe(1).f_code.co_filename
        if trace is not None and trace.in_forward:
            if name in ("seed", "set_state", "setstate"):
                trace.seeded.add(source)
            elif source not in trace.seeded and not caller.startswith(TORCH):
                bounds = _bounds(name, args, named)
                if bounds is None:
                    _refuse_draw()
                return _Drawn(bounds)
        return original(*args, **named)

    return draw


_READS_STATE = frozenset({"default_rng", "get_state", "getstate"})
PYTHON_DRAWS: tuple[tuple[ModuleType, str, Callable[[AnyFunction], AnyFunction]], ...] = tuple(
    (source, name, partial(_watched_draw, source))
    for source, names in ((random, random.__all__), (np.random, np.random.__all__))
    for name in names
    if name.islower() and name not in _READS_STATE and callable(getattr(source, name))
)
"""The functions of Python and NumPy that draw numbers: module, name, and what replaces each."""


def _bounds(name: str, args: Args, named: Named) -> _Draw | None:
    """The bounds of a single number that is drawn, None where more is asked for."""
    match args:
        case () if name in ("rand", "random", "random_sample", "uniform") and not named:
            return _Draw(0.0, 1.0)
        case (int() | float() as low, int() | float() as high) if name == "uniform" and not named:
            return _Draw(low, high)
    return None
