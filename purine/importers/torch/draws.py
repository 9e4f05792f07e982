"""Random numbers that a forward compares, or that Python and NumPy draw.

A trace would take one of them for a constant. A comparison with a threshold outside of the range
that is drawn from has a known answer: with layer drop at 0, `random.random() < 0.0` is false
whatever is drawn. Anything else is refused at the user's line. Numbers that follow a seed of the
module's own are the same each time, so they are constants.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType, ModuleType
from typing import NoReturn

import numpy as np

from purine.errors import GraphError
from purine.importers.torch.lines import TORCH, code_at, user_line
from purine.importers.torch.tracing import AnyFunction, current

__all__ = ["PYTHON_DRAWS", "Draw", "Drawn", "compared", "refuse_draw"]


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers between two bounds, which are taken never to be drawn themselves.

    A number of 24 bits is 0 once in 16 million times; nobody's layer drop of 0 means that.
    """

    low: float
    high: float


class Drawn:
    """A random number as Python sees it: it can be compared with what is out of its range."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def _compared(self, sign: str, other: object) -> bool:
        value = compared(sign, self._draw, other)
        if value is None:
            refuse_draw()
        return value

    def __lt__(self, other: object) -> bool:
        return self._compared("<", other)

    def __gt__(self, other: object) -> bool:
        return self._compared(">", other)

    __le__, __ge__ = __lt__, __gt__

    def _refuse(self, *_: object) -> NoReturn:
        refuse_draw()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = _refuse
    __mod__ = __rmod__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = __bool__ = _refuse
    __index__ = __eq__ = __ne__ = __hash__ = __getattr__ = __array__ = _refuse


def compared(sign: str, draw: Draw, other: object) -> bool | None:
    """Whether all numbers of a draw are on one side of a threshold, None where it is among them."""
    if isinstance(other, bool) or not isinstance(other, int | float):
        return None
    if other <= draw.low:
        return sign == ">"
    if other >= draw.high:
        return sign == "<"
    return None


def refuse_draw() -> NoReturn:
    line = user_line()
    raise GraphError(
        "the forward takes its path, or a Python number, from a random number",
        where=line,
        expected="a trace that is right for every number that is drawn",
        found=code_at(line) or "a number that is drawn anew in each step",
        remedy="set the probability (such as layerdrop) to 0; or keep the number a tensor and "
        "compute both ways: torch.where(torch.rand([]) < p, a, b)",
    )


def _watched_draw(source: ModuleType, original: AnyFunction) -> AnyFunction:
    """A function that draws numbers, or that sets the state they are drawn from."""
    name = original.__name__

    def draw(*args: object, **named: object) -> object:
        trace = current()
        if trace is not None and trace.in_forward:
            if name in ("seed", "set_state", "setstate"):
                trace.seeded.add(source)
            elif source not in trace.seeded and not _is_torch(sys._getframe(1)):
                bounds = _bounds(name, args, named)
                if bounds is None:
                    refuse_draw()
                return Drawn(bounds)
        return original(*args, **named)

    return draw


def _is_torch(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(TORCH)


_READS_STATE = frozenset({"default_rng", "get_state", "getstate"})
PYTHON_DRAWS: tuple[tuple[ModuleType, str, Callable[[AnyFunction], AnyFunction]], ...] = tuple(
    (source, name, partial(_watched_draw, source))
    for source, names in ((random, random.__all__), (np.random, np.random.__all__))
    for name in names
    if name.islower() and name not in _READS_STATE and callable(getattr(source, name))
)
"""The functions of Python and NumPy that draw numbers: module, name, and what replaces each."""


def _bounds(name: str, args: tuple[object, ...], named: Mapping[str, object]) -> Draw | None:
    """The bounds of a single number that is drawn, None where more is asked for."""
    if named:
        return None
    if name in ("rand", "random", "random_sample") and not args:
        return Draw(0.0, 1.0)
    if name == "uniform" and not args:
        return Draw(0.0, 1.0)
    if name == "uniform" and len(args) == 2:
        low, high = args
        if isinstance(low, int | float) and isinstance(high, int | float):
            return Draw(low, high)
    return None
