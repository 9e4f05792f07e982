"""Delays for runs of workers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from purine.runtime.buffers import Buffers


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ops wait for a random time, and those of some workers more often than others."""
    draw, plain = random.Random(), Buffers.run

    def slow(self: Buffers, token: int) -> None:
        op = self.program.graph.ops[self.program.plan.ops[token % self.size]]
        if draw.random() < 0.05 * (1 + op.worker):
            time.sleep(draw.random() * 2e-3)
        plain(self, token)

    monkeypatch.setattr(Buffers, "run", slow)
    return draw.seed
