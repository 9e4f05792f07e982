"""Which line of the user's code a node, an error or a call comes from, as `FILE:LINE`."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import torch
from torch.fx import Node

from purine.errors import GraphError

__all__ = [
    "TORCH",
    "code_at",
    "definition_line",
    "error_line",
    "first_line",
    "is_called_by_user",
    "is_user_file",
    "refusal",
    "source_of",
    "user_line",
]

TORCH = os.path.dirname(torch.__file__) + os.sep

_IMPORTERS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_NOT_USERS = (TORCH, _IMPORTERS, "<eval_with_key>")
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_DECORATORS = os.path.join("torch", "utils", "_contextlib.py")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_user_file(file: str) -> bool:
    """Whether a file of code belongs neither to torch, to this package nor to Python."""
    return not _is_standard(file) and not file.startswith((*_NOT_USERS, "<string>"))


def is_called_by_user(frame: FrameType | None) -> bool:
    """Whether the code of a frame is the user's.

    Frames of Python's library and of torch's decorators are skipped: they only pass calls on.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_standard(file) and not file.endswith(_DECORATORS):
            return not file.startswith(_NOT_USERS)
        frame = frame.f_back
    return False


def user_line() -> str | None:
    """The innermost line of user code on the stack of the calling thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def refusal(
    what: str, expected: str, found: str, remedy: str, *, node: Node | None = None
) -> GraphError:
    """The error for the line of user code that a node comes from, or that is being traced."""
    where = user_line() if node is None else source_of(node)
    return GraphError(what, where=where, expected=expected, found=found, remedy=remedy)


def first_line(error: Exception) -> str:
    """The type of an exception and the first line of its text."""
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"


def source_of(node: Node) -> str | None:
    """The line of user code that a node of an exported program comes from."""
    return _innermost(_FRAME.findall(node.meta.get("stack_trace") or ""))


def error_line(error: BaseException) -> str | None:
    """The line of user code that raised; torch's message may hold it where the stack does not."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = _innermost([(frame.filename, str(frame.lineno)) for frame in frames])
    return raised or _innermost(_FRAME.findall(str(error)))


def definition_line(function: object) -> str | None:
    """The line where a function or method is defined; None where it is not written in Python."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def code_at(line: str | None) -> str:
    """The source code of a line that is given as `FILE:LINE`."""
    file, _, number = (line or "").rpartition(":")
    return linecache.getline(file, int(number)).strip() if number else ""


def _innermost(frames: Sequence[tuple[str, str]]) -> str | None:
    users = [frame for frame in frames if is_user_file(frame[0])]
    return ":".join(users[-1]) if users else None


def _is_standard(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD_LIBRARY)) and "site-packages" not in file
