"""The thread of a server that lets workers join: it answers their requests, and opens
connections."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from purine.errors import PurineError
from purine.runtime.workers import Workers
from purine.transports.open_world import OpenWorld, Question

__all__ = ["Greeter", "Life", "Seat", "meet"]

_LOOK = 0.05
"""Seconds between two looks for somebody who wants to join."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for a worker: the index `place` of its courier at the server, and its host."""

    place: int
    host: str


def meet(workers: Workers, world: OpenWorld, digest: str) -> Greeter | None:
    """Connect this host with the server; where it is the server, let workers join from now on."""
    for courier, post in workers.posts.items():
        if post.peer is None:
            workers.occupy(courier, None)
        elif post.carrier.of is not None:
            world.ready(digest)
            workers.occupy(courier, world.link())
    if world.host != world.server:
        return None
    seats = {
        number: Seat(courier, post.peer)
        for number, (courier, post) in enumerate(workers.posts.items())
        if post.peer is not None
    }
    return Greeter(world, workers, seats, digest)


@dataclass(frozen=True, slots=True)
class Life:
    """A worker that has joined: its connection, its seat, and the pushes of that seat `before` it.
    A `traced` one sends a trace."""

    link: int
    seat: int
    before: Mapping[str, int]
    traced: bool = False


class Greeter:
    """Gives free seats to workers that ask, for as long as it is open.

    A worker that asks while no seat is free waits for one.
    """

    def __init__(
        self, world: OpenWorld, workers: Workers, seats: Mapping[int, Seat], digest: str
    ) -> None:
        self._world, self._workers, self._seats, self._digest = world, workers, seats, digest
        self._busy: set[int] = set()
        """The seats that somebody was given and has not taken yet."""
        self.reached: dict[int, int] = {}
        """By seat the iteration that its workers have reported; without it, rounds tell."""
        self.lives: list[Life] = []
        """The workers that have come, in their order."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._greet, name="greeter", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> list[int]:
        """The seats of the workers that are present or joining."""
        away = self._workers.away
        return [n for n, seat in self._seats.items() if n in self._busy or not away(seat.place)]

    def dismiss(self, seat: int) -> None:
        """Tell the worker in a seat to send its remaining updates and leave."""
        link = next((life.link for life in reversed(self.lives) if life.seat == seat), None)
        if link is not None:
            self._world.dismiss(link)

    def pushes(self, life: Life) -> dict[str, int]:
        """The number of pushes of each shared state by a worker."""
        later = self.lives[self.lives.index(life) + 1 :]
        after: Mapping[str, int] = self._workers.core.applied[self._seats[life.seat].place]
        after = next((other.before for other in later if other.seat == life.seat), after)
        return {name: count - life.before.get(name, 0) for name, count in after.items()}

    def gone(self, life: Life) -> bool:
        """Whether a worker has left or died."""
        seat = self._seats[life.seat]
        later = self.lives[self.lives.index(life) + 1 :]
        return self._workers.away(seat.place) or any(other.seat == life.seat for other in later)

    @property
    def present(self) -> list[int]:
        """The seats of the workers that are present."""
        return [n for n, seat in self._seats.items() if not self._workers.away(seat.place)]

    def close(self) -> None:
        """Answer no more requests."""
        self._closed.set()
        self._thread.join()

    def _greet(self) -> None:
        asked, waiting = 0, list[Question]()
        while not self._closed.wait(_LOOK):
            with suppress(RuntimeError):  # of the store, at its end
                new = self._world.questions(asked)
                asked += len(new)
                waiting = [one for one in (*waiting, *new) if not self._seated(one)]

    def _seated(self, question: Question) -> bool:
        """Answer a request; False if it has to wait until a seat is free."""
        if question.seat is not None and question.seat not in self._seats:
            self._world.refuse(question)
            return True
        wanted = self._seats if question.seat is None else (question.seat,)
        with self._lock:
            free = [number for number in wanted if number not in self.taken]
            if not free:
                return False
            self._busy.add(free[0])
        seat = self._seats[free[0]]
        carrier = self._workers.core.carriers[seat.place]
        carried = self._world.begin + carrier.rounds * carrier.pace
        begin = self.reached.get(free[0], carried)
        self._world.answer(question, host=seat.host, begin=begin)
        threading.Thread(
            target=self._open, args=(free[0], question), name="link", daemon=True
        ).start()
        return True

    def _open(self, number: int, question: Question) -> None:
        """Open the connection to a worker, unless the worker is gone."""
        seat = self._seats[number]
        try:
            still = self._closed.is_set
            if self._world.confirmed(question, self._digest, lambda: not still()):
                transport = self._world.link(question, seat.host)
                before = Counter(self._workers.core.applied[seat.place])
                self._workers.occupy(seat.place, transport)
                self.lives.append(Life(question.link, number, before, question.traced))
                if question.traced:
                    self._world.tell_time(question)
        except (PurineError, RuntimeError, OSError):
            pass  # it has died meanwhile; its seat is free again
        finally:
            with self._lock:
                self._busy.discard(number)
