"""The results of common kinds by rules, which are faster than torch's fake tensors.

Fake tensors import SymPy and the compiler on first use, which takes longer than importing torch. A
kind declares its rule in its facts. A rule never accepts what torch refuses (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from purine.graph import Op
from purine.registry.facts import Facts
from purine.registry.lookup import lookup
from purine.registry.spec import Inferred, Settings, Shape, Shapes, Spec

__all__ = ["axis_of", "checked_axis", "pair", "told", "windows"]


def told(op: Op, settings: Settings, inputs: Sequence[Spec]) -> Inferred | None:
    """What the result of an op is, if a rule tells; `settings` are its attributes with defaults."""
    facts = _COUNTER if op.kind == "aten.add.Scalar" else lookup(op).facts
    if facts.shape is None or not inputs or any(0 in spec.shape for spec in inputs):
        return None
    first = inputs[0]
    if any(spec.device != first.device for spec in inputs):
        return None
    if not facts.dtypes(tuple(spec.dtype for spec in inputs)):
        return None
    shape = facts.shape(settings, [spec.shape for spec in inputs])
    if shape is None:
        return None
    return Inferred((Spec(shape, first.dtype, first.device),), (None,), False)


def _add_scalar(settings: Settings, shapes: Shapes) -> Shape | None:
    numbers = (settings.get("other"), settings.get("alpha", 1))
    return shapes[0] if all(type(number) is int for number in numbers) else None


def windows(extent: int, kernel: int, stride: int, pad: int, *, ceil: bool = False) -> int:
    """How many windows fit along a side, 0 where none do or a setting makes no sense."""
    room = extent + 2 * pad - kernel
    if min(kernel, stride) < 1 or pad < 0 or room < 0:
        return 0
    count = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= extent + pad:  # the last one would begin in the padding
        count -= 1
    return count


def axis_of(axis: int, shape: Shape) -> int | None:
    return axis % len(shape) if -len(shape) <= axis < len(shape) else None


def checked_axis(x: Tensor, axis: int) -> int:
    """The axis counted from 0; a ValueError where x does not have it."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}, but x has {x.ndim} dimensions")
    return axis % x.ndim


def pair(setting: int | tuple[int, int]) -> tuple[int, int]:
    return (setting, setting) if isinstance(setting, int) else setting


_COUNTER = Facts(shape=_add_scalar, dtypes=lambda dtypes: dtypes == ("int64",))
"""The facts of `aten.add.Scalar`, by which every training graph counts its iterations."""
