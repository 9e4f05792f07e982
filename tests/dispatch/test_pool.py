"""Turns of floating lanes: each runs at one worker, none is lost, and no set of workers hangs."""

from __future__ import annotations

import random

import pytest

from purine.core import Core, compile_plan
from purine.dispatch.pool import Pool
from purine.graph import Builder, Filler, Graph, Location, verify
from purine.graph.nodes import floats

HOME = Location(device="cpu:0")


def floating_graph(draw: random.Random) -> Graph:
    """Parts of a few ops on lanes that float, sums of their results, and states that all read."""
    b = Builder()
    states = [f"weight{k}" for k in range(draw.randint(1, 3))]
    for name in states:
        b.blob(name, ())
        b.blob(f"{name}/next", ())
        b.state(name, f"{name}/next", filler=Filler())
    results: list[str] = []
    for part in range(draw.randint(1, 7)):
        read: list[str] = []
        for number in range(draw.randint(1, 5)):
            name = f"part{part}/op{number}"
            inputs = {draw.choice(states), *draw.sample(read, min(len(read), 2))}
            b.blob(name, ())
            b.op(name, "aten.add", sorted(inputs), [name], lane=f"float:{part}")
            read.append(name)
        results.append(read[-1])
    for name in states:
        b.op(f"update/{name}", "aten.add", [name, *results], [f"{name}/next"], lane="inbound")
    return b.graph()


@pytest.mark.parametrize("seed", range(200))
def test_workers_of_any_speed_run_each_turn_at_one_place(seed: int) -> None:
    draw = random.Random(seed)
    graph = verify(floating_graph(draw))
    plan, iterations, workers = compile_plan(graph), 4, draw.randint(1, 5)
    lanes = [n if floats(plan.stations[n][1]) else -1 for n in plan.station]
    core, pool = Core(plan, credit=draw.randint(1, 3)), Pool(lanes, range(workers))
    queues: list[list[int]] = [[] for _ in range(workers)]
    speeds = [draw.choice((1, 1, 1, 20)) for _ in range(workers)]
    ran: dict[tuple[int, int], set[int]] = {}
    order: list[int] = []

    def push(tokens: list[int]) -> None:
        for token in tokens:
            owner = 0 if lanes[token % core.size] < 0 else pool.owner(token)
            if owner is None:
                pool.offer(token)
            else:
                queues[owner].append(token)

    push(core.extend(iterations))
    while not core.idle:
        able = [n for n in range(workers) if queues[n] or pool.wants(n)]
        assert able, core.waiting()
        worker = draw.choices(able, [1 / speeds[n] for n in able])[0]
        if not queues[worker]:
            queues[worker] += pool.take(worker)
        token = queues[worker].pop(draw.randrange(len(queues[worker])))
        iteration, op = divmod(token, core.size)
        order.append(token)
        if lanes[op] >= 0:
            ran.setdefault((iteration, lanes[op]), set()).add(worker)
        push(core.complete(token))
        if lanes[op] >= 0:
            pool.complete(token)
    assert sorted(order) == list(range(iterations * core.size))
    assert all(len(places) == 1 for places in ran.values())


def test_a_worker_with_a_turn_takes_only_an_older_one() -> None:
    pool = Pool(lanes=[0, 1], workers=[0, 1])
    pool.offer(2 * 2 + 0)  # lane 0 of iteration 2
    assert pool.take(0) == [4]
    pool.offer(2 * 2 + 1)  # lane 1 of the same iteration
    assert not pool.wants(0)
    pool.offer(2 * 1 + 1)  # lane 1 of the iteration before
    assert pool.take(0) == [3]
    assert pool.take(1) == [5]
    assert not pool.wants(7), "it is not one of the workers"
