"""The server of a job whose workers are on other hosts, and join and leave.

A `Crew` takes the place of a `Run` in `Training`. Its iterations are those that workers report,
each once, in the order of the reports; workers do not wait for the server to read them. After the
last report, all workers send their remaining updates and leave; only then the net is measured.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

from purine.errors import RunError
from purine.graph import ROUND, Graph
from purine.runtime.executor import Activity
from purine.runtime.greeter import Greeter, Life
from purine.runtime.result import Result
from purine.runtime.run import Run
from purine.trace.file import from_json
from purine.trace.gather import merged
from purine.trace.trace import Trace
from purine.transports.open_world import OpenWorld

__all__ = ["LEAVES", "Crew", "as_item"]

LEAVES = "leaves"
"""The last item that a worker reports, unless it dies."""
_LOOK = 0.05
"""Seconds between two looks for reports."""
_FAREWELL = 30.0
"""Seconds that workers have at the end to bring what is left."""
_ALONE = 60.0
"""Seconds that a server without a worker of its own waits for somebody to join."""
_log = logging.getLogger("purine")


def as_item(result: Result) -> list[object]:
    """The result of a worker's iteration for a report: its scalar outputs."""
    numbers = {name: value.item() for name, value in result.outputs.items() if value.numel() == 1}
    return [result.own, result.staleness, result.missed, numbers]


def _result(worker: int, item: list[Any]) -> Result:
    own, staleness, missed, numbers = item
    outputs = {name: torch.tensor(value) for name, value in numbers.items()}
    return Result(0, outputs, (), worker, own, staleness, missed)


@dataclass
class _Account:
    """A worker that has joined: the number of its reports, and of the iterations in them."""

    life: Life
    reports: int = 0
    iterations: int = 0
    leaves: bool = False


class Crew:
    """The workers of a job, which train `total` iterations together, as the server sees them.

    `run` is that of the server, where all of them have their couriers; it may have a worker too.
    """

    def __init__(self, run: Run, world: OpenWorld, *, total: int) -> None:
        self._run, self._world, self._total = run, world, total
        self.graph: Graph = run.graph
        self.record = False
        self.iteration = 0
        """How many iterations were reported."""
        self._unread: deque[Result] = deque()
        self._accounts: dict[int, _Account] = {}
        """By link the workers that are here, or have something left to report."""
        self._known = 0
        """How many workers have ever come."""
        self._looked = self._seen = monotonic()
        self._traces: dict[int, Trace] = {}
        """By link what workers have recorded."""
        self._taken = 0
        """How many tickets the server's own worker has and has not used."""
        self._begun = self._over = False
        rounds = (op for op in run.graph.ops.values() if op.kind == ROUND)
        here = (op.whole("of") for op in rounds if op.location.host == world.server)
        self._own = next(here, None)
        """The number of the server's own worker."""
        self._results: Iterator[Result] | None = None

    @property
    def in_flight(self) -> int:
        """Nobody waits for what workers have begun: it is not in the checkpoint either."""
        return 0

    def steps(self, count: int) -> Iterator[Result]:
        """The next results of any worker."""
        for _ in range(count):
            yield self._next()

    def evaluate(self, graph: Graph) -> dict[str, float]:
        """The means of a graph's outputs over the test set, with the parameters as they are now."""
        return self._run.evaluate(graph)

    def set_states(self, values: Mapping[str, Tensor]) -> None:
        """Replace the values of states before the first step."""
        self._run.set_states(values)

    def save(self, folder: Path, *, extra: Mapping[str, object], keep: int) -> Path:
        """Write a checkpoint, while workers continue."""
        return self._run.save(folder, extra=extra, keep=keep, iteration=self.iteration)

    def load(self, folder: Path) -> int:
        """Continue from a checkpoint; returns its iteration."""
        self.iteration = self._run.load(folder)
        return self.iteration

    def gathered_trace(self) -> Trace:
        """What this host and the workers have recorded, on the clock of this host.

        From now on nothing is recorded. Workers that joined later have recorded nothing.
        """
        if not self._begun:
            return Trace()
        own, greeter, ends = self._run.end_trace(), self._greeter(), monotonic() + _FAREWELL
        self._world.ledger.ask_for_traces()
        awaited = {life.link: life for life in greeter.lives if life.traced}
        while awaited and monotonic() < ends:
            gone = [link for link, life in awaited.items() if greeter.gone(life)]
            for link in list(awaited):
                text = self._world.ledger.trace_of(link)
                if text is not None:
                    self._traces[link] = Trace(*from_json(json.loads(text)))
                if text is not None or link in gone:
                    del awaited[link]
            self._serve(_LOOK)
        return merged([own, *self._traces.values()])

    def activity(self) -> Activity:
        """The current activity of the server."""
        return replace(self._run.activity(), completed=self.iteration)

    def close(self) -> None:
        """Tell all workers to leave, and end the threads of the run."""
        self._end()
        self._run.close()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is None:
            self._end()
        self._world.end()
        self._run.__exit__(kind, *details)

    def _next(self) -> Result:
        greeter = self._greeter()
        while not self._unread:
            if self._own is not None:
                self._train()
            else:
                sleep(max(0.0, self._looked + _LOOK - monotonic()))
            if monotonic() >= self._looked + _LOOK:
                self._look(greeter)
        result = replace(self._unread.popleft(), iteration=self.iteration)
        self.iteration += 1
        if self.iteration == self._total:
            self._end()
        return result

    def _greeter(self) -> Greeter:
        """The greeter of the run, which begins to serve now at the latest."""
        if not self._begun:
            self._begun, self._seen = True, monotonic()
            self._world.ledger.begin(self.iteration, self._total)
            self._run.serve(lambda run: True)
        assert self._run.greeter is not None
        return self._run.greeter

    def _train(self) -> None:
        assert self._own is not None
        if self._results is None:
            self._results = self._run.steps_while(self._allowed)
        for result in self._results:
            self._taken -= 1
            self._unread.append(replace(result, worker=self._own))
            return
        self._results = None
        sleep(_LOOK)

    def _allowed(self) -> int:
        """The number of iterations that may still begin here."""
        if self._taken < self._run.credit:
            count = self._run.credit
            self._taken += self._world.ledger.take(self._world.number, count)
        return self._taken

    def _look(self, greeter: Greeter) -> None:
        """Read the reports of workers, and note which have joined and left."""
        self._looked = monotonic()
        self._serve(0.0)
        changed = len(greeter.lives) > self._known
        for life in greeter.lives[self._known :]:
            self._accounts[life.link] = _Account(life)
            _log.info("worker %d has joined", life.seat)
        self._known = len(greeter.lives)
        for link, account in list(self._accounts.items()):
            gone = greeter.gone(account.life)
            self._read(link, account, greeter)
            if gone:
                changed = True
                del self._accounts[link]
                self._world.ledger.put_back(self._world.ledger.taken(link) - account.iterations)
                self._note_gone(account)
        if changed:
            present = {account.life.seat: link for link, account in self._accounts.items()}
            self._world.ledger.note_present(present)
        if greeter.taken or self._own is not None:
            self._seen = self._looked
        elif self._looked - self._seen > _ALONE:
            self._give_up()

    def _serve(self, seconds: float) -> None:
        """Let workers go on for some time; raises what has failed."""
        once = iter((False, True))
        self._run.serve(lambda run: next(once), look=seconds)

    def _read(self, link: int, account: _Account, greeter: Greeter) -> None:
        ledger = self._world.ledger
        while (items := ledger.reported(link, account.reports)) is not None:
            account.reports += 1
            for item in items:
                if item == LEAVES:
                    account.leaves = True
                    continue
                account.iterations += 1
                greeter.reached[account.life.seat] = item[0] + 1
                self._unread.append(_result(account.life.seat, item))

    def _note_gone(self, account: _Account) -> None:
        number, left = account.life.seat, len(self._accounts) + (self._own is not None)
        if account.leaves:
            _log.info("worker %d has left", number)
        else:
            _log.warning("worker %d is lost; the job continues with %d", number, left)

    def _give_up(self) -> None:
        raise RunError(
            f"no worker has been present for {_ALONE:.0f} s",
            expected="at least one worker on another host",
            found="none",
            remedy="start the job again with --resume: the last checkpoint is intact",
        )

    def _end(self) -> None:
        """Tell all workers to leave, and wait for their remaining updates."""
        if self._over or not self._begun:
            return
        self._over = True
        self._world.end()
        greeter, ends = self._greeter(), monotonic() + _FAREWELL
        self._run.serve(lambda run: not greeter.taken or monotonic() > ends)
        if greeter.present:
            late = ", ".join(map(str, greeter.present))
            _log.warning("worker %s does not end; the updates that it has not sent are lost", late)
