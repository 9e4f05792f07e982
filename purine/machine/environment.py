"""Effects that have to take place before torch is imported; `import purine` imports this first.

`purine.machine.effects` says what each effect is for and how to decline it. A variable that the
user has set is never changed. This module imports little, because it is part of the start of every
command.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

__all__ = ["VARIABLE", "declined", "variable"]

VARIABLE = "PURINE_DECLINE"
"""The environment variable that names the effects a user declines, with commas between them."""


def declined() -> frozenset[str]:
    """The names in `PURINE_DECLINE`, known or not."""
    names = os.environ.get(VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable that has another value meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _hide_interrupts(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def _apply() -> None:
    unwanted = declined()
    if "huge-pages" not in unwanted:
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if "spin" not in unwanted and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    # argv[0] is "-m" only while `python -m purine` imports the package.
    commands = os.path.basename(sys.argv[0]) in ("purine", "-m")
    if "interrupt" not in unwanted and commands:
        sys.excepthook = _hide_interrupts
    if "stacks" not in unwanted and commands:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


_apply()
