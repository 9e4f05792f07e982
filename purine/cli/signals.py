"""Signals that stop a run after its iterations in flight, or at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["Signals", "stop_signals"]

_ERASE_LINE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"


class Signals:
    """The signals that asked the run to stop, in order."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGHUP:
            return  # a terminal that closes often sends several
        bar = sys.__stdout__ is not None and sys.__stdout__.isatty()
        with suppress(OSError):  # of a terminal that is gone
            if bar:
                os.write(1, _ERASE_LINE)  # the bar, which is drawn again below the message
            if self.received:
                os.write(1, _SHOW_CURSOR if bar else b"")
            else:
                os.write(2, b"stopping after the iterations in flight; once more to stop at once\n")
        if self.received:  # the second one: no more waiting
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received.append(number)


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """Let SIGINT, SIGTERM and SIGHUP stop a job after its iterations in flight.

    A process that was started to outlive its terminal (`nohup`) goes on ignoring SIGHUP.
    """
    signals = Signals()
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = [signal.signal(number, signals.handle) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
