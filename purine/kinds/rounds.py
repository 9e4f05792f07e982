"""The kind that makes a worker the courier of another one."""

from __future__ import annotations

from purine.registry.kind import Attr, Kind, register

__all__ = ["ROUND"]

ROUND = "Round"
_CALLED = {"of": Attr(int), "pace": Attr(int), "bound": Attr(int | None, None)}
register(Kind(ROUND, None, (), attributes=_CALLED))
"""Says that the worker it belongs to is the courier of worker `of`, beside which it is.

It goes when that one has completed `pace` iterations since it went last, which may be `bound`
iterations ahead of what has been carried.
"""
