"""Local SGD and DiLoCo: a worker takes several steps, and adds its change to the shared
parameters."""

from __future__ import annotations

from purine.parallel.serve.worker import Worker

__all__ = ["local", "outer_rate"]


def outer_rate(worker: Worker) -> tuple[float, float | None]:
    """The rate by which shared parameters move along the change of a worker, and its momentum: by
    the mean change of all workers, or with DiLoCo's Nesterov momentum."""
    rule, count = worker.rule, worker.count
    if rule.scheme == "local":
        return 1.0 / count, None
    return rule.number("outer_lr") / count, rule.number("outer_momentum")


def local(worker: Worker) -> None:
    """The shared parameters move along the changes of the workers."""
    every, (rate, momentum) = worker.rule.count("every"), outer_rate(worker)
    worker.take_tickets(versions=False)
    for parameter in worker.parameters:
        served, start = f"outer/{parameter}", f"start/{parameter}"
        following = worker.state(served, parameter, first=parameter)
        worker.share(served, bound=worker.rule.bound, under=parameter)
        newest = worker.fetch(served, of=parameter, every=every)
        begun = worker.state(start, parameter, first=parameter)
        worker.last(begun, parameter, start, newest)
        current = worker.last(f"{parameter}/current", parameter, parameter, newest)
        worker.read_as(parameter, current)
        inputs = [served, begun, worker.step.states[parameter].next]
        outputs, settings = [following], {"rate": rate}
        if momentum is not None:
            velocity = f"outer_momentum/{parameter}"
            outputs.append(worker.state(velocity, parameter))
            inputs.append(velocity)
            settings["momentum"] = momentum
            worker.share(velocity, bound=None)
        kind = "OuterStep" if momentum is None else "OuterMomentum"
        turns, name = (every, every - 1), f"outer/{parameter}/update"
        worker.op(name, kind, inputs, outputs, settings, of=parameter, turns=turns)
