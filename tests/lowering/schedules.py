"""Random schedules over several hosts, and schedules of these that are broken on purpose.

A schedule is a step: micro-batches go forward and backward through stages that lie on some hosts.
Control edges give the order of each device, and credits: a micro-batch may start when an earlier
one has come back. The order of a good schedule is drawn among those that all edges allow. What
breaks one is told by its name in `BREAKS`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

import purine as pu
from purine.analysis.infer import problems
from purine.core import compile_plan
from purine.dispatch.ends import ends_of
from purine.dispatch.host_core import TOKEN, HostCore
from purine.errors import GraphError
from purine.graph import Builder, Graph, Location, State
from purine.lowering.host_rules import host_problems, problems_of_parts
from purine.lowering.hosts import hosts_of, part_of
from purine.lowering.together import REDUCE, Collective
from purine.transports.inproc import InprocWorld, inproc_worlds

__all__ = ["BREAKS", "Schedule", "broken", "good", "refusal", "run_to_end", "stalls"]


@dataclass(frozen=True)
class Schedule:
    """A step, its parts where they were changed, and the slots of a blob at its receiver."""

    step: Graph
    parts: Mapping[str, Graph] | None = None
    slots: int | None = None
    how: str = ""


def good(seed: int) -> Schedule:
    """A schedule without a deadlock: micro-batches in stages, or replicas with collectives."""
    draw = random.Random(seed)
    if seed % 10 == 9:
        return Schedule(_together(draw))
    return Schedule(_Stages(draw).step())


def broken(seed: int) -> Schedule:
    """A schedule with a deadlock; all sorts take turns."""
    draw = random.Random(seed)
    names = list(BREAKS)
    for attempt in range(1000):
        how = names[(seed + attempt // 50) % len(names)]
        found = BREAKS[how](draw)
        if found is not None:
            return replace(found, how=how)
    raise AssertionError("no schedule could be broken")


def refusal(schedule: Schedule) -> GraphError | None:
    """What `check` says of a schedule; None if it finds nothing."""
    if schedule.parts is not None:
        return next(problems_of_parts(schedule.parts), None)
    found = problems(schedule.step)
    if not found and schedule.slots is not None:
        parts = {host: part_of(schedule.step, host) for host in hosts_of(schedule.step)}
        found = list(problems_of_parts(parts, slots=schedule.slots))
    return next(iter(found or host_problems(schedule.step)), None)


def stalls(schedule: Schedule) -> bool:
    """Whether the cores of all hosts come to a stand, with nothing under way between them."""
    parts = schedule.parts
    if parts is None:
        parts = {host: part_of(schedule.step, host) for host in hosts_of(schedule.step)}
    cores: dict[str, HostCore] = {}
    arrivals: dict[tuple[str, str, int], int] = {}
    calls: dict[tuple[str, int], Collective] = {}
    for host, part in parts.items():
        plan = compile_plan(part)
        ends = ends_of(part, host, plan)
        cores[host] = HostCore(
            plan,
            arrivals=ends.arrivals.values(),
            puts=ends.puts,
            credit=1,
            slots=schedule.slots,
            turns=ends.turns,
        )
        arrivals |= {(source, host, number): op for (source, number), op in ends.arrivals.items()}
        calls |= {(host, op): one for op, one in ends.collectives.items()}
    outgoing = {
        host: ends_of(part, host, cores[host].plan).outgoing for host, part in parts.items()
    }
    met: dict[object, list[tuple[str, int]]] = {}
    todo = [(host, token) for host, core in cores.items() for token in core.extend(2)]
    while todo:
        host, token = todo.pop()
        core, token = cores[host], token & TOKEN
        iteration, op = divmod(token, core.size)
        done = [(host, token)]
        if (host, op) in calls:
            one = calls[host, op]
            call = one.op if one.kind == REDUCE else one.number
            there = met.setdefault((one.order, call, iteration), [])
            there.append((host, token))
            done = there if len(there) == len(one.hosts) else []
        for at, own in done:
            before = cores[at].completed
            todo += [(at, ready) for ready in cores[at].complete(own)]
            if cores[at].completed != before:
                for other, peer in cores.items():
                    todo += [(other, ready) for ready in peer.grant(at, cores[at].completed)]
        for channel in outgoing[host]:
            if channel.op == core.plan.ops[op]:
                arrival = arrivals[host, channel.target, channel.number]
                ready = cores[channel.target].arrive(arrival, iteration)
                todo += [(channel.target, found) for found in ready]
    return any(core.completed < 2 for core in cores.values())


class _Stages:
    """Stages on some hosts, and the ops and edges of a step through them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        hosts = [Location(f"host{k}") for k in range(draw.randint(2, 4))]
        self.count, self.micro = draw.randint(len(hosts), 6), draw.randint(2, 5)
        self.homes = [*hosts, *(draw.choice(hosts) for _ in range(self.count - len(hosts)))]
        draw.shuffle(self.homes)
        self.builder = Builder()
        self.control: set[tuple[str, str]] = set()
        self._ops()
        for stage in range(self.count):
            if draw.random() < 0.5:
                self.control |= self.credits(stage, draw.randint(1, self.micro))
        graph = self.builder.graph()
        self.order = _drawn_order(
            Graph(graph.blobs, graph.ops, control=frozenset(self.control)), draw
        )

    def _ops(self) -> None:
        for micro in range(self.micro):
            previous: str | None = None
            for stage in range(self.count):
                previous = self._op(f"F{stage}.{micro}", stage, previous)
            for stage in reversed(range(self.count)):
                previous = self._op(f"B{stage}.{micro}", stage, previous)

    def _op(self, name: str, stage: int, source: str | None) -> str:
        home = self.homes[stage]
        if source is not None and self.builder.blobs[source].location != home:
            copied = self.builder.blob(f"{source}@{name}", (2,), location=home)
            self.builder.op(
                f"copy/{name}", "Copy", [source], [copied], location=home, lane="inbound"
            )
            source = copied
        made = self.builder.blob(f"{name}/out", (2,), location=home)
        if source is None:
            start = self.builder.blob(f"{name}/in", (2,), location=home)
            self.builder.add(State(start, start))
            source = start
        self.builder.op(name, "Relu", [source], [made], location=home)
        return made

    def credits(self, stage: int, credit: int) -> set[tuple[str, str]]:
        """A stage has at most `credit` micro-batches that are not back."""
        later = range(self.micro - credit)
        return {(f"B{stage}.{m}", f"F{stage}.{m + credit}") for m in later}

    def chains(self) -> dict[str, list[str]]:
        """By host the order of its compute."""
        chains: dict[str, list[str]] = {}
        for name in self.order:
            op = self.builder.ops[name]
            if op.kind != "Copy":
                chains.setdefault(op.location.host, []).append(name)
        return chains

    def step(self, chains: Mapping[str, list[str]] | None = None, *more: tuple[str, str]) -> Graph:
        """The step with these orders and further edges."""
        chains = self.chains() if chains is None else chains
        edges = {pair for names in chains.values() for pair in pairwise(names)}
        builder = Builder(self.builder.graph())
        builder.control = {*self.control, *edges, *more}
        return builder.graph()

    def behind(self, name: str, step: Graph | None = None) -> set[str]:
        """The ops that wait for one in a step, by default by data alone."""
        graph, found, todo = step or self.builder.graph(), set[str](), [name]
        while todo:
            for after in graph.successors[todo.pop()]:
                if after not in found:
                    found.add(after)
                    todo.append(after)
        return found


def _drawn_order(graph: Graph, draw: random.Random) -> list[str]:
    """One of the orders that the edges allow."""
    waiting = dict.fromkeys(graph.ops, 0)
    for names in graph.successors.values():
        for name in names:
            waiting[name] += 1
    ready, order = [name for name, count in waiting.items() if not count], []
    while ready:
        name = ready.pop(draw.randrange(len(ready)))
        order.append(name)
        for after in graph.successors[name]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    assert len(order) == len(graph.ops)
    return order


def _swapped_order(draw: random.Random) -> Schedule | None:
    """A host computes two ops in the wrong order: the second leads to the first over a host."""
    stages = _Stages(draw)
    chains = stages.chains()
    host = draw.choice(list(chains))
    chain = chains[host]
    first = draw.choice(chain)
    later = [name for name in chain if name in stages.behind(first)]
    if not later:
        return None
    last = draw.choice(later)
    a, b = chain.index(first), chain.index(last)
    chain[a], chain[b] = last, first
    return Schedule(stages.step(chains))


def _contradicting_edge(draw: random.Random) -> Schedule | None:
    """A control edge between two hosts leads back to what comes before."""
    stages = _Stages(draw)
    ops = stages.builder.ops
    first = draw.choice(list(ops))
    later = [n for n in stages.behind(first) if ops[n].location != ops[first].location]
    return Schedule(stages.step(None, (draw.choice(sorted(later)), first))) if later else None


def _swapped_puts(draw: random.Random) -> Schedule | None:
    """Of two values that one host sends to another, the later one is to be there first."""
    stages = _Stages(draw)
    ops, blobs = stages.builder.ops, stages.builder.blobs
    ends = {
        name: (blobs[op.inputs[0]].location, op.location)
        for name, op in ops.items()
        if op.kind == "Copy"
    }
    pairs = [
        (one, other)
        for one in ends
        for other in stages.behind(one)
        if other in ends and ends[other] == ends[one]
    ]
    if not pairs:
        return None
    one, other = draw.choice(sorted(pairs))
    return Schedule(stages.step(None, (other, one)))


def _small_credit(draw: random.Random) -> Schedule | None:
    """A device starts more micro-batches in a row than its credit allows."""
    stages = _Stages(draw)
    stage = draw.randrange(stages.count)
    place = {name: index for index, name in enumerate(stages.order)}
    starts = [place[f"F{stage}.{m}"] for m in range(stages.micro)]
    back = [place[f"B{stage}.{m}"] for m in range(stages.micro)]
    held = [sum(s < back[m] for s in starts[m + 1 :]) for m in range(stages.micro)]
    if not max(held):
        return None
    return Schedule(stages.step(None, *stages.credits(stage, draw.randint(1, max(held)))))


def _far_credit(draw: random.Random) -> Schedule | None:
    """The last stage gives the first one less credit than the order of the first one takes."""
    stages = _Stages(draw)
    last = stages.count - 1
    if stages.homes[0] == stages.homes[last]:
        return None
    first, step = f"F0.{draw.randrange(stages.micro)}", stages.step()
    behind = stages.behind(first, step)
    returned = [name for m in range(stages.micro) if (name := f"B{last}.{m}") in behind]
    return Schedule(stages.step(None, (draw.choice(returned), first)))


def _no_slot(draw: random.Random) -> Schedule | None:
    """A receiver has no slot but those of iterations that are complete."""
    return Schedule(_Stages(draw).step(), slots=0)


def _together(draw: random.Random) -> Graph:
    """A step of replicas whose hosts meet for collectives."""
    hidden = tuple(draw.randint(2, 6) for _ in range(draw.randint(1, 3)))
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=2, hidden=hidden)), lr=0.1)
    devices = f"host0-{draw.randint(1, 3)}:cpu:0"
    return pu.parallel.replicate(step, devices, topology="native", bucket=0)


def _swapped_collectives(draw: random.Random) -> Schedule | None:
    """A host makes two collectives of its group in another order than the others."""
    step = _together(draw)
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    host = draw.choice(list(parts))
    builder = Builder(parts[host])
    calls = sorted(
        (op for op in builder.ops.values() if op.kind == REDUCE), key=lambda op: op.whole("number")
    )
    if len(calls) < 2:
        return None
    at = draw.randrange(len(calls) - 1)
    names = [op.name for op in calls]
    moved = {names[at]: at + 1, names[at + 1]: at}
    for name, number in moved.items():
        op = builder.ops[name]
        builder.ops[name] = replace(op, attributes={**op.attributes, "number": number})
    swapped = sorted(names, key=lambda name: moved.get(name, names.index(name)))
    old, new = (set(pairwise(order)) for order in (names, swapped))
    builder.control = (builder.control - old) | new
    return Schedule(step, {**parts, host: builder.graph()})


BREAKS: Mapping[str, Callable[[random.Random], Schedule | None]] = {
    "swapped order": _swapped_order,
    "contradicting edge": _contradicting_edge,
    "swapped puts": _swapped_puts,
    "small credit": _small_credit,
    "far credit": _far_credit,
    "no slot": _no_slot,
    "swapped collectives": _swapped_collectives,
}
"""By name what breaks a schedule; None where the drawn one cannot be broken so."""


@cache
def _images() -> pu.data.DataSet:
    values = np.random.default_rng(0).random((40, 1, 28, 28), dtype=np.float32)
    return pu.data.DataSet("random", pu.data.ArraySource(values, np.arange(40) % 10, classes=10))


def run_to_end(
    schedule: Schedule, *, seed: int, iterations: int = 3, patience: float = 30.0
) -> str:
    """Run a schedule with a thread for each host, over `inproc` with random delays.

    Returns what went wrong; nothing if all hosts complete all iterations in time.
    """
    hosts = hosts_of(schedule.step)
    data = _images() if any(op.kind == "Data" for op in schedule.step.ops.values()) else None
    worlds = inproc_worlds(hosts, delay=0.002, seed=seed)
    done: dict[str, int | BaseException] = {}

    def work(world: InprocWorld) -> None:
        try:
            with pu.Run(
                schedule.step, data=data, seed=seed, threads=1, share_cores=True, world=world
            ) as run:
                done[world.host] = sum(1 for _ in run.steps(iterations))
        except BaseException as error:
            done[world.host] = error

    threads = [threading.Thread(target=work, args=(world,), daemon=True) for world in worlds]
    ends = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    wrong = [
        f"{host}: {done.get(host, 'hangs')!r}" for host in hosts if done.get(host) != iterations
    ]
    return "; ".join(wrong)
