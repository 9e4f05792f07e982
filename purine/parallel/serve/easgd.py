"""Elastic averaging: each worker trains parameters of its own, tied to a shared center."""

from __future__ import annotations

from dataclasses import replace

from purine.parallel.serve.worker import Worker

__all__ = ["alpha_of", "easgd"]

_STIFFNESS = 0.9
"""What the moves of all workers add up to, where nothing else is said."""


def alpha_of(worker: Worker) -> float:
    """By which part of their difference a worker and the center move."""
    given = worker.rule.value("alpha")
    return _STIFFNESS / worker.count if given is None else worker.rule.number("alpha")


def easgd(worker: Worker) -> None:
    """At intervals, a worker and the center move towards each other."""
    every, alpha = worker.rule.count("every"), alpha_of(worker)
    worker.take_tickets(versions=False)
    for parameter in worker.parameters:
        trained = worker.step.states[parameter].next
        center = f"center/{parameter}"
        following = worker.state(center, parameter, first=parameter)
        worker.share(center, bound=None, under=parameter)
        moved = worker.blob(f"{parameter}/moved", parameter)
        worker.op(
            f"move/{parameter}",
            "ElasticMove",
            [center, trained],
            [following, moved],
            {"alpha": alpha},
            of=parameter,
            turns=(every, every - 1),
        )
        kept = worker.last(f"{parameter}/kept", parameter, trained, moved)
        state = worker.builder.states[parameter]
        worker.builder.states[parameter] = replace(state, next=kept)
