"""The kind of an op, by its name.

Modules of `purine.kinds` register their kinds. A name that is not known yet imports all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from purine.errors import KindError
from purine.graph import Op
from purine.nearest import nearest_names
from purine.registry import aten, sized
from purine.registry.kind import REGISTERED, Kind

__all__ = ["kinds", "lookup"]


def kinds() -> Mapping[str, Kind]:
    """All named kinds."""
    import_module("purine.kinds")
    return MappingProxyType(REGISTERED)


def lookup(op: Op) -> Kind:
    """The kind of an op; a KindError with the nearest names where there is none."""
    known = REGISTERED.get(op.kind) or aten.kind_of(op.kind) or sized.kind_of(op.kind)
    if known is None:
        known = kinds().get(op.kind) or sized.kind_of(op.kind)
    if known is None:
        what = f"op {op.name!r} at {op.location} is of unknown kind {op.kind!r}"
        expected = "a named kind, or an ATen overload such as aten.relu or aten.add.Tensor"
        remedy = nearest_names(op.kind, REGISTERED, "see `purine show --kinds`", cutoff=0.5)
        raise KindError(what, expected, repr(op.kind), remedy, op=op)
    return known
