"""Which line of the user's code something comes from."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable

from purine.importers.torch.patched import innermost

__all__ = ["code_at", "place_in", "place_of", "users_place"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def users_place(frames: Iterable[traceback.FrameSummary]) -> str | None:
    """The innermost of some frames that is neither torch's nor ours, as FILE:LINE."""
    return innermost([(frame.filename, str(frame.lineno)) for frame in frames])


def place_in(text: str) -> str | None:
    """The innermost place of the user's in the text of a traceback."""
    return innermost(_FRAME.findall(text))


def place_of(error: BaseException) -> str | None:
    """Where an error was raised; of a graph that torch ran, its message has the place of a node."""
    return users_place(traceback.extract_tb(error.__traceback__)) or place_in(str(error))


def code_at(place: str | None) -> str:
    """The line of code at a place."""
    file, _, line = (place or "").rpartition(":")
    return linecache.getline(file, int(line)).strip() if line else ""
