"""The results of common kinds by rules: faster than torch's fake tensors.

Fake tensors import SymPy and the compiler on first use, which takes longer than importing torch
itself. A net of common kinds is checked without them. A kind declares its rule in its facts; the
helpers of these rules are here. A rule never accepts what torch refuses (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence

from purine.graph import Op
from purine.registry.facts import Settings, Shape, ShapeRule, Shapes
from purine.registry.lookup import lookup
from purine.registry.spec import Inferred, Spec

__all__ = ["axis_of", "pair", "told", "windows"]


def told(op: Op, settings: Settings, inputs: Sequence[Spec]) -> Inferred | None:
    """What the result of an op is, if a rule tells; `settings` are its attributes with defaults."""
    rule = _COUNTER if op.kind == "aten.add.Scalar" else lookup(op).facts.shape
    if rule is None or not inputs or 0 in (extent for spec in inputs for extent in spec.shape):
        return None
    first = inputs[0]
    if any(spec.device != first.device for spec in inputs):
        return None
    if not rule.dtypes(tuple(spec.dtype for spec in inputs)):
        return None
    shape = rule.shape(settings, [spec.shape for spec in inputs])
    if shape is None:
        return None
    return Inferred((Spec(shape, first.dtype, first.device),), (None,), False)


def _counting(dtypes: Sequence[str]) -> bool:
    return dtypes == ("int64",)


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


def pair(setting: int | tuple[int, int]) -> tuple[int, int]:
    return (setting, setting) if isinstance(setting, int) else setting


_COUNTER = ShapeRule(_add_scalar, _counting)
"""The rule of `aten.add.Scalar`, by which every training graph counts its iterations."""
