"""Gossip: workers send their parameters to each other, and there is no server.

Each worker has parameters and a weight. In every iteration it takes the weighted mean of its own
parameters and those in its mailbox. At intervals it sends half of its weight, with its parameters,
to the mailbox of another worker. The weights of all workers and mailboxes always add up to 1.

Weight in a mailbox does not learn. So a worker reads its mailbox more often than it sends.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from purine.graph import Filler
from purine.parallel.serve.worker import Worker

__all__ = ["gossip", "partners_of"]


def partners_of(worker: int, count: int, seed: int) -> tuple[int, ...]:
    """The receivers of a worker, in turn: each other worker once, in an order drawn by a seed.

    >>> partners_of(0, 4, seed=0)
    (1, 3, 2)
    """
    others = [other for other in range(count) if other != worker]
    random.Random(f"{seed}/{worker}").shuffle(others)
    return tuple(others)


def gossip(worker: Worker) -> None:
    """Receive in every iteration, and send to another worker every so many iterations."""
    worker.take_tickets(versions=False)
    if worker.count == 1:
        return
    homes: dict[object, list[str]] = {}
    for parameter in worker.parameters:
        homes.setdefault(worker.builder.blobs[parameter].location, []).append(parameter)
    for number, parameters in enumerate(homes.values()):
        _exchange(worker, parameters, f"gossip{number}")


def _exchange(worker: Worker, parameters: Sequence[str], group: str) -> None:
    """Send and merge the parameters of one device, which have a common weight."""
    every, builder = worker.rule.count("every"), worker.builder
    weight, at = f"{group}/weight", builder.blobs[parameters[0]].location
    for name in (weight, f"{weight}/received", f"{weight}/merged", f"{weight}/next"):
        builder.blob(name, (), "float64", at)
    builder.state(weight, f"{weight}/next", Filler("constant", {"value": 1 / worker.count}))
    trained = [worker.step.states[name].next for name in parameters]
    merged = [worker.blob(f"{name}/merged", name) for name in parameters]
    mailbox = _mailbox(worker, worker.number, parameters, group)
    worker.op(
        f"{group}/receive",
        "GossipReceive",
        [weight, mailbox[0], *trained, *mailbox[1:]],
        [
            f"{weight}/received",
            f"{mailbox[0]}/next",
            *merged,
            *(f"{name}/next" for name in mailbox[1:]),
        ],
        of=parameters[0],
    )
    worker.last(f"{weight}/merged", weight, weight, f"{weight}/received")
    kept = []
    for name, own, mean in zip(parameters, trained, merged, strict=True):
        kept.append(worker.last(f"{name}/kept", name, own, mean))
        builder.states[name] = replace(builder.states[name], next=kept[-1])
    partners = partners_of(worker.number, worker.count, worker.rule.count("partners"))
    halves = []
    for turn, partner in enumerate(partners):
        mailbox = _mailbox(worker, partner, parameters, group)
        halves.append(worker.blob(f"{weight}/sent{partner}", weight))
        worker.op(
            f"{group}/send{partner}",
            "GossipSend",
            [f"{weight}/merged", mailbox[0], *kept, *mailbox[1:]],
            [halves[-1], *(f"{name}/next" for name in mailbox)],
            of=parameters[0],
            turns=(every * len(partners), every * turn + every - 1),
        )
    worker.last(f"{weight}/next", weight, f"{weight}/merged", *halves)


def _mailbox(worker: Worker, owner: int, parameters: Sequence[str], group: str) -> list[str]:
    """Add the states of the mailbox of a worker: a weight, and sums for the parameters."""
    box = f"mail{owner}/{group}"
    weight = worker.blob(f"{box}/weight", f"{group}/weight")
    worker.builder.state(weight, worker.blob(f"{weight}/next", weight))
    names = [weight]
    for parameter in parameters:
        names.append(f"mail{owner}/{parameter}")
        worker.state(names[-1], parameter)
    for name in names:
        worker.share(name, bound=None)
    return names
