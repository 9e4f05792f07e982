"""A worker of a job on several hosts: it trains as long as there are tickets, and reports."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

import torch.distributed as dist

from purine.errors import RunError
from purine.job.crew import LEAVES, as_item
from purine.job.plan import JobPlan
from purine.job.status import TRAINS, Status, status_of
from purine.runtime.run import Run
from purine.trace.file import to_json
from purine.transports.open_world import OpenWorld
from purine.transports.world import host_lost

__all__ = ["Work"]

_REPORT = 0.2
"""Seconds between two reports, and for which tickets are taken at a time."""
_WAIT = 0.05
"""Seconds between two looks for tickets that somebody has put back."""


class Work:
    """The work of a worker, on a run of its host's part of the step."""

    def __init__(self, plan: JobPlan, run: Run, world: OpenWorld) -> None:
        self._run, self._world = run, world
        self._run.set_states(plan.values)
        self.iterations = 0
        """How many it has trained."""
        self._taken = 0
        """How many tickets it has and has not used."""
        self._items: list[object] = []
        self._reports = 0
        self._reported = self._began = monotonic()
        self._told = False
        """Whether the job is over for this worker."""
        self._traced = world.traced
        """Whether it has a trace to bring."""

    def until(self, stop: Callable[[], bool]) -> None:
        """Train until the job is over, the server tells this worker to leave, or `stop` returns
        true."""
        try:
            while not (stop() or self._over()):
                for result in self._run.steps_while(lambda: 0 if stop() else self._allowed()):
                    self._taken -= 1
                    self.iterations += 1
                    self._items.append(as_item(result))
                    if self._over(_REPORT):
                        break
                else:
                    sleep(_WAIT)
            self._leave()
        except (RunError, dist.DistError) as error:
            if self._told:
                return  # the server has ended, and did not wait for this worker
            if isinstance(error, RunError):
                raise
            server = self._world.server
            raise host_lost(server, "its store is gone", op="report", blob="tickets") from error

    def status(self) -> Status:
        """What this host does at this moment; any thread may ask."""
        return status_of(TRAINS, self._run)

    def _leave(self) -> None:
        """Send all complete and pending updates, and leave."""
        in_flight = self._run.steps_while(lambda: self._run.in_flight)
        self._items += map(as_item, in_flight)
        self._bring_trace()
        self._items.append(LEAVES)
        self._over()
        self._run.close()

    def _allowed(self) -> int:
        """The number of iterations that may still begin."""
        if self._taken < self._run.credit:
            seconds = max(monotonic() - self._began, _REPORT)
            count = self._run.credit + min(64, round(self.iterations / seconds * _REPORT))
            self._taken += self._world.ledger.take(self._world.number, count)
        return self._taken

    def _over(self, after: float = 0.0) -> bool:
        """Report completed iterations, if the last report is old enough; whether the job is
        over."""
        if monotonic() - self._reported >= after:
            if self._items:
                self._world.ledger.report(self._world.number, self._reports, self._items)
                self._reports += 1
                self._items = []
            self._reported = monotonic()
            self._told = self._told or self._world.told
            if self._traced and self._world.ledger.wants_traces:
                self._bring_trace()
        return self._told

    def _bring_trace(self) -> None:
        """Give the server what was recorded so far, once."""
        if self._traced:
            self._traced, trace = False, self._run.end_trace()
            text = to_json(trace.events, trace.edges, trace.clocks, trace.reads, arrows=False)
            self._world.ledger.bring_trace(self._world.number, text)
