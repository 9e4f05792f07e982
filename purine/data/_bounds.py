"""What a file says of its own size, held against the memory there is before anything is read."""

from __future__ import annotations

from pathlib import Path

from purine.errors import DataError
from purine.machine.capacity import available_memory

__all__ = ["refuse_larger_than_memory"]


def refuse_larger_than_memory(path: Path, size: int, what: str) -> None:
    """Raise `DataError` where the values of `what`, of `size` bytes, cannot be held in memory."""
    there = available_memory()
    if size > there:
        raise DataError(
            f"{what} is too large",
            where=str(path),
            expected=f"at most {there:,} bytes, the memory that is available",
            found=f"{size:,} bytes of values, by its header",
            remedy="check the file, or store the arrays as .npy files in a folder, "
            "which are read as they are needed",
        )
