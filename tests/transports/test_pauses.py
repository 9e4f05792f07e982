"""Pauses between two looks: they grow with silence, and others can end them."""

from __future__ import annotations

from time import monotonic

import pytest

from purine.transports import pauses
from purine.transports.pauses import LONGEST, SHORTEST, Pauses


class Bell:
    """Notes how long it is waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def acquire(self, *, timeout: float) -> bool:
        self.seconds = timeout
        return False


@pytest.mark.parametrize(
    ("silence", "expected"), [(0.0, SHORTEST), (1e-3, 250e-6), (3e-3, 750e-6), (1.0, LONGEST)]
)
def test_a_pause_is_a_share_of_the_silence(
    silence: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, bell = [5.0], Pauses(), Bell()
    monkeypatch.setattr(pauses, "monotonic", lambda: now[0])
    monkeypatch.setattr(looks, "_bell", bell)
    looks.restart()
    now[0] += silence
    assert not looks.sleep(now[0] + 10)
    assert bell.seconds == pytest.approx(expected)


def test_a_pause_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks, bell = [5.0], Pauses(), Bell()
    monkeypatch.setattr(pauses, "monotonic", lambda: now[0])
    monkeypatch.setattr(looks, "_bell", bell)
    assert not looks.sleep(5.0 + 20e-6)
    assert bell.seconds == pytest.approx(20e-6)
    now[0] += 1.0
    assert looks.sleep(5.5)


def test_who_is_woken_looks_no_more() -> None:
    looks = Pauses()
    looks.wake()
    looks.wake()
    assert looks.sleep(monotonic() + 10)
    assert not looks.sleep(monotonic() + 10)
