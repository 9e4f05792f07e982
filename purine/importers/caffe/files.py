"""Files beside a definition: finding and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from purine.errors import FormatError
from purine.files import read_bounded, unreadable

__all__ = ["located", "read_bytes", "within"]

_BYTES = 64 << 20  # of a text


def located(name: str, roots: Sequence[Path]) -> Path | None:
    """The file or folder of this name, from the first of the roots that has it."""
    if not name or "\0" in name:
        return None
    return next((root / name for root in roots if (root / name).exists()), None)


def within(roots: Sequence[Path]) -> str:
    """In words, where a file is looked for: each folder once, and in full."""
    folders = list(dict.fromkeys(str(root.resolve()) for root in roots))
    return f"in {folders[0]}" if len(folders) == 1 else f"in one of {', '.join(folders)}"


def read_bytes(path: Path, expected: str, most: int = _BYTES) -> bytes:
    """All bytes of a file that ought to be there, and to have at most `most` of them."""
    try:
        return read_bounded(path, most)
    except (OSError, ValueError) as error:
        expected = f"the path of {expected} of at most {most >> 20:,} MiB"
        raise unreadable(FormatError, path, error, expected=expected) from error
