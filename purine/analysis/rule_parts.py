"""Whether a gradient rule gives the same on parts of a batch as on the whole.

The loss of a part is the mean over its samples, so its cotangents are larger by the number of
parts, and the gradients of parameters are averaged. A rule may therefore scale cotangents sample by
sample and sum over samples at its end. A rule with any other op needs the whole batch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from purine.graph import Graph, Op

__all__ = ["needs_whole_batch"]

_State: TypeAlias = Literal["samples", "turned", "summed"]
"""What a value that depends on a cotangent is: one row per sample; the same in another shape;
added up over samples."""

_SAME = frozenset({"StopGradient", "aten._to_copy", "aten.alias", "aten.clone", "aten.neg"})
_PRODUCTS = frozenset({"aten.div.Tensor", "aten.mul.Tensor"})
_SUMS = frozenset({"aten.add.Tensor", "aten.sub.Tensor"})
_VIEWS = frozenset(
    {"aten.expand", "aten.permute", "aten.reshape", "aten.squeeze.dim", "aten.t"}
    | {"aten.transpose.int", "aten.unsqueeze"}
)
_ZEROS = frozenset({"aten.zeros", "aten.zeros_like"})


def needs_whole_batch(rule: Graph, cotangents: int) -> bool:
    """Whether a rule, whose first inputs are cotangents, must see all samples at once."""
    states: dict[str, _State] = dict.fromkeys(rule.inputs[:cotangents], "samples")
    zeros: set[str] = set()
    for op in rule.in_order:
        if op.kind.removeprefix("sized.") in _ZEROS:
            zeros.update(op.outputs)
        elif any(blob in states for blob in op.inputs):
            state = _state(op, states, zeros)
            if state is None:
                return True
            states.update(dict.fromkeys(op.outputs, state))
    return False


def _state(op: Op, states: dict[str, _State], zeros: set[str]) -> _State | None:
    """What the result of an op is, or None where the op is not known to be harmless."""
    first = states.get(op.inputs[0])
    late = [states[blob] for blob in op.inputs if blob in states]
    kind = op.kind
    if kind in _SAME:
        return first
    if kind.removeprefix("sized.") in _VIEWS and first is not None:
        return "summed" if first == "summed" else "turned"
    if kind in _PRODUCTS and len(op.inputs) == 1:
        return first
    if kind in _PRODUCTS and len(late) == 1 and late[0] != "summed":
        return late[0] if kind == "aten.mul.Tensor" else first
    if kind in _SUMS and len(late) == len(op.inputs) == 2 and late[0] == late[1]:
        return first
    if kind == "aten.where.self" and op.inputs[0] not in states:
        others = [blob for blob in op.inputs[1:] if blob not in zeros]
        if all(states.get(blob) == "samples" for blob in others):
            return "samples"
    if kind == "aten.masked_fill.Scalar" and op.attributes.get("value") == 0 and len(late) == 1:
        return first
    if kind == "aten.sum":
        return "summed"
    if kind == "aten.sum.dim_IntList":
        axes = op.attributes.get("dim")
        inside = isinstance(axes, tuple) and all(isinstance(a, int) and a > 0 for a in axes)
        return "samples" if inside and first == "samples" else "summed"
    if kind in ("aten.mm", "aten.matmul") and len(late) == 1:
        return "samples" if first == "samples" else "summed"
    return None
