"""Results of common kinds, told by rules: quicker than asking torch, and without its compiler.

Torch's functions for tensors without values import SymPy and the compiler when they are first
called, which takes longer than torch itself; a net of these kinds is checked without them. A rule
gives the shape of the only result, or None wherever anything is out of the ordinary: then torch
decides, and words the error. A rule never tells what torch would not (a test compares them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from purine.analysis.tracing import Inferred, Spec
from purine.graph import Op

__all__ = ["told"]

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Mapping[str, Any], Sequence[Shape]], Shape | None]

_REAL = ("float32", "float64")
_WHOLE = ("int32", "int64")


def told(op: Op, settings: Mapping[str, object], inputs: Sequence[Spec]) -> Inferred | None:
    """What the result of an op is, if a rule tells; `settings` are its attributes with defaults."""
    rule = _RULES.get(op.kind)
    if rule is None or not inputs or 0 in (extent for spec in inputs for extent in spec.shape):
        return None
    first = inputs[0]
    if any(spec.device != first.device for spec in inputs):
        return None
    dtypes = tuple(spec.dtype for spec in inputs)
    if not _DTYPES.get(op.kind, _alike)(dtypes):
        return None
    shape = rule(settings, [spec.shape for spec in inputs])
    if shape is None:
        return None
    return Inferred((Spec(shape, first.dtype, first.device),), (None,), False)


def _alike(dtypes: Sequence[str]) -> bool:
    return dtypes[0] in _REAL and len(set(dtypes)) == 1


def _with_labels(dtypes: Sequence[str]) -> bool:
    return dtypes[0] in _REAL and all(dtype in _WHOLE for dtype in dtypes[1:])


def _counting(dtypes: Sequence[str]) -> bool:
    return dtypes == ("int64",)


def _same(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    del settings
    return shapes[0] if len(shapes) == 1 else None


def _add_scalar(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    numbers = (settings.get("other"), settings.get("alpha", 1))
    return shapes[0] if all(type(number) is int for number in numbers) else None


def _conv(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    x, weight, *biases = shapes
    groups = settings["groups"]
    if len(x) != 4 or len(weight) != 4 or groups < 1:
        return None
    outputs = weight[0]
    if x[1] != weight[1] * groups or outputs % groups or biases not in ([], [(outputs,)]):
        return None
    sides = [
        _windows(extent, dilation * (kernel - 1) + 1, stride, pad) if dilation > 0 else 0
        for extent, kernel, stride, pad, dilation in zip(
            x[2:],
            weight[2:],
            _pair(settings["stride"]),
            _pair(settings["pad"]),
            _pair(settings["dilation"]),
            strict=True,
        )
    ]
    return (x[0], outputs, *sides) if min(sides) > 0 else None


def _pool(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    (x,) = shapes
    if len(x) != 4:
        return None
    sides = [
        _windows(extent, kernel, stride, pad, ceil=settings["ceil"]) if 2 * pad <= kernel else 0
        for extent, kernel, stride, pad in zip(
            x[2:],
            _pair(settings["kernel"]),
            _pair(settings["stride"]),
            _pair(settings["pad"]),
            strict=True,
        )
    ]
    return (*x[:2], *sides) if min(sides) > 0 else None


def _windows(extent: int, kernel: int, stride: int, pad: int, *, ceil: bool = False) -> int:
    """How many windows fit along a side, 0 where none do or a setting makes no sense."""
    room = extent + 2 * pad - kernel
    if min(kernel, stride) < 1 or pad < 0 or room < 0:
        return 0
    count = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= extent + pad:  # the last one would begin in the padding
        count -= 1
    return count


def _global_pool(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    del settings
    (x,) = shapes
    return (*x[:2], 1, 1) if len(x) == 4 else None


def _inner_product(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    x, weight, *biases = shapes
    axis = _place(settings["axis"], x)
    if axis is None or len(weight) != 2 or math.prod(x[axis:]) != weight[1]:
        return None
    return (*x[:axis], weight[0]) if biases in ([], [weight[:1]]) else None


def _softmax(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    (x,) = shapes
    return None if _place(settings["axis"], x) is None else x


def _of_labels(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    x, labels = shapes
    axis = _place(settings["axis"], x)
    if axis is None or len(x) < 2 or labels != (*x[:axis], *x[axis + 1 :]):
        return None
    return () if 1 <= settings.get("top_k", 1) <= x[axis] else None


def _dropout(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    x, *clock = shapes
    plain = 0 <= settings["ratio"] < 1 and settings["part"] is None and settings["offset"] == 0
    return x if plain and clock == [(), ()] else None


def _eltwise(settings: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape | None:
    coefficients = settings["coefficients"]
    fit = coefficients is None or (
        settings["operation"] == "sum" and len(coefficients) == len(shapes)
    )
    return shapes[0] if fit and len(shapes) > 1 and len(set(shapes)) == 1 else None


def _place(axis: int, shape: Shape) -> int | None:
    return axis % len(shape) if -len(shape) <= axis < len(shape) else None


def _pair(setting: int | tuple[int, int]) -> tuple[int, int]:
    return (setting, setting) if isinstance(setting, int) else setting


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Elu", "Gelu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"), _same),
    "Accuracy": _of_labels,
    "Conv": _conv,
    "Dropout": _dropout,
    "Eltwise": _eltwise,
    "GlobalPool": _global_pool,
    "InnerProduct": _inner_product,
    "Pool": _pool,
    "Softmax": _softmax,
    "SoftmaxLoss": _of_labels,
    "aten.add.Scalar": _add_scalar,
}

_DTYPES: Mapping[str, Callable[[Sequence[str]], bool]] = {
    "Accuracy": _with_labels,
    "Dropout": _with_labels,
    "SoftmaxLoss": _with_labels,
    "aten.add.Scalar": _counting,
}
"""What dtypes a rule knows, where inputs are not all of the same real one."""
