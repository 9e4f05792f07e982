"""Text tables of names and times, for reports in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["as_table", "as_time", "natural"]


def as_table(rows: Sequence[tuple[str, ...]], *, left: int, indent: str = "  ") -> str:
    """Columns two spaces apart; the first `left` are aligned left, the others right.

    >>> print(as_table([("kind", "count"), ("Conv", "2")], left=1))
      kind  count
      Conv      2
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)


def as_time(ns: float) -> str:
    """Nanoseconds as text, in microseconds or milliseconds.

    >>> as_time(1_500), as_time(2_000_000)
    ('1.5 µs', '2.0 ms')
    """
    return f"{ns / 1e3:.1f} µs" if ns < 1e6 else f"{ns / 1e6:,.1f} ms"


def natural(name: str) -> list[str]:
    """A sort key that compares numbers in names by value: `cpu:2` before `cpu:10`."""
    return [part.rjust(20, "0") if part.isdigit() else part for part in re.split("([0-9]+)", name)]
