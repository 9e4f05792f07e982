"""Files beside a definition: finding them, reading them, and writing one whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from purine.errors import ConfigError, FormatError

__all__ = ["located", "read_bytes", "write_whole"]


def located(name: str, roots: Sequence[Path]) -> Path | None:
    """The file or folder of this name, from the first of the roots that has it."""
    if not name or "\0" in name:
        return None
    found = (root / name for root in roots)
    return next((path for path in found if path.exists()), None)


def read_bytes(path: Path, expected: str) -> bytes:
    """All bytes of a file that ought to be there."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FormatError(
            "cannot read the file",
            where=str(path),
            expected=f"the path of {expected}",
            found=reason or str(error),
            remedy="correct the path or its permissions",
        ) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "cannot write the file",
            where=str(path),
            expected="a path that can be written",
            found=str(error),
            remedy="free space there, or choose another path",
        ) from error
