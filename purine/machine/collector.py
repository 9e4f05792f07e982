"""What the cyclic garbage collector looks at while a run goes on (effect `collector`).

A graph, its plan and its kernels are hundreds of thousands of objects. A full collection looks at
all of them, which takes 0.2 s for GoogLeNet on two hosts, and keeps the interpreter's lock: lanes
and threads that talk to other hosts stand still. So what is there when lanes start is left out
until they end. Garbage in cycles that is among it waits as long.
"""

from __future__ import annotations

import atexit
import gc
import threading

from purine.machine.effects import applies

__all__ = ["leave_out", "take_in"]

_lock = threading.Lock()
_holders = 0
_theirs = False
"""Whether the program that uses Purine was seen to leave objects out, which is then left to it.

Counting them looks at all of them, so that is not asked again.
"""


def leave_out() -> bool:
    """Leave what is there now out of collections until `take_in`; whether that is to be called."""
    global _holders, _theirs
    if not applies("collector"):
        return False
    with _lock:
        if _holders == 0:
            _theirs = _theirs or gc.get_freeze_count() > 0
        if not _theirs:
            gc.freeze()
            atexit.register(gc.unfreeze)  # modules look at exit for what they have leaked
        _holders += 1
    return True


def take_in() -> None:
    """End one `leave_out`. The last one lets the collector look at everything again."""
    global _holders
    with _lock:
        assert _holders > 0
        _holders -= 1
        if _holders == 0 and not _theirs:
            gc.unfreeze()
            atexit.unregister(gc.unfreeze)
