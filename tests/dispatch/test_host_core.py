"""Cores of several hosts, driven against each other with random delays and no network."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest

import purine as pu
from purine.core import compile_plan
from purine.dispatch.host_core import TOKEN, HostCore
from purine.graph import Builder, Graph
from purine.lowering.deadlines import SPAN
from purine.lowering.hosts import channels_of, hosts_of, part_of
from purine.lowering.together import Collective, Group, collective_of

SCHEMES: dict[str, dict[str, object]] = {
    "data": {},
    "ring": {"data": 4, "topology": "ring"},
    "tree": {"data": 4, "topology": "tree"},
    "pipeline": {"pipeline": 4},
    "data-pipeline": {"data": 2, "pipeline": 2},
    "model": {"model": 4},
    "data-model": {"data": 2, "model": 2},
    "shared": {"data": 4, "shared": True},
}
TOGETHER: dict[str, dict[str, object]] = {
    "native": {"data": 4, "topology": "native"},
    "native-pipeline": {"data": 2, "pipeline": 2, "topology": "native"},
}
"""Schemes whose hosts meet for collectives."""
GPUS: dict[str, dict[str, object]] = {f"{name}-gpus": TOGETHER[name] for name in TOGETHER}
"""The same on GPUs, where collectives of all kinds and groups have one order."""
ITERATIONS = 4


@cache
def parts(scheme: str) -> dict[str, Graph]:
    step = pu.compose(
        pu.zoo.mlp(batch=8),
        solver=lambda net: pu.solvers.sgd(net, lr=0.1, momentum=0.9),
        devices=f"host0-1:{'cuda' if scheme in GPUS else 'cpu'}:0-1",
        clip=0.5 if scheme in GPUS else None,
        **{**SCHEMES, **TOGETHER, **GPUS}[scheme],
    )
    return {host: part_of(step, host) for host in hosts_of(step)}


plan_of = cache(compile_plan)


class Simulation:
    """Hosts without kernels. Whatever may happen next happens in a random order.

    A collective of GPUs is complete when it is enqueued, and under way until all its hosts have
    enqueued it. Now and then a host waits for all that its GPUs have under way: it runs no op until
    then, but for puts, arrivals and collectives, which have threads of their own. With
    `settled=False` collectives do not wait for the iterations before theirs.
    """

    def __init__(self, parts: dict[str, Graph], seed: int, *, settled: bool = True) -> None:
        self.random = random.Random(seed)
        credit = self.random.randint(1, 3)
        self.slots = self.random.randint(1, credit + 1)
        self.cores: dict[str, HostCore] = {}
        self.calls: dict[tuple[str, str], Collective] = {}
        """By host and op the collective that it has a part in."""
        self.meetings: dict[tuple[Group, int], dict[str, tuple[int, int, str]]] = {}
        """By group and turn the hosts that are there: token, number of the call, and root."""
        self.made: dict[tuple[str, Group], int] = {}
        """By host and group how many collectives it has begun."""
        self.under_way: dict[str, set[tuple[Group, int]]] = {host: set() for host in parts}
        """By host the collectives that its GPUs have not completed."""
        self.awaited: dict[str, set[tuple[Group, int]]] = {host: set() for host in parts}
        """By host those that it waits for."""
        self.numbers: dict[str, dict[str, int]] = {}
        self.exchanged: dict[str, set[str]] = {}
        """By host its puts and arrivals."""
        self.puts: dict[tuple[str, str], list[tuple[str, int]]] = {}
        """By host and put the hosts that it sends to, each with its arrival."""
        arrivals: dict[tuple[str, str, int], str] = {}
        for host, part in parts.items():
            plan = plan_of(part)
            number = self.numbers[host] = {name: index for index, name in enumerate(plan.ops)}
            incoming, outgoing = channels_of(part, host)
            self.exchanged[host] = {channel.op for channel in (*incoming, *outgoing)}
            puts: dict[int, list[str]] = {}
            for channel in outgoing:
                puts.setdefault(number[channel.op], []).append(channel.target)
            self.cores[host] = HostCore(
                plan,
                arrivals=[number[channel.op] for channel in incoming],
                puts=puts,
                credit=credit,
                slots=self.slots,
                turns=self._turns(host, part, number),
                on_gpus=[
                    number[op.name]
                    for op in part.ops.values()
                    if settled and (one := collective_of(op)) is not None and one.gpus
                ],
            )
            arrivals |= {(c.source, host, c.number): c.op for c in incoming}
        for host, part in parts.items():
            for channel in channels_of(part, host)[1]:
                op = arrivals[host, channel.target, channel.number]
                ends = self.puts.setdefault((host, channel.op), [])
                ends.append((channel.target, self.numbers[channel.target][op]))
        self.ready: list[tuple[str, int]] = []
        for host, core in self.cores.items():
            self._now_ready(host, core.extend(1))
        self.messages: list[tuple[str, ...] | tuple[str, str, int, int]] = []

    def _turns(self, host: str, part: Graph, number: dict[str, int]) -> list[list[int]]:
        """The collectives of each order, one after the other."""
        groups: dict[Group, list[tuple[int, int]]] = {}
        for op in part.ops.values():
            one = collective_of(op)
            if one is not None:
                self.calls[host, op.name] = one
                groups.setdefault(one.order, []).append((one.number, number[op.name]))
        return [[op for _, op in sorted(calls)] for calls in groups.values()]

    def run(self) -> None:
        """Run to the end; each host lets further iterations start as it likes."""
        limits = dict.fromkeys(self.cores, 1)
        while True:
            choices = [self._op] * bool(self._free()) + [self._message] * bool(self.messages)
            behind = [host for host, limit in limits.items() if limit < ITERATIONS]
            if behind and (not choices or self.random.random() < 0.1):
                host = self.random.choice(behind)
                limits[host] += 1
                self._now_ready(host, self.cores[host].extend(limits[host]))
            elif choices:
                self.random.choice(choices)()
            else:
                return

    def _op(self) -> None:
        host, token = self.ready.pop(self.random.choice(self._free()))
        core = self.cores[host]
        if self.random.random() < 0.1:
            self.awaited[host] = set(self.under_way[host])
        iteration, op = divmod(token, core.size)
        name = core.plan.ops[op]
        if (host, name) in self.calls:
            self._meet(host, token, self.calls[host, name])
            return
        for target, arrival in self.puts.get((host, name), ()):
            assert iteration < self.cores[target].completed + self.slots  # there is a slot
            self.messages.append(("value", target, arrival, iteration))
        self._complete(host, token)

    def _free(self) -> list[int]:
        """The places of what is ready and does not wait for a GPU."""
        waiting = {host for host, awaited in self.awaited.items() if awaited}
        return [
            place
            for place, (host, token) in enumerate(self.ready)
            if host not in waiting or self._has_own_thread(host, token)
        ]

    def _has_own_thread(self, host: str, token: int) -> bool:
        core = self.cores[host]
        name = core.plan.ops[token % core.size]
        return (host, name) in self.calls or name in self.exchanged[host]

    def _meet(self, host: str, token: int, one: Collective) -> None:
        """No host completes its part of a collective before all its hosts are there, but GPUs."""
        turn = self.made.get((host, one.group), 0)
        self.made[host, one.group] = turn + 1
        there = self.meetings.setdefault((one.group, turn), {})
        there[host] = token, one.number, one.root
        assert len({call[1:] for call in there.values()}) == 1, "all hosts make one call"
        whole = len(there) == len(one.hosts)
        if one.gpus:
            self.under_way[host].add((one.group, turn))
            for sets in (self.under_way, self.awaited) if whole else ():
                for keys in sets.values():
                    keys.discard((one.group, turn))
            self._complete(host, token)
        elif whole:
            for at, (own, _, _) in there.items():
                self._complete(at, own)

    def _complete(self, host: str, token: int) -> None:
        core = self.cores[host]
        before = core.completed
        self._now_ready(host, core.complete(token))
        if core.completed != before:
            others = (other for other in self.cores if other != host)
            self.messages += [("credit", other, host, core.completed) for other in others]

    def _message(self) -> None:
        """Deliver a message, not always the oldest."""
        what, host, first, second = self.messages.pop(self.random.randrange(len(self.messages)))
        core = self.cores[host]
        ready = core.arrive(first, second) if what == "value" else core.grant(first, second)
        self._now_ready(host, ready)

    def _now_ready(self, host: str, tokens: list[int]) -> None:
        self.ready += [(host, token & TOKEN) for token in tokens]


@pytest.mark.parametrize("scheme", [*SCHEMES, *TOGETHER, *GPUS])
def test_no_placement_of_credits_and_delays_deadlocks(scheme: str) -> None:
    for seed in range(150):
        simulation = Simulation(parts(scheme), seed)
        simulation.run()
        for host, core in simulation.cores.items():
            assert core.completed == ITERATIONS, (seed, host, core.missing(), core.held())
            assert not core.missing()
            assert not core.held()


def test_without_the_wait_for_iterations_before_hosts_of_gpus_deadlock() -> None:
    """A host waits for its GPU, which waits for a parameter, whose owner waits for a norm of it."""
    ends = set()
    for seed in range(150):
        simulation = Simulation(parts("native-gpus"), seed, settled=False)
        simulation.run()
        ends |= {core.completed for core in simulation.cores.values()}
    assert min(ends) < ITERATIONS


def two_hosts() -> tuple[HostCore, HostCore]:
    """A host that makes a blob in every iteration, and one that reads it."""
    builder = Builder()
    source, target = pu.Location("host0"), pu.Location("host1")
    for name, at in (("x", source), ("x@host1/cpu:0", target), ("y", target)):
        builder.blob(name, (2,), location=at)
    builder.op("make", "Relu", [], ["x"], location=source)
    builder.op("copy", "Copy", ["x"], ["x@host1/cpu:0"], location=target, lane="inbound")
    builder.op("read", "Relu", ["x@host1/cpu:0"], ["y"], location=target)
    step = builder.graph()
    sender, receiver = (compile_plan(part_of(step, host)) for host in ("host0", "host1"))
    puts = {sender.ops.index("put/copy"): ["host1"]}
    return (
        HostCore(sender, arrivals=[], puts=puts, credit=3, slots=2),
        HostCore(receiver, arrivals=[receiver.ops.index("copy")], puts={}, credit=1, slots=2),
    )


def names(core: HostCore, tokens: list[int]) -> list[tuple[int, str]]:
    plain = (token & TOKEN for token in tokens)
    return [(token // core.size, core.plan.ops[token % core.size]) for token in plain]


def complete_all(core: HostCore, tokens: list[int]) -> Iterator[tuple[int, str]]:
    """Complete tokens and those that become ready by it."""
    queue = list(tokens)
    for token in queue:
        yield from names(core, [token])
        queue += core.complete(token & TOKEN)


def test_a_put_waits_for_a_slot_and_holds_nothing_up() -> None:
    sender, _ = two_hosts()
    done = list(complete_all(sender, sender.extend(3)))
    assert done == [(0, "make"), (1, "make"), (2, "make"), (0, "put/copy"), (1, "put/copy")]
    assert sender.held() == [(2, "put/copy")]
    assert names(sender, sender.grant("host1", 1)) == [(2, "put/copy")]
    assert sender.grant("host1", 1) == []  # hosts repeat themselves to show that they are alive


@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_gpu_begins_collectives_when_the_iterations_before_are_complete(on_gpus: bool) -> None:
    """`meet` needs nothing, as the receiver's part in a broadcast; `late` is still to be done."""
    builder = Builder()
    for name in ("meet", "late"):
        builder.op(name, "Fence", (), ())
    plan = compile_plan(builder.graph())
    meet, late = map(plan.ops.index, ("meet", "late"))
    core = HostCore(
        plan, arrivals=[], puts={}, turns=[[meet]], on_gpus=[meet] if on_gpus else [], credit=2
    )
    assert sorted(names(core, core.extend(2))) == [(0, "late"), (0, "meet"), (1, "late")]
    assert names(core, core.complete(meet)) == ([] if on_gpus else [(1, "meet")])
    assert names(core, core.complete(late)) == ([(1, "meet")] if on_gpus else [])


def test_an_early_arrival_waits_until_its_iteration_is_open() -> None:
    _, receiver = two_hosts()
    arrival = receiver.plan.ops.index("copy")
    assert receiver.extend(2) == []
    assert receiver.missing() == [(0, "copy")]
    assert receiver.arrive(arrival, 1) == []
    done = list(complete_all(receiver, receiver.arrive(arrival, 0)))
    assert done == [(0, "copy"), (0, "read"), (1, "copy"), (1, "read")]
    assert receiver.completed == 2


def test_a_value_that_no_slot_is_free_for_is_a_bug() -> None:
    _, receiver = two_hosts()
    arrival = receiver.plan.ops.index("copy")
    receiver.extend(1)
    with pytest.raises(AssertionError, match="no slot is free"):
        receiver.arrive(arrival, 2)
    receiver.arrive(arrival, 1)
    with pytest.raises(AssertionError, match="arrived twice"):
        receiver.arrive(arrival, 1)


def test_what_the_next_forward_needs_first_is_sent_first() -> None:
    """Though a transposed weight could be computed at any time."""
    part = parts("data")["host0"]
    deadlines = {channel.op: channel.deadline for channel in channels_of(part, "host0")[1]}

    def soonest(text: str) -> int:
        return min(when for op, when in deadlines.items() if when and op.startswith(text))

    assert 0 < soonest("put/fc1/weight") < soonest("put/fc2/weight") < SPAN
    assert SPAN <= soonest("put/host0/grad/fc1/weight") < 2 * SPAN


def test_weights_of_the_next_iteration_overtake_gradients_that_are_needed_later() -> None:
    plan = compile_plan(parts("data")["host0"])
    weight, soon, late = 0, 1, 2
    deadlines = {weight: SPAN // 2, soon: SPAN + SPAN // 4, late: 2 * SPAN - 1}
    puts = {op: ["host1"] for op in deadlines}
    core = HostCore(plan, arrivals=[], puts=puts, deadlines=deadlines, slots=9)
    order = sorted((late, soon, core.size + weight), key=core._urgent)
    assert order == [soon, core.size + weight, late]
    assert core._urgent(late) % core.size == late
    assert core._urgent(late) & TOKEN == late
