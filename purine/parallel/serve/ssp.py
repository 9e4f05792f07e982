"""Stale synchronous parallel: one copy of the parameters, and a bound on the lead of a worker.

Each iteration of a worker reads the newest parameters and updates them; no worker is more than the
bound ahead of the slowest. Hogwild is the same without a bound, and each worker has states of its
own solver. Each parameter is read and updated separately.
"""

from __future__ import annotations

from purine.parallel.serve.server import push_rate
from purine.parallel.serve.worker import Worker

__all__ = ["hogwild", "ssp"]


def ssp(worker: Worker) -> None:
    """All workers share the parameters and the states of the solver."""
    worker.take_tickets(versions=True)
    for parameter in worker.parameters:
        _served(worker, parameter)
        for memory in worker.memories(parameter):
            worker.share(memory, bound=None)
    push_rate(worker)


def hogwild(worker: Worker) -> None:
    """All workers share the parameters; each worker has its own states of the solver."""
    worker.take_tickets(versions=False)
    for parameter in worker.parameters:
        _served(worker, parameter)
    push_rate(worker)


def _served(worker: Worker, parameter: str) -> None:
    """Share a parameter. The step reads its newest version; its update reads the newest of its own
    time."""
    worker.share(parameter, bound=worker.rule.bound)
    newest = worker.fetch(parameter, of=parameter)
    worker.read_as(parameter, newest, but=[worker.updates[parameter]])
