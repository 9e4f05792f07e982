"""No credit stalls a graph that verifies: states, control edges and lanes cannot close a cycle."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from purine.core import Core, compile_plan
from purine.graph import Builder, Graph, Location, verify
from purine.graph.verify import problems

LANES = ("compute", "compute:1", "inbound", "io")


def tangled(seed: int, *, acyclic: bool) -> Graph:
    """Ops with states between any two of them, and many control edges across devices and lanes.

    Data and control edges follow a hidden order if the graph is to be `acyclic`; else control edges
    go anywhere.
    """
    draw = random.Random(seed)
    b = Builder()
    count = draw.randint(2, 14)
    order = list(range(count))
    draw.shuffle(order)
    place = {op: index for index, op in enumerate(order)}
    places = [Location(device=f"cpu:{number}") for number in range(3)]
    carried = [f"state{number}" for number in range(draw.randint(0, count))]
    for name in carried:
        b.blob(name, ())
    for op in range(count):
        b.blob(f"blob{op}", ())
    for op in range(count):
        sooner = [f"blob{other}" for other in range(count) if place[other] < place[op]]
        inputs = draw.sample(sooner, min(len(sooner), draw.randint(0, 2)))
        inputs += draw.sample(carried, min(len(carried), draw.randint(0, 2)))
        where, lane = draw.choice(places), draw.choice(LANES)
        b.op(f"op{op}", "Any", inputs, [f"blob{op}"], location=where, lane=lane)
    for name, op in zip(carried, draw.sample(range(count), len(carried)), strict=True):
        b.state(name, f"blob{op}")
    for _ in range(draw.randint(1, 2 * count)):
        one, other = draw.sample(range(count), 2)
        if acyclic and place[one] > place[other]:
            one, other = other, one
        b.control.add((f"op{one}", f"op{other}"))
    return b.graph()


def stalled(graph: Graph, credit: int, draw: random.Random, *, iterations: int = 7) -> bool:
    """Drive a core as lanes do, each of which runs its smallest token; whether it stops early."""
    plan = compile_plan(graph)
    core = Core(plan, start=3, credit=credit)
    queues: list[list[int]] = [[] for _ in plan.stations]
    running: dict[int, int] = {}
    ready = core.extend(3 + iterations)
    ran = 0
    while True:
        for token in ready:
            heappush(queues[plan.station[token % core.size]], token)
        for station, queue in enumerate(queues):
            if queue and station not in running:
                running[station] = heappop(queue)
        if not running:
            break
        ready = core.complete(running.pop(draw.choice(sorted(running))))
        ran += 1
    assert core.idle == (ran == iterations * core.size)
    return not core.idle


def has_cycle(graph: Graph) -> bool:
    return any("cycle" in str(problem) for problem in problems(graph))


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_graphs_with_control_edges_run_to_the_end(credit: int) -> None:
    for seed in range(200):
        graph = tangled(seed, acyclic=True)
        assert not has_cycle(graph)
        assert not stalled(graph, credit, random.Random(seed)), seed


def test_whatever_has_no_cycle_runs_to_the_end() -> None:
    """Control edges anywhere: either verify shows a cycle, or no credit stalls."""
    refused = 0
    for seed in range(300):
        graph = tangled(seed, acyclic=False)
        if has_cycle(graph):
            refused += 1
        else:
            assert not any(stalled(graph, credit, random.Random(seed)) for credit in (1, 2, 3))
    assert 30 < refused < 270


def test_a_state_from_the_last_op_to_the_first_is_no_cycle() -> None:
    """Nor with a control edge along it, which would close one were there no iterations."""
    b = Builder()
    for name in ("in", "mid", "out"):
        b.blob(name, ())
    b.op("first", "Any", ["in"], ["mid"])
    b.op("last", "Any", ["mid"], ["out"])
    b.state("in", "out")
    b.control.add(("first", "last"))
    graph = verify(b.graph())
    assert not any(stalled(graph, credit, random.Random(0)) for credit in (1, 2, 3))
    b.control.add(("last", "first"))
    assert has_cycle(b.graph())
