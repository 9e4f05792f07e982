"""The rate of updates of parameters that all workers share."""

from __future__ import annotations

from purine.parallel.serve.worker import Worker

__all__ = ["plain_step", "push_rate", "share_of"]

_PUSHES = "pushes"


def push_rate(worker: Worker, *, push: int = 1, fetch: int = 1) -> None:
    """Divide the rate of the updates of a worker by the number of workers.

    The gradient of a worker is the mean over its own batch, and synchronous training takes the mean
    over all. With `stale_rate` the divisor is 1 + the number of updates since the parameters were
    read, which is about the number of workers if these are equally fast. A worker updates every
    `push` iterations, and reads every `fetch`.
    """
    readers: dict[str, list[str]] = {}
    for parameter in worker.parameters:
        readers.setdefault(worker.rate(parameter), []).append(worker.updates[parameter])
    for rate, updates in readers.items():
        if worker.rule.value("stale_rate"):
            used = _stale(worker, rate, push=push, fetch=fetch)
        else:
            used = share_of(worker, rate)
        for name in updates:
            worker.builder.ops[name] = worker.builder.ops[name].renamed({rate: used})


def share_of(worker: Worker, rate: str) -> str:
    """The blob with a rate divided by the number of workers."""
    share = f"{rate}/share"
    if worker.count == 1 or share in worker.builder.blobs:
        return rate if worker.count == 1 else share
    worker.blob(share, rate)
    worker.op(share, "aten.mul.Scalar", [rate], [share], {"other": 1.0 / worker.count}, of=rate)
    return share


def plain_step(
    worker: Worker, name: str, parameter: str, read: str, rate: str, following: str
) -> None:
    """Add an op that moves what a worker has of a parameter along its gradient, without memory."""
    update = worker.step.ops[worker.updates[parameter]]
    known = ("lr_mult", "weight_decay")
    settings = {key: update.attributes[key] for key in known if key in update.attributes}
    inputs = [read, worker.gradient(parameter), rate]
    worker.op(name, "SgdUpdate", inputs, [following], settings, of=parameter)


def _stale(worker: Worker, rate: str, *, push: int, fetch: int) -> str:
    """A rate divided by 1 + staleness; the first call adds the count of updates."""
    builder, turns = worker.builder, (push, push - 1)
    taken = f"{_PUSHES}/taken"
    if _PUSHES not in builder.states:
        following = worker.counter(_PUSHES)
        read = worker.fetch(_PUSHES, of=rate, every=fetch)
        if fetch > 1:
            kept = worker.state(f"{_PUSHES}/seen", _PUSHES)
            worker.last(kept, _PUSHES, f"{_PUSHES}/seen", read)
        worker.blob(taken, _PUSHES)
        worker.op(taken, "Take", [_PUSHES], [taken, following], of=rate, turns=turns)
        # The count is taken when the update is made: once the gradients are there.
        makers = {worker.step.producers[border].name for border in worker.halves.gradients.values()}
        builder.control |= {(maker, taken) for maker in makers}
    seen = f"{_PUSHES}/seen/next" if fetch > 1 else f"{_PUSHES}/fetched"
    stale = worker.blob(f"{rate}/stale", rate)
    worker.op(stale, "StaleRate", [rate, seen, taken], [stale], of=rate, turns=turns)
    return stale
