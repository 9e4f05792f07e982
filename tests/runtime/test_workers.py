"""Runs of graphs with workers: at any speed the same numbers when replayed, and consistent cuts."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, KernelError, RunError
from purine.graph import Graph
from purine.parallel import replicate, serve
from purine.runtime.buffers import Buffers
from purine.runtime.record import Record

DATA = pu.data.fashion_mini()
BATCH = 6
SCHEMES: dict[str, dict[str, Any]] = {
    "ssp": {"staleness": 1},
    "downpour": {"push": 2, "fetch": 3},
    "hogwild": {},
    "easgd": {"every": 2},
    "gossip": {},
    "local": {"every": 3},
    "diloco": {"every": 2},
}


def step() -> Graph:
    net = pu.data.prepare(pu.zoo.mlp(batch=BATCH, hidden=(8,)), DATA.train)
    return pu.solvers.sgd(pu.backward(net), lr=0.1, momentum=0.5)


def graph_of(scheme: str, workers: int = 2, **changes: Any) -> Graph:
    devices = f"cpu:0-{workers - 1}"
    return serve(step(), devices, scheme, **{**SCHEMES[scheme], **changes})


def run_of(graph: Graph, **settings: Any) -> pu.Run:
    return pu.Run(graph, data=DATA, seed=3, share_cores=True, threads=1, **settings)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_runs_and_is_replayed_to_the_same_bits(
    scheme: str, delays: Callable[[int], None]
) -> None:
    graph = graph_of(scheme)
    delays(1)
    with run_of(graph) as run:
        results = [*run.steps(13), *run.steps(8)]
        states, record = run.states(), run.record_of_updates
    assert [result.iteration for result in results] == list(range(21))
    assert {0, 13, 21} <= {*record.cuts}
    for worker in (0, 1):
        own = [result.own for result in results if result.worker == worker]
        assert own == list(range(len(own)))
    assert all(result.loss > 0 for result in results)
    delays(2)
    with run_of(graph, replay=Record.from_bytes(record.to_bytes())) as again:
        repeated = list(again.steps(21))
        assert same(again.states(), states)
    assert [(r.worker, r.own, r.loss) for r in repeated] == [
        (r.worker, r.own, r.loss) for r in results
    ]


@pytest.mark.parametrize("scheme", ["ssp", "downpour", "hogwild"])
def test_nothing_stale_has_the_bits_of_replicas(scheme: str, delays: Callable[[int], None]) -> None:
    delays(8)
    with run_of(replicate(step(), "cpu:0-2")) as run:
        losses, states = [result.loss for result in run.steps(6)], run.states()
    delays(9)
    with run_of(serve(step(), "cpu:0-2", scheme, staleness=0)) as run:
        assert [result.loss for result in run.steps(6)] == losses
        assert same(run.states(), states)


@pytest.mark.parametrize("inside", ["replicas", "pipeline"])
@pytest.mark.parametrize("scheme", ["ssp", "easgd", "gossip"])
def test_a_worker_may_have_several_devices(
    scheme: str, inside: str, delays: Callable[[int], None]
) -> None:
    one = pu.compose(
        pu.data.prepare(pu.zoo.mlp(batch=BATCH, hidden=(8,)), DATA.train),
        solver=lambda graph: pu.solvers.sgd(graph, lr=0.1, momentum=0.5),
        devices="cpu:0-1",
        **({"pipeline": 2, "micro": 2} if inside == "pipeline" else {}),  # type: ignore[arg-type]
    )
    graph = serve(one, "cpu:0-3", scheme, **SCHEMES[scheme])
    delays(5)
    with run_of(graph) as run:
        workers = {result.worker for result in run.steps(12)}
        states, record = run.states(), run.record_of_updates
    assert workers == {0, 1}
    delays(6)
    with run_of(graph, replay=record) as again:
        list(again.steps(12))
        assert same(again.states(), states)


def test_a_state_that_nobody_fetches_stays_where_it_is() -> None:
    """Momentum is updated in place, although both workers update it."""
    with run_of(graph_of("ssp")) as run:
        list(run.steps(4))
        run.states()
        store = run._executor.store  # type: ignore[union-attr]
        places = {name: value.data_ptr() for name, value in store.items() if "momentum" in name}
        list(run.steps(8))
        run.states()
        assert places
        assert places == {name: store[name].data_ptr() for name in places}


def test_a_run_that_reads_ahead_differently_goes_on_in_one_record(
    tmp_path: Path, delays: Callable[[int], None]
) -> None:
    graph = graph_of("downpour", 3)
    delays(7)
    with run_of(graph, prefetch=3) as run:
        list(run.steps(20))
        run.save(tmp_path)
    with run_of(graph, prefetch=0, record="segments") as run:
        run.load(tmp_path)
        list(run.steps(10))
        states, record = run.states(), run.record_of_updates
    assert {0, 20, 30} <= {*record.cuts}
    with run_of(graph, replay=record) as again:
        list(again.steps(30))
        assert same(again.states(), states)


@pytest.mark.parametrize("bound", [1, 2, "any"])
def test_no_result_is_staler_than_its_bound(
    bound: int | str, delays: Callable[[int], None]
) -> None:
    delays(3)
    with run_of(graph_of("ssp", 3, staleness=bound)) as run:
        stalest = max(result.staleness for result in run.steps(40))
    assert isinstance(bound, str) or stalest <= bound


def test_each_batch_is_trained_once(delays: Callable[[int], None]) -> None:
    delays(4)
    graph = graph_of("hogwild", 3)
    with run_of(graph) as run:
        tickets = sorted(int(value) for value in _tickets(run, 30))
    assert tickets == list(range(30))


def _tickets(run: pu.Run, count: int) -> list[torch.Tensor]:
    for _ in run.steps(count):
        pass
    record, counts = run.record_of_updates, []
    for worker, what in record:
        if what.endswith("/ticket"):
            counts.append(worker)
    assert len(counts) == count
    (value,) = {int(v) for name, v in run.states().items() if name.endswith("/tickets")}
    assert value == count
    return [torch.tensor(k) for k in range(count)]


def test_a_worker_alone_trains_as_a_run_without_workers() -> None:
    with run_of(step()) as plain:
        expected = [result.loss for result in plain.steps(8)]
    with run_of(graph_of("ssp", 1)) as run:
        assert [result.loss for result in run.steps(8)] == expected
        assert all(result.missed == 0 for result in run.steps(2))


@pytest.mark.parametrize("scheme", ["ssp", "easgd", "gossip", "downpour"])
def test_a_run_goes_on_from_its_checkpoint_and_its_record_too(
    scheme: str, tmp_path: Path, delays: Callable[[int], None]
) -> None:
    graph = graph_of(scheme)
    with run_of(graph) as run:
        list(run.steps(9))
        run.save(tmp_path)
        states = run.states()
    with run_of(graph) as run:
        assert run.load(tmp_path) == 9
        assert same(run.states(), states)
        results = list(run.steps(6))
        assert sum(result.own or 0 for result in results) > 0
        run.save(tmp_path)
        states, record = run.states(), run.record_of_updates
    assert {0, 9, 15} <= {*record.cuts}
    with run_of(graph, replay=Record.load(tmp_path / "updates.record")) as again:
        list(again.steps(15))
        assert same(again.states(), states)
    with run_of(graph, replay=record) as again:  # from the newer checkpoint there is nothing left
        assert again.load(tmp_path) == 15
        assert same(again.states(), states)
        with pytest.raises(ConfigError, match="ends before"):
            list(again.steps(1))


def test_a_checkpoint_fits_other_schemes(tmp_path: Path) -> None:
    with run_of(graph_of("ssp")) as run:
        list(run.steps(4))
        run.save(tmp_path / "ssp")
        weight = run.states()["worker0/fc1/weight"]
    with run_of(step()) as plain:
        plain.load(tmp_path / "ssp")
        assert torch.equal(plain.states()["fc1/weight"], weight)
        list(plain.steps(2))
        plain.save(tmp_path / "plain")
        weight = plain.states()["fc1/weight"]
    for scheme in ("easgd", "gossip", "ssp"):
        with run_of(graph_of(scheme)) as run:
            run.load(tmp_path / "plain")
            states = run.states()
            assert torch.equal(states["worker0/fc1/weight"], weight)
            assert torch.equal(states["worker1/fc1/weight"], weight)
            list(run.steps(4))


def test_states_are_set_for_all_workers() -> None:
    with run_of(graph_of("easgd")) as run:
        list(run.steps(3))
        ones = torch.ones(8, 784)
        run.set_states({"fc1/weight": ones})
        for name in ("worker0/fc1/weight", "worker1/fc1/weight", "worker0/center/fc1/weight"):
            assert torch.equal(run.states()[name], ones)
        assert run.iteration == 3
        list(run.steps(3))
    with run_of(graph_of("ssp")) as run:
        run.set_states({"worker1/fc1/weight": ones})
        assert torch.equal(run.states()["worker0/fc1/weight"], ones)


def test_it_can_be_evaluated_and_traced() -> None:
    net = pu.data.prepare(pu.zoo.mlp(batch=BATCH, hidden=(8,)), DATA.train)
    with run_of(graph_of("ssp"), record=True) as run:
        list(run.steps(4))
        found = run.evaluate(pu.evaluation(net), data=DATA)
        assert set(found) >= {"loss", "accuracy"}
        assert {event.op for event in run.trace.events} >= {"worker0/ticket", "worker1/ticket"}
        assert run.activity().completed == 4


@pytest.mark.parametrize("record", [True, "segments"])
@pytest.mark.parametrize("scheme", ["ssp", "downpour", "easgd"])
def test_a_trace_tells_whose_versions_were_read(scheme: str, record: bool | str) -> None:
    with run_of(graph_of(scheme), record=record) as run:
        list(run.steps(12))
        trace = run.gathered_trace()
    assert trace is not None
    event_at = {(event.op, event.iteration): event for event in trace.events}
    ends = [(event_at[push, made], event_at[op, its]) for push, made, op, its in trace.reads]
    assert all(push.end <= reader.end for push, reader in ends)
    assert any(push.location != reader.location for push, reader in ends)
    if record is True:  # each push takes the version before it, so only the first took none
        pushes, takers = {read[:2] for read in trace.reads}, {read[2:] for read in trace.reads}
        first = [op.partition("/")[2] for op, _ in pushes - takers]
        assert len(first) == len(set(first))


def test_a_failed_worker_ends_the_run_with_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Buffers.run

    def failing(self: Buffers, token: int) -> None:
        op = self.program.graph.ops[self.program.plan.ops[token % self.size]]
        if op.kind == "Data" and op.worker == 1 and token // self.size == 3:
            raise KernelError(f"op {op.name!r} failed", op=op)
        plain(self, token)

    monkeypatch.setattr(Buffers, "run", failing)
    threads = threading.active_count()
    with run_of(graph_of("ssp")) as run:
        with pytest.raises(RunError, match="op 'worker1/data' failed"):
            list(run.steps(100))
        with pytest.raises(RunError, match="op 'worker1/data' failed"):
            run.states()
    assert threading.active_count() == threads


def test_a_run_may_be_left_and_taken_up_again() -> None:
    run = run_of(graph_of("downpour"))
    for result in run.steps(50):
        if result.iteration == 5:
            break
    run.close()
    assert run.iteration == 6
    results = list(run.steps(10))
    assert [result.iteration for result in results] == list(range(6, 16))
    run.close()


def test_old_versions_are_freed() -> None:
    """Nobody holds on to a version that the store has replaced and that no fetch still reads."""
    with run_of(graph_of("ssp"), prefetch=0) as run:
        list(run.steps(6))
        run.states()
        executor = run._executor
        assert executor is not None
        refs = [weakref.ref(value) for value in executor.store.values()]  # type: ignore[union-attr]
        list(run.steps(12))
        run.states()
        gc.collect()
        newest = {id(value) for value in executor.store.values()}  # type: ignore[union-attr]
        assert all(ref() is None or id(ref()) in newest for ref in refs)


def test_a_run_may_be_traced_when_it_is_replayed() -> None:
    graph = graph_of("ssp")
    with run_of(graph) as run:
        list(run.steps(6))
        record, states = run.record_of_updates, run.states()
    with run_of(graph, replay=record, record=True, prefetch=0) as again:
        list(again.steps(6))
        assert again.trace.events
        assert same(again.states(), states)


def test_what_cannot_be_replayed_is_refused() -> None:
    with run_of(graph_of("ssp")) as run:
        list(run.steps(2))
        record = run.record_of_updates
    with pytest.raises(ConfigError, match="of another graph"):
        run_of(graph_of("hogwild"), replay=record)
    with pytest.raises(ConfigError, match="nothing to replay"):
        run_of(step(), replay=record)
    with run_of(step()) as plain, pytest.raises(RunError, match="no record"):
        _ = plain.record_of_updates
