"""Files that appear whole or not at all: a draft on disk takes their place."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from purine.errors import ConfigError

__all__ = ["put_in_place", "write_whole"]


def put_in_place(path: Path, data: bytes | str) -> None:
    """Write a file, text as UTF-8; an OSError is the caller's to tell."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file that a user named."""
    try:
        put_in_place(path, data)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "cannot write the file",
            where=str(path),
            expected="a path that can be written",
            found=str(error),
            remedy="free space there, or choose another path",
        ) from error
