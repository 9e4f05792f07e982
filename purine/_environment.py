"""What has to be said before torch is imported or allocates anything: the package imports it first.

With huge pages a fresh 50 MB activation costs 25 page faults instead of 12,000 (see
`purine.runtime.memory`). Torch reads this setting once, at its first allocation; a value that the
user has set stays.

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
if os.path.basename(sys.argv[0]) in ("purine", "-m"):  # "-m" only while that package is imported
    sys.excepthook = _without_interrupts
