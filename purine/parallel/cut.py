"""Cutting a step into stages, along the line of `flow`."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate as running
from itertools import pairwise

from purine.analysis.cost import PROFILE, seconds
from purine.analysis.infer import check, size_in_bytes
from purine.arguments import checked
from purine.errors import ConfigError
from purine.graph import NOTHING, Graph
from purine.graph.names import micro_batch, origin_of
from purine.nearest import unknown_name
from purine.parallel.flow import Flow, flow_of
from purine.parallel.halves import halve

__all__ = ["balanced_cut", "cut_at", "first_ops", "times_of_step"]

_SLACK = 1.01  # how much longer than the best possible the longest stage may take to move less


@checked
def balanced_cut(
    step: Graph, stages: int, *, times: Mapping[str, float] | None = None
) -> Mapping[str, int]:
    """A stage for every op of the step's batch half, such that the stages take equally long.

    Of the cuts whose longest stage is nearly the shortest possible, it is one with even stages and
    few bytes between them. The time of an op is estimated from its operations and its bytes, unless
    `times` has it in seconds, for example from a trace of the step.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=8)), lr=0.1)
    >>> stage = balanced_cut(step, 2)
    >>> stage["conv1"], stage["fc2"], stage["grad/conv1/convolution_backward"]
    (0, 1, 0)
    """
    step = check(step)
    flow = flow_of(step, halve(step))
    starts = _starts(step, flow)
    if not 1 <= stages <= len(starts):
        what = f"the net cannot be cut into {stages} stages"
        expected = f"1 to {len(starts)} stages: it has {len(starts)} ops that compute"
        remedy = "ask for fewer stages" if stages > 1 else "ask for at least one stage"
        raise ConfigError(what, expected, str(stages), remedy)
    spent = [0.0] * len(flow.forward)
    for name, position in flow.position.items():
        known = None if times is None else times.get(name)
        spent[position] += seconds(step.ops[name], step.blobs) if known is None else known
    spans = [sum(spent[a:b]) for a, b in zip(starts, [*starts[1:], len(spent)], strict=True)]
    crossing = _crossing(step, flow)
    firsts = _balanced(spans, [crossing[start] for start in starts], stages)
    return _stages(flow, [starts[first] for first in firsts])


@checked
def cut_at(step: Graph, names: Sequence[str]) -> Mapping[str, int]:
    """A stage for every op of the step's batch half: a new one begins at each op or block named.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=8)), lr=0.1)
    >>> stage = cut_at(step, ["conv2", "fc1"])
    >>> stage["pool1"], stage["pool2"], stage["loss"]
    (0, 1, 2)
    """
    step = check(step)
    flow = flow_of(step, halve(step))
    firsts = []
    for name in names:
        inside = (k for k, op in enumerate(flow.forward) if f"{op}/".startswith(f"{name}/"))
        first = next(inside, None)
        if first is None:
            expected = "names of ops of the net, or of what several names begin with"
            remedy, sort = "see `purine show` for the names", "op or block"
            raise unknown_name(
                ConfigError, sort, name, flow.forward, expected=expected, remedy=remedy
            )
        for state, span in _carrying(step, flow).items():
            if span[0] < first <= span[1]:
                opening, closing = (flow.forward[position] for position in span)
                what = f"a cut before {name!r} parts ops that carry state {state!r} on"
                expected = f"{opening!r} to {closing!r} in one stage"
                found = f"a cut before {flow.forward[first]!r}"
                remedy = f"cut before {opening!r}, or behind {closing!r}"
                raise ConfigError(what, expected, found, remedy, op=name, blob=state)
        firsts.append(first)
    whole = [0, *firsts, len(flow.forward)]
    for k, (begin, end) in enumerate(pairwise(whole)):
        if not any(step.ops[op].lane == "compute" for op in flow.forward[begin:end]):
            before, behind = ["the beginning", *names, "the end"][k : k + 2]
            expected = "names in the order in which the net computes them, each once"
            found = f"nothing to compute between {before} and {behind}"
            remedy = "sort the names as in the net, without the first op, and each once"
            raise ConfigError(f"stage {k} of the cut is empty", expected, found, remedy)
    return _stages(flow, firsts)


def first_ops(step: Graph, stage: Mapping[str, int]) -> tuple[str, ...]:
    """The names with which the stages after the first begin: the same cut for `cut_at`."""
    flow = flow_of(step, halve(step))
    firsts = {stage[name]: name for name in reversed(flow.forward)}
    return tuple(firsts[number] for number in sorted(firsts) if number)


@checked
def times_of_step(graph: Graph, times: Mapping[str, float]) -> dict[str, float]:
    """The seconds of a step's ops, from the times of the ops of a pipeline built from it.

    Stages are most even if they are cut once more, by a trace of the pipeline itself: concurrent
    ops take longer, and sums of gradients are added. The time of an op is the median over its
    micro-batches; a sum counts as part of the op that computes its last summand.

    >>> import purine as pu
    >>> step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=4)), lr=0.1)
    >>> graph = pu.parallel.pipeline(step, 2, devices="cpu:0-1", micro=2)
    >>> found = times_of_step(graph, {"micro0/conv1": 0.3, "micro1/conv1": 0.5, "lr": 0.1})
    >>> found
    {'conv1': 0.4}
    """
    spent: dict[tuple[str, bool], list[float]] = {}
    turns = set()
    for name, time in times.items():
        op = graph.ops.get(name)
        if op is None:
            what = f"the pipeline has no op {name!r} that a time is given for"
            expected = "a graph that `pipeline` made, and times of its own trace"
            found = f"a graph of {len(graph.ops)} ops without {name!r}"
            remedy = "pass the graph of the run whose trace it is"
            raise ConfigError(what, expected, found, remedy, op=name)
        adds = op.kind == "AddScaled"
        maker = graph.producers.get(op.inputs[1]) if adds else op
        origin = None if maker is None else origin_of(maker)
        if maker is not None and origin is not None and origin.micro is not None:
            head, micro, _ = origin.parts.partition(f"{micro_batch(origin.micro)}/")
            turn = f"{head}{micro}"
            turns.add(turn)
            spent.setdefault((maker.name.removeprefix(turn), adds), []).append(time)
    if not turns:
        return dict(times)
    medians: dict[str, float] = {}
    for (base, _), each in spent.items():
        share = len(each) / len(turns)  # there are fewer sums than micro-batches
        medians[base] = medians.get(base, 0.0) + statistics.median(each) * share
    return medians


def _stages(flow: Flow, firsts: Sequence[int]) -> Mapping[str, int]:
    return {name: bisect_right(firsts, position) for name, position in flow.position.items()}


def _starts(step: Graph, flow: Flow) -> list[int]:
    """The positions where stages may begin: at compute ops of the net, with the ops that they
    need."""
    whole = [(flow.position[name], flow.position[flow.owner[name]]) for name in flow.forward]
    whole += _carrying(step, flow).values()
    change = [0] * (len(flow.forward) + 2)
    for one, other in whole:
        change[min(one, other) + 1] += 1
        change[max(one, other) + 1] -= 1
    inside = list(running(change))
    starts = []
    begin = 0
    for position, name in enumerate(flow.forward):
        if step.ops[name].lane == "compute":
            if not inside[begin]:
                starts.append(begin)
            begin = position + 1
    return starts


def _carrying(step: Graph, flow: Flow) -> dict[str, tuple[int, int]]:
    """By state that the net updates, the first and last position of the ops that use it.

    A micro-batch reads the value of the one before it, so these ops have to be in one stage.
    """
    spans = {}
    for name, state in step.states.items():
        maker = step.producers.get(state.next)
        if maker is not None and maker.name in flow.position:
            users = [maker.name, *(op.name for op in step.consumers[name])]
            positions = [flow.position[op] for op in users if op in flow.position]
            spans[name] = min(positions), max(positions)
    return spans


def _crossing(step: Graph, flow: Flow) -> list[int]:
    """By position, the bytes that cross a cut before it."""
    change = [0] * (len(flow.forward) + 1)
    for name, blob in step.blobs.items():
        users = [op.name for op in step.consumers[name]]
        if name in step.producers:
            users.append(step.producers[name].name)
        positions = [flow.position[op] for op in users if op in flow.position]
        if name != NOTHING and positions:
            change[min(positions) + 1] += size_in_bytes(blob)
            change[max(positions) + 1] -= size_in_bytes(blob)
    return list(running(change))


def _balanced(spans: Sequence[float], crossing: Sequence[int], stages: int) -> list[int]:
    """The items with which the stages after the first begin."""
    ends = [0.0, *running(spans)]
    limit = _shortest(spans, stages) * _SLACK
    # By number of stages and items in them: what they cost, and where the last one begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for stage in range(1, stages + 1):
        row: dict[int, tuple[float, int]] = {}
        for end in range(stage, len(spans) - (stages - stage) + 1):
            for begin in range(end - 1, -1, -1):
                if ends[end] - ends[begin] > limit:
                    break
                if begin in best[-1]:
                    # Squares favour even stages; bytes count for the time that they travel.
                    spent = (ends[end] - ends[begin]) ** 2 / (limit or 1.0)
                    moved = crossing[begin] / PROFILE.device.bytes if begin else 0.0
                    total = best[-1][begin][0] + spent + moved
                    row[end] = min(row.get(end, (math.inf, 0)), (total, begin))
        best.append(row)
    firsts: list[int] = []
    end = len(spans)
    for row in reversed(best[1:]):
        end = row[end][1]
        firsts.append(end)
    return firsts[::-1][1:]


def _shortest(spans: Sequence[float], stages: int) -> float:
    """The least possible time of the longest of this many stages."""
    low, high = max(spans), sum(spans)
    for _ in range(50):
        middle = (low + high) / 2
        count, filled = 1, 0.0
        for span in spans:
            if filled + span > middle:
                count, filled = count + 1, 0.0
            filled += span
        low, high = (low, middle) if count <= stages else (middle, high)
    return high
