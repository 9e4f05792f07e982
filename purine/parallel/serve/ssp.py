"""Stale synchronous parallel: one copy of the parameters, and workers within a bound of each other.

Each iteration of a worker reads the newest parameters and updates them; no worker is more than the
bound ahead of the slowest. Hogwild is the same without a bound, where each worker has the states of
its own solver. Each parameter is read and updated by itself.
"""

from __future__ import annotations

from purine.parallel.serve.server import push_rate
from purine.parallel.serve.worker import Worker

__all__ = ["hogwild", "ssp"]


def ssp(worker: Worker) -> None:
    """Parameters and what the solver remembers of them are one value of all workers."""
    worker.take_tickets(versions=True)
    for parameter in worker.parameters:
        _served(worker, parameter)
        for memory in worker.memories(parameter):
            worker.share(memory, bound=None)
    push_rate(worker)


def hogwild(worker: Worker) -> None:
    """Parameters are one value of all workers, and each worker has the rest of a solver."""
    worker.take_tickets(versions=False)
    for parameter in worker.parameters:
        _served(worker, parameter)
    push_rate(worker)


def _served(worker: Worker, parameter: str) -> None:
    """Share a parameter; the step reads its newest version, and its update that of its own time."""
    worker.share(parameter, bound=worker.rule.bound)
    newest = worker.fetch(parameter, of=parameter)
    worker.read_as(parameter, newest, but=[worker.updates[parameter]])
