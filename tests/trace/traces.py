"""A trace as a GPU leaves it, of which every number is known."""

from __future__ import annotations

from purine.trace.events import Event
from purine.trace.trace import Trace

HOST, CARD = "host a, cpu:0", "host a, cuda:0"
MICRO = 1_000
MILLI = 1_000 * MICRO

COMPILED, CAPTURED, STEP = 60_000 * MILLI, 1_000 * MILLI, 10 * MILLI
PAUSE = 100 * MICRO
READ, BEFORE_END, SENT = 500 * MICRO, 300 * MICRO, 200 * MICRO
CPU0, CPU1 = "host a, cpu:0", "host a, cpu:1"


def on_gpu(iterations: int, *, first: int = 0) -> Trace:
    """A fused step that is compiled in its first call, captured in its third, and then replayed.

    Batches are read two iterations ahead, each from `BEFORE_END` of an iteration into the pause
    behind it and the next iteration, and sent to the GPU while it computes.
    """
    events: list[Event] = []

    def fed(iteration: int, start: int) -> None:
        read = start + READ
        events.append(Event("data", "Data", iteration, HOST, "io", start, read))
        events.append(Event("data@cuda:0", "Copy", iteration, CARD, "inbound", read, read + SENT))

    fed(first, 0)
    fed(first + 1, READ)
    time = 2 * READ
    for number in range(iterations):
        end = time + {0: COMPILED, 2: CAPTURED}.get(number, STEP)
        events.append(Event("fused/0", "Fused", first + number, CARD, "compute", time, end))
        if number + 2 < iterations:
            fed(first + number + 2, end - BEFORE_END)
        time = end + PAUSE
    edges = (("data", "data@cuda:0", 0), ("data@cuda:0", "fused/0", 0), ("fused/0", "fused/0", 1))
    return Trace(tuple(events), edges)


def event(
    op: str,
    start: int,
    end: int,
    *,
    iteration: int = 0,
    location: str = CPU0,
    lane: str = "compute",
    kind: str = "K",
) -> Event:
    return Event(op, kind, iteration, location, lane, start, end)
