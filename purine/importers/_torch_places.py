"""Which line of the user's code something comes from."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterable

import torch

__all__ = ["TORCH", "code_at", "place_in", "place_of", "users_place"]

TORCH = os.path.dirname(torch.__file__) + os.sep

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Names such as <string> and <eval_with_key> belong to code that was generated.
_NOT_THE_USERS = (TORCH, os.path.dirname(os.path.dirname(__file__)), "<")


def users_place(frames: Iterable[traceback.FrameSummary | tuple[str, str]]) -> str | None:
    """The innermost of some frames that is neither torch's nor ours, as FILE:LINE."""
    named = [(f.filename, str(f.lineno)) if not isinstance(f, tuple) else f for f in frames]
    users = [frame for frame in named if not frame[0].startswith(_NOT_THE_USERS)]
    return ":".join(users[-1]) if users else None


def place_in(text: str) -> str | None:
    """The innermost place of the user's in the text of a traceback."""
    return users_place(_FRAME.findall(text))


def place_of(error: BaseException) -> str | None:
    """Where an error was raised; of a graph that torch ran, its message has the place of a node."""
    return users_place(traceback.extract_tb(error.__traceback__)) or place_in(str(error))


def code_at(place: str | None) -> str:
    """The line of code at a place."""
    file, _, line = (place or "").rpartition(":")
    return linecache.getline(file, int(line)).strip() if line else ""
