"""Credits that find their way full, or go only in part."""

from __future__ import annotations

import os

import pytest

from purine.transports.base import Event, Granted
from purine.transports.inbox import CREDIT, MESSAGE, Inbox


class Way:
    """A way to a peer that takes as many bytes as it has room for."""

    def __init__(self) -> None:
        self.room, self.taken, self.gone = 0, b"", False

    def write(self, peer: str, message: bytes) -> int:
        if self.gone:
            raise BrokenPipeError
        if not self.room:
            raise BlockingIOError
        count = min(self.room, len(message))
        self.room -= count
        self.taken += message[:count]
        return count

    @property
    def credits(self) -> list[tuple[int, int]]:
        """What arrived: iterations and puts."""
        messages = list(MESSAGE.iter_unpack(self.taken))
        assert all(channel == CREDIT for channel, _, _ in messages)
        return [(completed, sent) for _, sent, completed in messages]


def test_of_credits_that_find_no_room_the_newest_is_sent() -> None:
    way = Way()
    inbox = Inbox(way.write)
    for completed in range(1, 4):
        inbox.credit("host1", completed, 10 * completed)
    assert inbox.wait(0.0) == []
    assert way.taken == b""
    way.room = 100
    inbox.wait(0.0)
    assert way.credits == [(3, 30)]
    inbox.wait(0.0)
    assert way.credits == [(3, 30)]
    inbox.close()


def test_the_rest_of_a_credit_goes_before_the_next() -> None:
    for room in range(1, MESSAGE.size):
        way = Way()
        inbox = Inbox(way.write)
        way.room = room
        inbox.credit("host1", 1, 1)
        inbox.credit("host1", 2, 2)
        way.room = 3
        inbox.credit("host1", 3, 3)
        way.room = 100
        inbox.wait(0.0)
        assert way.credits[0][0] == 1
        assert way.credits[-1] == (3, 3)
        inbox.close()


def test_credits_to_a_peer_that_is_gone_are_dropped() -> None:
    way = Way()
    inbox = Inbox(way.write)
    inbox.credit("host1", 1, 0)
    way.gone = True
    inbox.wait(0.0)
    inbox.credit("host1", 2, 0)
    way.gone, way.room = False, 100
    inbox.wait(0.0)
    assert way.taken == b""
    inbox.close()


def test_looks_that_follow_each_other_at_once_are_left_out_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox(Way().write)
    take, give = os.pipe()
    looked: list[int] = []

    def read() -> list[Event]:
        looked.append(len(os.read(take, 16)))
        return [Granted("host1", looked[-1])]

    inbox.add(take, read)
    monkeypatch.setattr("purine.transports.inbox._APART", 60.0)
    assert inbox.wait(0.0) == []
    os.write(give, b"abc")
    assert inbox.wait(0.0) == []
    assert looked == []
    assert inbox.wait(60.0) == [Granted("host1", 3)]
    inbox.close()
    os.close(take)
    os.close(give)


def test_a_wait_reads_what_can_be_read() -> None:
    inbox = Inbox(Way().write)
    take, give = os.pipe()

    def read() -> list[Event]:
        return [Granted("host1", len(os.read(take, 16)))]

    inbox.add(take, read)
    os.write(give, b"abc")
    assert inbox.wait(60.0) == [Granted("host1", 3)]
    inbox.remove(take)
    os.write(give, b"abc")
    inbox.wake()
    assert inbox.wait(60.0) == []
    inbox.close()
    os.close(take)
    os.close(give)
