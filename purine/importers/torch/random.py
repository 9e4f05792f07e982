"""Random numbers of a module, drawn by our kinds.

The numbers differ from torch's, their distributions do not. The stream of a draw is the name of its
op, so that equal seeds give equal bits and parts of a batch draw what the whole batch draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch._ops import OpOverload
from torch.fx import Node

from purine.graph import Attribute
from purine.importers.torch.emitter import Emitter, Handler, value_of
from purine.registry.clock import ITERATION, SEED

__all__ = ["DRAWS", "KINDS", "REMEDY"]

KINDS = frozenset({"RandomExponential", "RandomIntegers", "RandomNormal", "RandomUniform"})
"""The kinds that draw numbers of a `shape`."""

REMEDY = (
    "draw with rand, randn, randint, randperm, normal, uniform, exponential, bernoulli or dropout, "
    "and compute from their numbers: an index by weights w is "
    "(w.log() - torch.empty_like(w).exponential_().log()).argmax(-1)"
)
"""What to write in place of other draws."""


def _drawn(t: Emitter, node: Node, kind: str, **settings: Attribute) -> bool:
    """Let a node be a draw of its own shape and dtype."""
    t.emit(node, kind, [SEED, ITERATION], [node], _settings(t, node, **settings))
    return True


def _settings(t: Emitter, node: Node, **settings: Attribute) -> dict[str, Attribute]:
    shape, dtype = tuple(value_of(node).shape), t.dtype_of(node)
    return {"shape": shape, "dtype": dtype, "stream": t.name_of(node), **settings}


def _noise(t: Emitter, node: Node, kind: str, dtype: str) -> str:
    """A blob of random numbers of a node's shape."""
    settings = _settings(t, node, dtype=dtype)
    return t.extra(node, "noise", kind, [SEED, ITERATION], settings, dtype=dtype)


def _standard(t: Emitter, node: Node, *, kind: str) -> bool:
    return value_of(node).is_floating_point() and _drawn(t, node, kind)


def _uniform_between(t: Emitter, node: Node) -> bool:
    low, high = float(t.number(node, "from")), float(t.number(node, "to"))
    return _drawn(t, node, "RandomUniform", low=low, high=high)


def _normal_around(t: Emitter, node: Node) -> bool:
    """`torch.normal`, whose mean and deviation are numbers or tensors that get no gradient."""
    mean, std = t.argument(node, "mean"), t.argument(node, "std")
    if not isinstance(mean, Node) and not isinstance(std, Node):
        settings = {name: float(t.number(node, name)) for name in ("mean", "std")}
        return _drawn(t, node, "RandomNormal", **settings)
    blob = _noise(t, node, "RandomNormal", t.dtype_of(node))
    for label, operation, name in (("scaled", "mul", "std"), ("moved", "add", "mean")):
        value = t.argument(node, name)
        if isinstance(value, Node):
            blob = t.extra(node, label, f"aten.{operation}.Tensor", [blob, t.blobs[value]], {})
        else:
            other: dict[str, Attribute] = {"other": float(t.number(node, name))}
            blob = t.extra(node, label, f"aten.{operation}.Scalar", [blob], other)
    t.emit(node, "StopGradient", [blob], [node])
    return True


def _exponential(t: Emitter, node: Node) -> bool:
    return _drawn(t, node, "RandomExponential", rate=float(t.number(node, "lambd")))


def _integers(t: Emitter, node: Node) -> bool:
    low = int(t.number(node, "low")) if "low" in _argument_names(node) else 0
    return _drawn(t, node, "RandomIntegers", low=low, high=int(t.number(node, "high")))


def _permutation(t: Emitter, node: Node) -> bool:
    """The order that sorts random numbers."""
    if t.dtype_of(node) != "int64":
        return False
    t.emit(node, "aten.argsort", [_noise(t, node, "RandomUniform", "float64")], [node])
    return True


def _bernoulli(t: Emitter, node: Node) -> bool:
    """Ones with the probabilities that a tensor holds."""
    chance = t.tensor(node, "self" if "self" in _argument_names(node) else "p")
    noise = _noise(t, node, "RandomUniform", t.dtype_of(chance))
    less = t.extra(node, "less", "aten.lt.Tensor", [noise, t.blobs[chance]], {}, dtype="bool")
    t.emit(node, "aten._to_copy", [less], [node], {"dtype": t.dtype_of(node)})
    return True


def _bernoulli_of(t: Emitter, node: Node) -> bool:
    """A draw of ones and zeros, as whole channels are dropped by."""
    keep = float(t.number(node, "p"))
    if keep == 0.0:
        t.emit(node, "aten.zeros_like", [t.blobs[t.tensor(node, "self")]], [node])
        return True
    mask = t.extra(node, "mask", "RandomMask", [SEED, ITERATION], _settings(t, node, keep=keep))
    t.emit(node, "aten.sign", [mask], [node])
    return True


def _dropout(t: Emitter, node: Node) -> bool:
    """Dropout under our randomness: the stream is the op's name."""
    y, mask = t.results_of(node, 2)
    ratio, x = float(t.number(node, "p")), t.blobs[t.tensor(node, "input")]
    if mask is not None or y is None:
        return y is None and mask is None
    if ratio == 0.0 or t.argument(node, "train") is False:
        t.blobs[y] = x
    elif ratio == 1.0:
        t.emit(node, "aten.zeros_like", [x], [y])
    else:
        settings: dict[str, Attribute] = {"ratio": ratio, "stream": t.name_of(node)}
        t.emit(node, "Dropout", [x, SEED, ITERATION], [y], settings)
    return True


def _argument_names(node: Node) -> list[str]:
    assert isinstance(node.target, OpOverload)
    return [argument.name for argument in node.target._schema.arguments]


_uniform, _normal = (partial(_standard, kind=k) for k in ("RandomUniform", "RandomNormal"))

_OVERLOADS: Mapping[Handler, str] = {
    _bernoulli: "bernoulli bernoulli.Tensor",
    _bernoulli_of: "bernoulli.p",
    _dropout: "native_dropout",
    _exponential: "exponential",
    _integers: "randint randint.low randint_like randint_like.low_dtype",
    _normal: "randn randn_like",
    _normal_around: "normal_functional normal.Tensor_Tensor normal.Tensor_float "
    "normal.float_Tensor normal.float_float",
    _permutation: "randperm",
    _uniform: "rand rand_like",
    _uniform_between: "uniform",
}
DRAWS: Mapping[str, Handler] = {
    f"aten.{name}": handler for handler, names in _OVERLOADS.items() for name in names.split()
}
"""How each draw of ATen becomes ops. The general rule refuses the draws that are left to it."""
