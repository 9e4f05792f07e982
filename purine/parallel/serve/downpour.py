"""Downpour: workers send the sum of several gradients, and read the parameters at intervals.

Between two reads a worker continues with its own copy, with plain steps along its own gradients.
"""

from __future__ import annotations

from dataclasses import replace

from purine.parallel.serve.server import plain_step, push_rate, share_of
from purine.parallel.serve.worker import Worker

__all__ = ["downpour"]


def downpour(worker: Worker) -> None:
    """All workers share the parameters and the states of the solver."""
    push, fetch = worker.rule.count("push"), worker.rule.count("fetch")
    worker.take_tickets(versions=True)
    for parameter in worker.parameters:
        worker.share(parameter, bound=worker.rule.bound)
        for memory in worker.memories(parameter):
            worker.share(memory, bound=None)
        newest = worker.fetch(parameter, of=parameter, every=fetch)
        if fetch > 1:
            own = f"{parameter}/local"
            worker.state(own, parameter, first=parameter)
            newest = worker.last(f"{parameter}/current", parameter, own, newest)
        worker.read_as(parameter, newest, but=[worker.updates[parameter]])
        if push > 1:
            _accrue(worker, parameter, push)
    rates = {parameter: worker.rate(parameter) for parameter in worker.parameters}
    push_rate(worker, push=push, fetch=fetch)
    for parameter, rate in rates.items() if fetch > 1 else ():
        own, name = share_of(worker, rate), f"step/{parameter}"
        read, following = f"{parameter}/current", f"{parameter}/local/next"
        plain_step(worker, name, parameter, read, own, following)


def _accrue(worker: Worker, parameter: str, push: int) -> None:
    """Let the update read the sum of the gradients since the last one, and run at intervals."""
    gradient, name = worker.gradient(parameter), f"accrued/{parameter}"
    following, total = worker.state(name, parameter), worker.blob(f"{name}/total", parameter)
    worker.op(total, "aten.add.Tensor", [name, gradient], [total], of=parameter)
    empty, turns = worker.blob(f"{name}/empty", parameter), (push, push - 1)
    worker.op(empty, "aten.zeros_like", [total], [empty], of=parameter, turns=turns)
    worker.last(following, parameter, total, empty)
    update = worker.builder.ops[worker.updates[parameter]]
    inputs = tuple(total if name == gradient else name for name in update.inputs)
    update = replace(update, inputs=inputs, every=push, phase=push - 1)
    worker.builder.ops[update.name] = update
