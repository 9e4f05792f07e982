"""Parts of torch and Python that are others while a module is traced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["replaced"]


@contextmanager
def replaced(others: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """Give attributes of modules and classes other values for a while."""
    before = []
    try:
        for owner, name, value in others:
            before.append((owner, name, name in vars(owner), vars(owner).get(name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, own, value in reversed(before):
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
