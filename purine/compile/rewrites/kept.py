"""Copies of weights in low precision that are kept from step to step.

A step in mixed precision rounds every weight before it reads it. The update at the end of the same
step has the new weight at hand, so it writes the rounded form too, and the next step finds it
ready. A kept copy is always rounded from the very number that the weight holds, so the results stay
as they are. Whoever else writes a weight is noticed by the version that torch counts, and its copy
is then made anew, in the same memory: a captured step has its address.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from purine.compile.rewrites.aligned import LOW
from purine.compile.rewrites.recorded import adder, is_call, value_of

__all__ = ["Chain", "Kept", "keep_casts"]

aten = torch.ops.aten

_VIEWS = (aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default)

_READ_AS_STORED: dict[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (0, 1, 2),
    aten.bmm.default: (0, 1),
    aten.baddbmm.default: (0, 1, 2),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (1, 2),
}
"""Calls into libraries, and which of their arguments must lie in memory. Everything else casts what
it reads by itself, at no cost."""


@dataclass(frozen=True)
class Chain:
    """What is made of a weight: a cast, and then zeros around it if there are `pads`."""

    place: int
    """Which of the function's arguments is the weight."""
    dtype: torch.dtype
    pads: tuple[int, ...] = ()
    """As `constant_pad_nd` takes them: of the last dimension first, in front and behind."""

    def __call__(self, weight: Tensor) -> Tensor:
        """The copy of a weight."""
        low = aten._to_copy.default(weight, dtype=self.dtype)
        found: Tensor = aten.constant_pad_nd.default(low, list(self.pads)) if self.pads else low
        return found


def keep_casts(module: GraphModule) -> list[Chain]:
    """Let a recorded function read kept copies of the weights that it writes over, in place.

    Behind its own arguments the function then takes one copy for each chain that is returned, and
    writes the new ones over them.
    """
    nodes = list(module.graph.nodes)
    weights = [node for node in nodes if node.op == "placeholder"]
    order = {node: k for k, node in enumerate(nodes)}
    writing: dict[Node, list[Node]] = {}
    for call in nodes:
        for node in _overwritten(call):
            writing.setdefault(node, []).append(call)
    last, chains = weights[-1] if weights else None, list[Chain]()
    for place, weight in enumerate(weights):
        written = _update(weight, writing.get(weight, []))
        if written is None:
            continue
        found: dict[Chain, list[Node]] = {}
        for cast in weight.users:
            if order[cast] < order[written]:
                for chain, end in _chains(place, cast):
                    found.setdefault(chain, []).append(end)
        for chain, ends in found.items():
            with module.graph.inserting_after(last):
                last = module.graph.placeholder(f"kept_{len(chains)}")
            last.meta["val"] = chain(value_of(weight))
            chains.append(chain)
            for end in ends:
                end.replace_all_uses_with(last)
            _write(module, written, chain, last)
    module.graph.eliminate_dead_code()
    module.recompile()
    return chains


def _overwritten(call: Node) -> Iterator[Node]:
    """What a call writes over; of a view, what it is a view of."""
    if not isinstance(call.target, torch._ops.OpOverload) or not call.target._schema.is_mutable:
        return
    for k, argument in enumerate(call.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = call.args[k] if k < len(call.args) else call.kwargs.get(argument.name)
            found: list[Node] = []
            map_arg(given, found.append)
            yield from map(_base, found)


def _base(node: Node) -> Node:
    """What a node is a view of, or itself."""
    while _is_view(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _is_view(node: Node) -> bool:
    """Whether a call's result is a view of its first argument, or views, or one of these."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    return any(item.alias_info is not None for item in node.target._schema.arguments[:1])


def _update(weight: Node, writing: Sequence[Node]) -> Node | None:
    """The call that writes a new value over a whole weight, if no other writes there."""
    if len(writing) != 1 or not is_call(writing[0], aten.copy_.default):
        return None
    (call,) = writing
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


def _chains(place: int, cast: Node) -> list[tuple[Chain, Node]]:
    """The chains that begin with a call, with their ends, where a library reads these."""
    if not is_call(cast, aten._to_copy.default):
        return []
    dtype, own = cast.kwargs.get("dtype"), value_of(cast.args[0]).device
    if not isinstance(dtype, torch.dtype) or dtype not in LOW:
        return []
    if not cast.kwargs.keys() <= {"dtype", "device"} or cast.kwargs.get("device", own) != own:
        return []
    found = [(Chain(place, dtype), cast)] if _is_stored(cast) else []
    for pad in cast.users:
        if is_call(pad, aten.constant_pad_nd.default) and len(pad.args) == 2 and _is_stored(pad):
            pads: tuple[int, ...] = tuple(pad.args[1])
            if min(pads) >= 0:
                found.append((Chain(place, dtype, pads), pad))
    return found


def _is_stored(node: Node) -> bool:
    """Whether some library reads a value from memory, and nobody after the function's end."""
    return _is_read(node) and not _is_returned(node)


def _is_returned(node: Node) -> bool:
    """Whether a function returns a value, or a view of it: that must stay as it is."""
    return any(
        user.op == "output" or (_base(user) is not user and _is_returned(user))
        for user in node.users
    )


def _is_read(node: Node) -> bool:
    """Whether some library reads a value, or a view of it, from memory."""
    return any(
        _is_read(user)
        if user.target in _VIEWS
        else any(user.args[k] is node for k in _READ_AS_STORED.get(user.target, ()))
        for user in node.users
    )


def _write(module: GraphModule, written: Node, chain: Chain, copy: Node) -> None:
    """Write the new value of a weight over its copy as well, behind all that reads it."""
    weight, new = written.args[:2]
    add = adder(module, module.graph.output_node())
    if value_of(new).dtype != value_of(weight).dtype:
        new = add(aten._to_copy.default, new, dtype=value_of(weight).dtype)
    low, room = add(aten._to_copy.default, new, dtype=chain.dtype), copy
    sizes = value_of(weight).shape
    for k, front in enumerate(chain.pads[::2]):
        dim = len(sizes) - 1 - k
        if any(chain.pads[2 * k : 2 * k + 2]):
            room = add(aten.slice.Tensor, room, dim, front, front + sizes[dim])
    add(aten.copy_.default, room, low)


class Kept:
    """The copies of one function: made of its first arguments, and then kept up by itself.

    `refresh` comes before each time the function runs, and `note` behind each that torch may have
    counted.
    """

    def __init__(self, chains: Sequence[Chain], arguments: Sequence[Tensor]) -> None:
        self._chains = tuple(chains)
        self.copies = [chain(arguments[chain.place]) for chain in chains]
        self._seen: list[tuple[weakref.ref[Tensor], int, int]] = []

    def refresh(self, arguments: Sequence[Tensor]) -> None:
        """Make the copies anew of weights that somebody else has written, or that are others."""
        stale = [
            k
            for k, chain in enumerate(self._chains)
            if not self._seen or not _is_as_seen(arguments[chain.place], *self._seen[k])
        ]
        if stale:
            with torch.no_grad():
                for k in stale:
                    chain = self._chains[k]
                    self.copies[k].copy_(chain(arguments[chain.place]))
            self.note(arguments)

    def note(self, arguments: Sequence[Tensor]) -> None:
        """Take the copies for those of these arguments as they are now."""
        self._seen = [_look(arguments[chain.place]) for chain in self._chains]

    def forget(self) -> None:
        """Take the copies for stale."""
        self._seen = []


_UNKNOWN = -1


def _look(weight: Tensor) -> tuple[weakref.ref[Tensor], int, int]:
    """Which tensor it is, where it lies, and how often it was written."""
    version = _UNKNOWN if weight.is_inference() else weight._version
    return weakref.ref(weight), weight.data_ptr(), version


def _is_as_seen(weight: Tensor, seen: weakref.ref[Tensor], place: int, version: int) -> bool:
    """Whether nobody has written a weight since; of what torch does not count, nobody knows."""
    same = seen() is weight and version != _UNKNOWN
    return same and weight.data_ptr() == place and weight._version == version
