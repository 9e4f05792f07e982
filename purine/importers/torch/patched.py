"""Attributes of torch's classes, replaced while a module is traced and restored afterwards."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import torch
from torch.fx import Node

__all__ = [
    "TORCH",
    "called_by_user",
    "innermost",
    "is_tracing",
    "is_users",
    "patched",
    "source_of",
    "tracing",
    "users_line",
]

TORCH = os.path.dirname(torch.__file__) + os.sep
_OTHERS = (
    TORCH,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    "<eval_with_key>",
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_DECORATORS = os.path.join("torch", "utils", "_contextlib.py")
_LIBRARY = os.path.dirname(os.__file__) + os.sep

_LOCK = threading.RLock()
_tracers: list[int] = []  # the thread that traces, once for each trace within another

_ABSENT = object()


@contextmanager
def tracing() -> Iterator[None]:
    """Let the calling thread alone trace; patched functions do what they always do in others."""
    with _LOCK:
        _tracers.append(threading.get_ident())
        try:
            yield
        finally:
            _tracers.pop()


def is_tracing() -> bool:
    """Whether the calling thread is the one that traces."""
    return threading.get_ident() in _tracers


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Let an attribute of a class or a module be `value`, and bring back what it was before."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def is_users(file: str) -> bool:
    """Whether a file of code is neither torch's nor ours nor of Python's library."""
    return not _is_library(file) and not file.startswith((*_OTHERS, "<string>"))


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", _LIBRARY)) and "site-packages" not in file


def source_of(node: Node) -> str | None:
    """The user's line that a node of a program comes from."""
    return innermost(_FRAME.findall(node.meta.get("stack_trace") or ""))


def innermost(frames: Sequence[tuple[str, str]]) -> str | None:
    """The innermost of some frames, pairs of file and line, that is the user's."""
    users = [frame for frame in frames if is_users(frame[0])]
    return ":".join(users[-1]) if users else None


def users_line() -> str | None:
    """The user's innermost line on the stack of the calling thread, as `file:line`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def called_by_user() -> bool:
    """Whether the function that asks was called from the user's code, and not by torch itself.

    Python's library and torch's decorators only pass calls on. Other threads than the one that
    traces do not count.
    """
    if not is_tracing():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_library(file) and not file.endswith(_DECORATORS):
            return not file.startswith(_OTHERS)
        frame = frame.f_back
    return False
