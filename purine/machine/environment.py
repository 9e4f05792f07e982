"""What has to be said before torch is imported: the package imports this module first.

A value that the user has set stays.

With huge pages a fresh 50 MB activation costs 25 page faults instead of 12,000 (see
`purine.machine.heap`). Torch reads this setting once, at its first allocation.

Between two kernels the threads of GNU OpenMP, which torch uses, spin: left alone, they look for
work 300,000 times before they sleep (7 ms on one machine), and where other processes need the
cores, everybody waits for threads that wait. Threads that sleep at once make small kernels slower
on an idle machine. A bounded spin is longer than the gap between two kernels of a step, and short
against the time slice of another process (`benchmarks/busy.py`). The library reads this setting
when it is loaded: where torch was imported before, it is as torch has it.

The command line cannot catch an interrupt before its own libraries are imported. So the hook that
prints tracebacks leaves that of an interrupt out; the process still dies of the signal (130).
"""

import os
import sys
from types import TracebackType

__all__: list[str] = []


def _without_interrupts(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")
if os.path.basename(sys.argv[0]) in ("purine", "-m"):  # "-m" only while that package is imported
    sys.excepthook = _without_interrupts
