"""Does the link model of the simulator agree with an independent one?

Small cases of flows that share links are given to our `Flows` and to SimGrid (the package
`simgrid`, at flow level: its model CM02 without factors for TCP). Both tell when each flow ends.
Reported is the largest difference of a case. Without SimGrid only our times are printed. The last
line is JSON.

    pip install "purine[bench]" && python benchmarks/links.py
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from purine.simulator.network import Flows, Link

SETTINGS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "network/bandwidth-factor:1.0",
    "network/latency-factor:1.0",
    "network/crosstraffic:0",
    "precision/work-amount:1e-9",
    "precision/timing:1e-12",
)


@dataclass(frozen=True)
class Flow:
    """Bytes over links, from a moment on."""

    links: tuple[str, ...]
    size: float
    start: float = 0.0


@dataclass(frozen=True)
class Case:
    """Flows that share links, with the bytes per second of each, and one latency of all routes."""

    name: str
    rates: Mapping[str, float]
    flows: tuple[Flow, ...]
    latency: float = 0.0


def cases(drawn: int) -> list[Case]:
    """The cases: shapes that hosts make, and random ones."""
    g = 1.25e8
    line = {f"l{k}": g for k in range(4)}
    found = [
        Case("one flow", {"a": g}, (Flow(("a",), 1e6),), 5e-5),
        Case("two flows share a link", {"a": g}, (Flow(("a",), 1e6), Flow(("a",), 3e6)), 5e-5),
        Case(
            "eight flows share a link", {"a": g}, tuple(Flow(("a",), 1e6 * k) for k in range(1, 9))
        ),
        Case(
            "one begins later",
            {"a": g},
            (Flow(("a",), 4e6), Flow(("a",), 1e6, 0.01), Flow(("a",), 1e6, 0.02)),
        ),
        Case(
            "a long way and a short one",
            {"a": g, "b": g / 4},
            (Flow(("a", "b"), 2e6), Flow(("a",), 2e6), Flow(("b",), 2e6)),
            1e-4,
        ),
        Case(
            "a parking lot",
            line,
            (Flow(tuple(line), 2e6), *(Flow((name,), 2e6) for name in line)),
        ),
        Case(
            "a dumbbell",
            {**{f"in{k}": g for k in range(4)}, **{f"out{k}": g for k in range(4)}, "mid": g},
            tuple(Flow((f"in{k}", "mid", f"out{k}"), 1e6 * (k + 1)) for k in range(4)),
            1e-3,
        ),
    ]
    found += [star(hosts, pattern) for hosts in (3, 4, 6) for pattern in PATTERNS]
    return found + [random_case(seed) for seed in range(drawn)]


PATTERNS = {
    "to one": lambda n: [(k, 0) for k in range(1, n)],
    "from one": lambda n: [(0, k) for k in range(1, n)],
    "all to all": lambda n: [(a, b) for a in range(n) for b in range(n) if a != b],
    "a ring": lambda n: [(k, (k + 1) % n) for k in range(n)],
}


def star(hosts: int, pattern: str) -> Case:
    """Hosts at a switch, each with a link up and one down."""
    rates = {f"{way}{k}": 1.25e8 for way in ("up", "down") for k in range(hosts)}
    flows = tuple(
        Flow((f"up{a}", f"down{b}"), 1e6 * (1 + (a + 2 * b) % 3), 1e-3 * (a % 2))
        for a, b in PATTERNS[pattern](hosts)
    )
    return Case(f"{hosts} hosts at a switch, {pattern}", rates, flows, 1e-4)


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    rates = {f"l{k}": draw.choice([2.5e7, 1.25e8, 1.25e9]) for k in range(draw.randint(2, 6))}
    flows = tuple(
        Flow(
            tuple(draw.sample(sorted(rates), draw.randint(1, min(3, len(rates))))),
            draw.uniform(1e5, 5e6),
            draw.choice([0.0, draw.uniform(0, 0.05)]),
        )
        for _ in range(draw.randint(2, 10))
    )
    return Case(f"random {seed}", rates, flows, draw.choice([0.0, 1e-4]))


def ours(case: Case) -> list[float]:
    """When each flow ends, by our model."""
    flows, ends = Flows(), [0.0] * len(case.flows)
    links = {name: Link(name, rate) for name, rate in case.rates.items()}
    calendar: list[tuple[float, int, int, int]] = []
    number_of: dict[int, int] = {}
    version: dict[int, int] = {}
    for place, flow in enumerate(case.flows):
        heapq.heappush(calendar, (flow.start * 1e9, 0, place, 0))
    while calendar:
        now, ended, number, known = heapq.heappop(calendar)
        if not ended:
            flow = case.flows[number]
            number_of[flows.begin(now, [links[name] for name in flow.links], flow.size)] = number
        elif version.get(number) == known:
            ends[number_of[number]] = now / 1e9 + case.latency
            del version[number]
            flows.end(number)
        if calendar and calendar[0][0] <= now:
            continue
        for one, end in flows.settle(now).items():
            version[one] = version.get(one, 0) + 1
            heapq.heappush(calendar, (end, 1, one, version[one]))
    return ends


def theirs(every: list[Case]) -> list[list[float]]:
    """When the flows of all cases end, by SimGrid. Cases share no link, so one run has all."""
    import simgrid

    engine = simgrid.Engine(["links", *(f"--cfg={setting}" for setting in SETTINGS)])
    root = engine.netzone_root
    add = getattr(root, "add_netzone_full", None) or root.create_full_zone
    zone = add("cases")
    new_host = getattr(zone, "add_host", None) or zone.create_host
    new_link = getattr(zone, "add_link", None) or zone.create_link
    ends = [[0.0] * len(case.flows) for case in every]
    for number, case in enumerate(every):
        links = {}
        for name, rate in case.rates.items():
            links[name] = new_link(f"{number}.{name}", rate)
        for place, flow in enumerate(case.flows):
            source, target = (new_host(f"{number}.{place}.{end}", 1e9) for end in "ab")
            # The latency of a route is a link of its own, which carries this flow alone.
            wait = new_link(f"{number}.{place}.way", 1e15).set_latency(case.latency)
            route = [simgrid.LinkInRoute(one) for one in (wait, *(links[n] for n in flow.links))]
            zone.add_route(source, target, route, False)
            actor = getattr(source, "add_actor", None)
            act = sender(simgrid, source, target, flow, ends[number], place)
            if actor is not None:
                actor(f"{number}.{place}", act)
            else:
                simgrid.Actor.create(f"{number}.{place}", source, act)
    zone.seal()
    engine.run()
    return ends


def sender(simgrid, source, target, flow: Flow, ends: list[float], place: int):
    def act() -> None:
        if flow.start:
            simgrid.this_actor.sleep_until(flow.start)
        simgrid.Comm.sendto(source, target, int(flow.size))
        ends[place] = simgrid.Engine.clock

    return act


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--random", type=int, default=20, help="random cases")
    options = parser.parse_args()
    every = [
        Case(
            c.name, c.rates, tuple(Flow(f.links, int(f.size), f.start) for f in c.flows), c.latency
        )
        for c in cases(options.random)
    ]
    found = [ours(case) for case in every]
    try:
        other = theirs(every)
    except ImportError as error:
        for case, ends in zip(every, found, strict=True):
            print(f"{case.name}: {', '.join(f'{end * 1e3:.3f}' for end in ends)} ms")
        print(json.dumps({"cases": len(every), "simgrid": None, "why": str(error)}))
        return
    worst = []
    print("| case | flows | last end | largest difference |\n|---|---|---|---|")
    for case, mine, its in zip(every, found, other, strict=True):
        worst.append(max(abs(a - b) / b for a, b in zip(mine, its, strict=True)))
        print(f"| {case.name} | {len(mine)} | {max(mine) * 1e3:.3f} ms | {worst[-1]:.2e} |")
    print(
        json.dumps(
            {
                "cases": len(every),
                "flows": sum(len(case.flows) for case in every),
                "worst_difference": max(worst),
                "median_difference": statistics.median(worst),
                "within_1_percent": sum(one < 0.01 for one in worst),
            }
        )
    )


if __name__ == "__main__":
    main()
