"""Every scheme under random delays: how stale reads are, and that each update counts once.

The gradient is always 1, and so is the rate. So the value of a parameter tells how many updates it
has had, and the loss, which is this value, how many of them a worker has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import purine as pu
from purine.graph import FETCH, Filler, Graph
from purine.kinds import Net, inner_product
from purine.parallel import serve
from purine.runtime.record import Record
from purine.runtime.result import Result
from purine.runtime.workers import Workers
from tests.parallel.nets import float64

WORKERS, FIRST, STATE = 4, 1.0, "fc/weight"
ONES = pu.data.ArraySource(np.ones((64, 1, 1, 1)), np.zeros(64, np.int64), classes=1)
DATA = pu.data.DataSet("ones", ONES)
NO_RATE = 2.0**-80
"""So small that parameters keep their value."""
GRADIENTS: list[tuple[str, dict[str, Any]]] = [
    ("ssp", {}),
    ("downpour", {}),
    ("downpour", {"push": 2, "fetch": 3}),
    ("hogwild", {}),
    ("local", {"every": 4}),
    ("diloco", {"every": 4}),
]
"""The schemes with parameters that all workers share, and bounds."""
SCHEMES = [*GRADIENTS, ("easgd", {"every": 2, "alpha": 0.25}), ("gossip", {"every": 2})]
BOUNDS = [
    (scheme, {**settings, "staleness": bound})
    for scheme, settings in GRADIENTS
    for bound in (0, 1, 3)
    if bound or "every" in settings or "push" in settings  # else the workers are replicas
]


def graph_of(scheme: str, rate: float = 1.0, **settings: Any) -> Graph:
    net = Net()
    x, _ = net.data((2, 1, 1, 1))
    ones = Filler("constant", {"value": FIRST})
    y = inner_product(x, 1, bias=False, name="fc", weight_filler=ones)
    net.output(net.apply("aten.mean", [y], name="loss"))
    step = pu.backward(float64(net.graph()), losses={"loss": 1.0})
    return serve(pu.solvers.sgd(step, lr=rate), f"cpu:0-{WORKERS - 1}", scheme, **settings)


@dataclass
class Ran:
    """A run that is over: its results, its values, its record, and the versions it counted."""

    graph: Graph
    results: list[Result]
    states: dict[str, float]
    record: Record
    versions: dict[str, int]


def ran(graph: Graph, replay: Record | None = None) -> Ran:
    with pu.Run(graph, data=DATA, seed=3, share_cores=True, threads=1, replay=replay) as run:
        results = list(run.steps(48))
        states = {name: float(value) for name, value in run.states().items()}
        assert isinstance(run._executor, Workers)
        versions = run._executor.core.versions()
        return Ran(graph, results, states, run.record_of_updates, versions)


def pushes(graph: Graph) -> dict[str, list[str]]:
    """The shared states that an op updates, by op."""
    found: dict[str, list[str]] = {}
    for state in graph.states.values():
        if state.shared:
            found.setdefault(graph.producers[state.next].name, []).append(state.shared)
    return found


def due(graph: Graph, op: str, iterations: int) -> int:
    """How often an op runs in so many iterations of its worker."""
    return sum(graph.ops[op].runs_in(iteration) for iteration in range(iterations))


def reads(run: Ran) -> Iterator[tuple[int, int, Counter[int]]]:
    """The (worker, iteration) of each read of the parameter, and how often each worker had
    updated it by then."""
    updates = {op for op, states in pushes(run.graph).items() if STATE in states}
    updated, fetched = Counter[int](), Counter[str]()
    for worker, name in run.record:
        op = run.graph.ops.get(name)
        if name in updates:
            updated[worker] += 1
        elif op is not None and op.kind == FETCH:
            yield worker, op.phase + op.every * fetched[name], updated.copy()
            fetched[name] += 1


def value_after(updates: int, scheme: str, settings: dict[str, Any]) -> float:
    """The parameter after so many updates."""
    way = float(settings.get("every", settings.get("push", 1)))
    if scheme != "diloco":
        return FIRST - updates * way / WORKERS
    value, velocity = FIRST, 0.0
    for _ in range(updates):
        velocity = 0.5 * velocity + way
        value -= 0.5 / WORKERS * (way + 0.5 * velocity)
    return value


@pytest.mark.parametrize(("scheme", "settings"), BOUNDS)
def test_no_read_is_beyond_its_bound(
    scheme: str, settings: dict[str, Any], delays: Callable[[int], None]
) -> None:
    delays(1)
    run = ran(graph_of(scheme, **settings))
    update = {int(op[6]): op for op, states in pushes(run.graph).items() if STATE in states}
    losses = {(result.worker, result.own): result.loss for result in run.results}
    count = 0
    for worker, iteration, updated in reads(run):
        for other in {*range(WORKERS)} - {worker}:
            least = due(run.graph, update[other], iteration - settings["staleness"])
            assert updated[other] >= least, (worker, iteration, other)
        expected = value_after(updated.total(), scheme, settings)
        assert losses[worker, iteration] == pytest.approx(expected, abs=1e-9), "another version"
        count += 1
    assert count >= 48 / 4
    assert max(result.staleness for result in run.results) <= settings["staleness"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("scheme", "settings"), SCHEMES)
def test_versions_account_for_each_update_once(
    scheme: str, settings: dict[str, Any], seed: int, delays: Callable[[int], None]
) -> None:
    delays(seed)
    run = ran(graph_of(scheme, **settings))
    completed = Counter(result.worker for result in run.results)
    recorded, versions = Counter(name for _, name in run.record), Counter[str]()
    for op, states in pushes(run.graph).items():
        wanted = due(run.graph, op, completed[run.graph.ops[op].worker])
        assert recorded[op] == wanted, op
        versions.update(dict.fromkeys(states, wanted))
    assert run.versions == versions
    assert run.versions["iteration"] == 48


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("scheme", "settings"), GRADIENTS)
def test_the_shared_parameter_has_all_updates_once(
    scheme: str, settings: dict[str, Any], seed: int, delays: Callable[[int], None]
) -> None:
    delays(seed)
    run = ran(graph_of(scheme, **settings))
    (value,) = {run.states[n] for n, s in run.graph.states.items() if s.shared == STATE}
    updates = run.versions[STATE]
    assert updates > 0
    assert value == pytest.approx(value_after(updates, scheme, settings), abs=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_center_and_its_workers_have_all_steps_once(
    seed: int, delays: Callable[[int], None]
) -> None:
    """What a move takes from a worker it gives to the center."""
    delays(seed)
    run = ran(graph_of("easgd", every=2, alpha=0.25))
    own = [run.states[f"worker{worker}/{STATE}"] for worker in range(WORKERS)]
    total = sum(own) + run.states[f"worker0/center/{STATE}"]
    assert total == pytest.approx((WORKERS + 1) * FIRST - 48, abs=1e-9)
    assert len({*own}) > 1


@pytest.mark.parametrize("seed", [1, 2])
def test_all_that_is_sent_arrives_once(seed: int, delays: Callable[[int], None]) -> None:
    """Where no worker learns, mailboxes hold parameters times weights, and all have one value."""
    delays(seed)
    run = ran(graph_of("gossip", NO_RATE, every=1))
    mails = [
        tuple(run.states[f"worker0/mail{worker}/{name}"] for name in ("gossip0/weight", STATE))
        for worker in range(WORKERS)
    ]
    own = [run.states[f"worker{worker}/gossip0/weight"] for worker in range(WORKERS)]
    assert sum(own) + sum(weight for weight, _ in mails) == pytest.approx(1.0, abs=1e-12)
    for weight, total in mails:
        assert total == pytest.approx(FIRST * weight, abs=1e-12)
    for worker in range(WORKERS):
        assert run.states[f"worker{worker}/{STATE}"] == pytest.approx(FIRST, abs=1e-12)


@pytest.mark.parametrize(("scheme", "settings"), SCHEMES)
def test_a_replay_has_the_same_bits(
    scheme: str, settings: dict[str, Any], delays: Callable[[int], None]
) -> None:
    graph = graph_of(scheme, **settings)
    delays(1)
    first = ran(graph)
    delays(2)
    again = ran(graph, first.record)
    assert again.states == first.states
    seen = [(result.worker, result.own, result.loss) for result in first.results]
    assert [(result.worker, result.own, result.loss) for result in again.results] == seen
