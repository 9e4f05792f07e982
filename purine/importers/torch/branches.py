"""Branches of a forward whose outcome is known, or can be expected, without the values of tensors.

A trace follows one path. Where a module asks a tensor which way to go, the answer is

- known, if it compares a random number with a threshold outside of its range: with layer drop at 0
  `torch.rand([]) < 0.0` is false whatever is drawn,
- expected, if it asks whether values are finite, or fails otherwise (`assert`, `if ...: raise`,
  the checks of `torch.distributions`). The path of good values is traced, and the condition is
  kept: where it does not hold, the loss of the imported net is not a number,
- refused else, at the user's line.

Random numbers of Python and NumPy are met here too: a trace would take one of them for a constant.
"""

from __future__ import annotations

import ast
import linecache
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from purine.errors import GraphError
from purine.importers.torch.patched import TORCH
from purine.importers.torch.places import code_at, users_place
from purine.importers.torch.replaced import replaced

__all__ = ["Branches", "python_draws"]


@dataclass(frozen=True, slots=True)
class _Draw:
    """A tensor of random numbers between two bounds, which are never met themselves.

    A number of 24 digits is 0 once in 16 million times; nobody's layer drop of 0 means that.
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
    """A tensor of booleans that depend on what is drawn."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A tensor of numbers that are known, by the greatest of them."""

    greatest: int


_Fact = _Draw | _Truth | _Choice | _Lengths


@dataclass(frozen=True, slots=True)
class Expected:
    """A condition that a trace took to hold, the user's line that asked for it, and its code."""

    condition: Tensor
    where: str
    code: str


class Branches(TorchFunctionMode):  # type: ignore[misc]
    """Watches what a module computes and answers what it asks; `expected` grows.

    `functions` take the place of functions of torch by name.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions
        self.expected: list[Expected] = []
        # With the tensors themselves, so that no other tensor gets the id of one.
        self._facts: dict[int, tuple[Tensor, _Fact]] = {}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in _QUESTIONS and args and isinstance(args[0], Tensor):
            answer = self._answer(name, args[0])
            if answer is not None:
                return answer
        result = self.functions.get(name, function)(*args, **named)
        if _writes(name) or "out" in named:
            self._facts.clear()  # of all: views of one tensor change with it
        first = result[0] if name == "sort" else result
        if isinstance(first, Tensor):
            fact = self._learnt(name, args, named)
            if fact is not None:
                self._facts[id(first)] = first, fact
        return result

    def greatest(self, lengths: Tensor) -> int | None:
        """The greatest of some lengths, if they do not depend on data."""
        fact = self._fact(lengths)
        return fact.greatest if isinstance(fact, _Lengths) else None

    def _learnt(self, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> _Fact | None:
        """What is known of the result of a function."""
        if name in ("rand", "rand_like"):
            return _Draw(0.0, 1.0)
        if name == "uniform_":
            low = args[1] if len(args) > 1 else named.get("from", 0.0)
            high = args[2] if len(args) > 2 else named.get("to", 1.0)
            return _Draw(low, high)
        if name in _FINITE:
            return _Truth(_FINITE[name], expected=True)
        if name in ("as_tensor", "tensor") and _are_counts(args[0]):
            return _Lengths(max(args[0]))
        facts = [self._fact(value) for value in args[:2]]
        match facts:
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

    def _answer(self, name: str, asked: Tensor) -> object:
        """What a question about a value is answered by, None where the value is needed."""
        if asked.numel() != 1:
            return None
        fact = self._fact(asked)
        if isinstance(fact, _Draw) and name == "item":
            return Drawn(fact)
        if isinstance(fact, _Draw | _Choice):
            _refuse_draw()
        if fact is None and name in ("__bool__", "item"):
            wanted = _wanted()
            if wanted is not None and asked.dtype != torch.bool and name == "item":
                return Asked(self, asked)
            fact = None if wanted is None else _Truth(wanted, expected=True)
        if not isinstance(fact, _Truth):
            return None
        if fact.expected:
            condition = asked if fact.value else asked.logical_not()
            place = users_place(traceback.extract_stack()) or ""
            self.expected.append(Expected(condition.reshape(()), place, code_at(place)))
        return fact.value

    def holds(self, comparison: Tensor) -> object:
        """The truth of a comparison that code would fail without."""
        return self._answer("__bool__", comparison)


class Asked:
    """A number of a tensor as Python sees it, in code that fails unless a comparison holds."""

    __slots__ = ("_branches", "_value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, branches: Branches, value: Tensor) -> None:
        self._branches = branches
        self._value = value

    def __lt__(self, other: Any) -> Any:
        return self._branches.holds(self._value < other)

    def __le__(self, other: Any) -> Any:
        return self._branches.holds(self._value <= other)

    def __gt__(self, other: Any) -> Any:
        return self._branches.holds(self._value > other)

    def __ge__(self, other: Any) -> Any:
        return self._branches.holds(self._value >= other)

    def __eq__(self, other: object) -> Any:
        return self._branches.holds(self._value == other)

    def __ne__(self, other: object) -> Any:
        return self._branches.holds(self._value != other)


class Drawn:
    """A random number as Python sees it: it can be compared with what is out of its range."""

    __slots__ = ("_draw",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw

    def _compared(self, sign: str, other: object) -> bool:
        value = _compared(sign, self._draw, other)
        if value is None:
            _refuse_draw()
        return value

    def __lt__(self, other: object) -> bool:
        return self._compared("<", other)

    def __le__(self, other: object) -> bool:
        return self._compared("<", other)

    def __gt__(self, other: object) -> bool:
        return self._compared(">", other)

    def __ge__(self, other: object) -> bool:
        return self._compared(">", other)

    def _refuse(self, *_: object) -> NoReturn:
        _refuse_draw()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = _refuse
    __mod__ = __rmod__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = __bool__ = _refuse
    __index__ = __eq__ = __ne__ = __getattr__ = __array__ = _refuse


def _writes(name: str) -> bool:
    """Whether a function writes into a tensor that it is given."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name != "__invert__")
    return name.endswith("_")


def _lengths_of(value: Any) -> _Lengths | None:
    """What is known of a tensor of the module's own: unlike others of a trace it has values."""
    if value.dtype != torch.int64 or value.numel() == 0:
        return None
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return _Lengths(int(value.max()))


def _are_counts(values: object) -> bool:
    return isinstance(values, list | tuple) and bool(values) and all(type(v) is int for v in values)


def _compared(sign: str, draw: _Draw, other: object) -> bool | None:
    """Whether all numbers of a draw are on one side of a threshold, None where it is among them."""
    if isinstance(other, bool) or not isinstance(other, int | float):
        return None
    if other <= draw.low:
        return sign == ">"
    if other >= draw.high:
        return sign == "<"
    return None


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


def _refuse_draw() -> NoReturn:
    place = users_place(traceback.extract_stack())
    raise GraphError(
        "the forward takes its path, or a Python number, from a random number",
        where=place,
        expected="a trace that is right for every number that is drawn",
        found=code_at(place) or "a number that is drawn anew in each step",
        remedy="set the probability (such as layerdrop) to 0; or keep the number a tensor and "
        "compute both ways: torch.where(torch.rand([]) < p, a, b)",
    )


def _wanted() -> bool | None:
    """The truth without which the code that asks fails, None where it has another way to go."""
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
    """The truth of all tests in a line of code without which it raises, if they are alike."""
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
    """What every part of a test must be, for the whole to be as wanted."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _truths(test.operand, wanted=not wanted)
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is not wanted:
            return None
        found = {_truths(part, wanted=wanted) for part in test.values}
        return found.pop() if len(found) == 1 else None
    return wanted


@contextmanager
def python_draws() -> Iterator[None]:
    """Meet the random numbers that Python and NumPy draw while a module is traced.

    Numbers that follow a `seed` of the module's own are the same each time: constants.
    """
    seeded: set[object] = set()
    sources = (random, random.__all__), (np.random, np.random.__all__)
    others = [
        (source, name, _met(getattr(source, name), source, seeded))
        for source, names in sources
        for name in names
        if name.islower() and name not in _KEEPS_STATE and callable(getattr(source, name))
    ]
    with replaced(others):
        yield


_KEEPS_STATE = frozenset({"default_rng", "get_state", "getstate"})


def _met(whole: Callable[..., Any], source: object, seeded: set[object]) -> Callable[..., Any]:
    """A function that draws, or sets the state, as it is while a module is traced."""
    name = whole.__name__

    def met(*args: Any, **named: Any) -> Any:
        torchs = sys._getframe(1).f_code.co_filename.startswith(TORCH)
        if name in ("seed", "set_state", "setstate"):
            seeded.add(source)
        elif source not in seeded and not torchs:
            bounds = _bounds(name, args, named)
            if bounds is None:
                _refuse_draw()
            return Drawn(bounds)
        return whole(*args, **named)

    return met


def _bounds(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> _Draw | None:
    """The bounds of a single number that is drawn, None where more is asked for."""
    if name in ("rand", "random", "random_sample") and not args and not named:
        return _Draw(0.0, 1.0)
    if name == "uniform" and len(args) in (0, 2) and not named:
        return _Draw(*(args or (0.0, 1.0)))
    return None
