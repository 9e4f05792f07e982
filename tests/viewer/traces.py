"""Traces for tests of the page, made without running anything."""

from __future__ import annotations

import itertools
import random

from purine.trace.events import Edge, Event
from purine.trace.trace import Trace

__all__ = ["HOSTILE", "hostile_trace", "synthetic"]

HOSTILE = (
    "</script><script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 2'>",
    "\"quoted\" 'names' `${window.hurt = 3}`",
    "control\x00\x07\x1b[2J\u2028\u2029\u202etxet",
    "</style><style>*{display:none}</style><!--",
    "__proto__",
    "x" * 2_000_000,
)
"""Names that a page must show, or shorten, without harm."""


def hostile_trace() -> Trace:
    """A trace whose ops, kinds, hosts and lanes have hostile names."""
    events = [
        Event(
            name, name, 0, f"host {name[:300]}, cpu:0", f"compute{name[:50]}", at * 10, at * 10 + 8
        )
        for at, name in enumerate(HOSTILE)
    ]
    edges = tuple((one, other, 0) for one, other in itertools.pairwise(HOSTILE))
    return Trace(tuple(events), edges)


def synthetic(count: int, *, devices: int = 8, ops: int = 500, seed: int = 0) -> Trace:
    """A trace of replicas with about `count` events: what one device after the other computes."""
    draw = random.Random(seed)
    events: list[Event] = []
    edges: list[Edge] = []
    names = [f"stage{k // 50}/block{k // 5 % 10}/op{k % 5}.{k}" for k in range(ops)]
    lengths = [draw.randrange(2_000, 200_000) for _ in names]
    kinds = [f"aten.kind{draw.randrange(40)}" for _ in names]
    for device in range(devices):
        own = [f"replica{device}/{name}" for name in names]
        edges += [(one, other, 0) for one, other in itertools.pairwise(own)]
        edges.append((own[-1], f"replica{device}/sum", 0))
        clock = 0
        for iteration in range(-(-count // (devices * (ops + 1)))):
            for name, length, kind in zip(own, lengths, kinds, strict=True):
                spent = int(length * draw.uniform(0.9, 1.3))
                place = f"host host{device // 4}, cpu:{device % 4}"
                event = Event(name, kind, iteration, place, "compute", clock, clock + spent)
                events.append(event)
                clock += spent + draw.choice((0, 0, 0, 900, 40_000))
            place = f"host host{device // 4}, cpu:{device % 4}"
            end = clock + 50_000
            events.append(
                Event(f"replica{device}/sum", "Average", iteration, place, "inbound", clock, end)
            )
    return Trace(tuple(events), tuple(edges))
