"""Copies of weights in low precision that are cached between steps.

The update at the end of a step has the new weight in registers, so it writes the rounded copy too.
The results have the same bits. If anyone else writes a weight, torch's version counter tells, and
the copy is computed again, in the same memory, because a captured step has its address.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import Target

from purine.analysis.tracing import written_by
from purine.compile.rewrites._nodes import LOW, ints_of, is_call, value_of
from purine.compile.rewrites._recorded import CachedCast, Recorded, adder

__all__ = ["WeightCache", "cache_casts"]

aten = torch.ops.aten

_VIEWS = (aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default)

_READ_FROM_MEMORY: dict[Target, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (0, 1, 2),
    aten.bmm.default: (0, 1),
    aten.baddbmm.default: (0, 1, 2),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (1, 2),
}
"""Library calls, and which of their arguments they read from memory. Into all other calls the
compiler fuses the cast, so that it costs nothing."""


def cache_casts(recorded: Recorded) -> int:
    """Let a function that updates weights read and write cached copies of them.

    The function gets one more argument for each of `recorded.casts`.

    Each step would round every weight to low precision; the update writes the rounded copy for the
    next step.
    """
    nodes, weights = list(recorded.graph.nodes), recorded.placeholders
    order = {node: position for position, node in enumerate(nodes)}
    writers: dict[Node, list[Node]] = {}
    for call in nodes:
        for node in map(_base, written_by(call)):
            writers.setdefault(node, []).append(call)
    for argument, weight in enumerate(weights):
        update = _update(weight, writers.get(weight, []))
        if update is None:
            continue
        copies: dict[CachedCast, list[Node]] = {}
        for user in weight.users:
            if order[user] < order[update]:
                for rounding, end in _casts(argument, user):
                    copies.setdefault(rounding, []).append(end)
        for rounding, ends in copies.items():
            with recorded.graph.inserting_after(recorded.placeholders[-1]):
                copy = recorded.graph.placeholder(f"kept_{len(recorded.casts)}")
            copy.meta["val"] = rounding(value_of(weight))
            recorded.casts.append(rounding)
            for end in ends:
                end.replace_all_uses_with(copy)
            _write(update, rounding, copy)
    recorded.graph.eliminate_dead_code()
    return len(recorded.casts)


def _base(node: Node) -> Node:
    """The node that a node is a view of, or itself."""
    while _is_view(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _is_view(node: Node) -> bool:
    """Whether a result is a view, or views, of the first argument, or one of such views."""
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    return any(item.alias_info is not None for item in node.target._schema.arguments[:1])


def _update(weight: Node, writers: Sequence[Node]) -> Node | None:
    """The call that writes a new value over a whole weight, if it is the only writer."""
    if len(writers) != 1 or not is_call(writers[0], aten.copy_.default):
        return None
    (call,) = writers
    target, new = call.args[:2]
    fits = (
        target is weight
        and not call.users
        and value_of(weight).dtype == torch.float32
        and isinstance(new, Node)
        and isinstance(new.meta.get("val"), Tensor)
        and value_of(new).shape == value_of(weight).shape
    )
    return call if fits else None


def _casts(argument: int, cast: Node) -> list[tuple[CachedCast, Node]]:
    """The copies that begin with a cast of a weight and that a library reads from memory."""
    if not is_call(cast, aten._to_copy.default):
        return []
    dtype, device = cast.kwargs.get("dtype"), value_of(cast.args[0]).device
    if not isinstance(dtype, torch.dtype) or dtype not in LOW:
        return []
    if not cast.kwargs.keys() <= {"dtype", "device"} or cast.kwargs.get("device", device) != device:
        return []
    copies = [(CachedCast(argument, dtype), cast)]
    for pad in cast.users:
        if is_call(pad, aten.constant_pad_nd.default) and len(pad.args) == 2:
            pads = tuple(ints_of(pad.args[1]))
            if min(pads) >= 0:
                copies.append((CachedCast(argument, dtype, pads), pad))
    return [(copy, end) for copy, end in copies if _is_read(end) and not _is_returned(end)]


def _is_returned(node: Node) -> bool:
    """Whether a function returns a result, or a view of it, which must then keep its value."""
    return any(
        user.op == "output" or (_base(user) is not user and _is_returned(user))
        for user in node.users
    )


def _is_read(node: Node) -> bool:
    """Whether some library reads a result, or a view of it, from memory."""
    return any(
        _is_read(user)
        if user.target in _VIEWS
        else any(user.args[k] is node for k in _READ_FROM_MEMORY.get(user.target, ()))
        for user in node.users
    )


def _write(update: Node, cast: CachedCast, copy: Node) -> None:
    """Write the new value of a weight into its copy as well, behind all that reads the copy."""
    weight, new = update.args[:2]
    add = adder(update.graph.output_node())
    if value_of(new).dtype != value_of(weight).dtype:
        new = add(aten._to_copy.default, new, dtype=value_of(weight).dtype)
    low, inside = add(aten._to_copy.default, new, dtype=cast.dtype), copy
    sizes = value_of(weight).shape
    for k, front in enumerate(cast.pads[::2]):
        dim = len(sizes) - 1 - k
        if any(cast.pads[2 * k : 2 * k + 2]):
            inside = add(aten.slice.Tensor, inside, dim, front, front + sizes[dim])
    add(aten.copy_.default, inside, low)


class WeightCache:
    """The cached copies of one compiled function, which keeps them up to date itself.

    Call `refresh` before each run of the function, and `note` after each run that torch's version
    counters have seen.
    """

    def __init__(self, casts: Sequence[CachedCast], arguments: Sequence[Tensor]) -> None:
        self._casts = tuple(casts)
        self.copies = [rounding(arguments[rounding.argument]) for rounding in casts]
        self._seen: list[tuple[weakref.ref[Tensor], int, int]] = []

    def refresh(self, arguments: Sequence[Tensor]) -> None:
        """Compute the copies of weights that someone else has written or replaced."""
        stale = [
            k
            for k, rounding in enumerate(self._casts)
            if not self._seen or not _is_unchanged(arguments[rounding.argument], *self._seen[k])
        ]
        if stale:
            with torch.no_grad():
                for k in stale:
                    rounding = self._casts[k]
                    self.copies[k].copy_(rounding(arguments[rounding.argument]))
            self.note(arguments)

    def note(self, arguments: Sequence[Tensor]) -> None:
        """Record that the copies are those of the arguments as they are now."""
        self._seen = [_identity(arguments[cast.argument]) for cast in self._casts]

    def forget(self) -> None:
        """Record that the copies are stale."""
        self._seen = []


_UNKNOWN = -1


def _identity(weight: Tensor) -> tuple[weakref.ref[Tensor], int, int]:
    """Which tensor it is, its address, and its version."""
    version = _UNKNOWN if weight.is_inference() else weight._version
    return weakref.ref(weight), weight.data_ptr(), version


def _is_unchanged(weight: Tensor, seen: weakref.ref[Tensor], address: int, version: int) -> bool:
    """Whether nobody has written a weight since; unknown counts as written."""
    same = seen() is weight and version != _UNKNOWN
    return same and weight.data_ptr() == address and weight._version == version
