"""The virtual clock: order, threads that share cores, hosts, and that it is the same each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import purine as pu
from purine.dispatch.threads import threads_of_lanes
from purine.graph import Builder, Graph, Location, Op
from purine.lowering import Lowered, Options, lower
from purine.lowering.hosts import hosts_of
from purine.simulator.engine import Engine
from purine.simulator.machine import TRANSPORTS, Machine
from purine.simulator.network import Link, Network
from purine.simulator.part import make_part
from purine.simulator.prediction import parts_of, predict, trace_of
from purine.simulator.times import ProfileTimes

ONE, OTHER = Location(device="cpu:0"), Location(device="cpu:1")
EACH = {("", f"cpu:{k}"): (k,) for k in range(8)}


def chain(*ops: tuple[str, Location, str]) -> Graph:
    """Ops one behind the other, by name, location and lane."""
    b = Builder()
    blob = ""
    for name, location, lane in ops:
        new = b.blob(f"{name}/out", (1,), location=location)
        b.op(name, "Relu", [blob] if blob else [], [new], location=location, lane=lane)
        blob = new
    return b.graph()


def run(graph: Graph, machine: Machine, times: Callable[[Op], float], count: int = 1) -> Engine:
    part = make_part(Lowered(graph), None, times, machine)
    engine = Engine([part], machine, credit=1)
    engine.run(count)
    return engine


def test_ops_of_a_chain_follow_each_other() -> None:
    graph = chain(("a", ONE, "compute"), ("b", ONE, "compute"))
    still = Machine(dispatch=0.0, hop=0.0)
    engine = run(graph, still, lambda op: {"a": 1e-3, "b": 2e-3}[op.name])
    assert [(e.op, e.start, e.end) for e in trace_of(engine).events] == [
        ("a", 0, 1_000_000),
        ("b", 1_000_000, 3_000_000),
    ]
    assert engine.hosts[0].ends == [3e6]


def test_dispatch_and_hops_take_time() -> None:
    graph = chain(("a", ONE, "compute"), ("b", OTHER, "compute"))
    machine = Machine(dispatch=1e-6, hop=5e-6, cores=EACH)
    engine = run(graph, machine, lambda op: 10e-6)
    assert engine.hosts[0].ends == [pytest.approx(32_000)]


def two(lane: str, other: str) -> Graph:
    b = Builder()
    for name, at in (("a", lane), ("b", other)):
        b.op(name, "Relu", [], [b.blob(name + "/out", (1,), location=ONE)], location=ONE, lane=at)
    return b.graph()


@pytest.mark.parametrize(
    ("cores", "crowding", "expected"),
    [((0,), 0.0, 2e6), ((0, 1), 0.0, 1.5e6), ((0, 1, 2), 0.0, 1.33333e6), ((0, 1), 0.5, 2.25e6)],
)
def test_threads_share_the_cores_of_their_device(
    cores: tuple[int, ...], crowding: float, expected: float
) -> None:
    """A kernel on all cores and a transfer on one: both are slower while both run."""
    machine = Machine(dispatch=0.0, hop=0.0, cores={("", "cpu:0"): cores}, crowding=crowding)
    engine = run(two("compute", "inbound"), machine, lambda op: 1e-3)
    assert engine.hosts[0].ends == [pytest.approx(expected, rel=1e-4)]


def test_a_device_with_one_core_has_one_thread() -> None:
    stations = [(ONE, "compute"), (ONE, "inbound"), (OTHER, "compute")]
    workers, numbers = threads_of_lanes(stations, {"cpu:0": (0,), "cpu:1": (1, 2)}, own=3)
    assert (workers, numbers) == ([(ONE, "compute"), (OTHER, "compute")], [0, 0, 1])


def hosts(machine: Machine, devices: str = "host0-1:cpu:0", **settings: object) -> Engine:
    net = pu.zoo.mlp(batch=12)
    step = pu.compose(net, solver=pu.solvers.sgd, devices=devices, **settings)  # type: ignore[arg-type]
    lowered = {host: lower(step, Options(host=host)) for host in hosts_of(step)}
    engine = Engine(parts_of(lowered, ProfileTimes(), machine), machine)
    engine.run(8)
    return engine


def machine_of(names: int, rate: float, transport: str = "tcp") -> Machine:
    network = Network.switched([f"host{k}" for k in range(names)], Link("", rate, 50e-6))
    return Machine(network=network, wire=TRANSPORTS[transport], cores=EACH)


@pytest.mark.parametrize("transport", ["tcp", "shm", "inproc"])
def test_a_slow_link_makes_a_step_as_long_as_its_bytes_take(transport: str) -> None:
    slow = hosts(machine_of(2, 1e6, transport))
    sent = slow.wires.bytes["host0", "host1"] / 8
    step = (slow.hosts[0].ends[-1] - slow.hosts[0].ends[2]) / 5 / 1e9
    assert step == pytest.approx(sent / 1e6, rel=0.15)
    quick = hosts(machine_of(2, 1e12, transport))
    assert quick.now < slow.now / 50


def test_collectives_of_hosts_meet() -> None:
    engine = hosts(machine_of(3, 1e9), "host0-2:cpu:0", data=3, topology="native")
    assert [len(host.ends) for host in engine.hosts] == [8, 8, 8]


def test_simulations_are_the_same_each_time() -> None:
    one, other = (hosts(machine_of(2, 1e8)) for _ in range(2))
    assert one.records == other.records
    assert one.events == other.events


def test_a_seed_draws_stragglers() -> None:
    step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="cpu:0-1")
    lowered = {None: lower(step)}
    machine = Machine(cores=EACH)
    found = [
        predict(lowered, ProfileTimes(), machine, spread=0.3, seed=seed, memory=False)
        for seed in (0, 0, 1)
    ]
    assert (found[0].low, found[0].high) == (found[1].low, found[1].high)
    assert found[2].high != found[0].high
    assert found[0].low <= found[0].seconds < found[0].high


def test_slow_devices_hold_the_others_up() -> None:
    step = pu.compose(pu.zoo.mlp(batch=64), solver=pu.solvers.sgd, devices="cpu:0-1")
    lowered = {None: lower(step)}
    even = predict(lowered, ProfileTimes(), Machine(cores=EACH), memory=False)
    slow = Machine(cores=EACH, slow={("127.0.0.1", "cpu:1"): 0.25})
    held = predict(lowered, ProfileTimes(), slow, memory=False)
    assert held.seconds > 2 * even.seconds
    assert held.devices["host 127.0.0.1, cpu:0"][2] > 0.3  # it waits for the other


def test_floating_lanes_go_to_the_device_that_is_free() -> None:
    step = pu.compose(
        pu.zoo.mlp(batch=8),
        solver=pu.solvers.sgd,
        devices="cpu:0-1",
        data=2,
        micro=2,
        floating=True,
    )
    found = predict({None: lower(step)}, ProfileTimes(), Machine(cores=EACH), memory=False)
    assert found.busy > 0
