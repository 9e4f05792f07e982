"""Rules of states with several versions, of workers, and of ops that do not always run."""

from __future__ import annotations

import pytest

from purine.errors import GraphError
from purine.graph import Blob, Builder, Graph, Location, Op, State, problems, verify


def pair() -> Builder:
    """Two workers that fetch the shared weight `w`, and update it."""
    b = Builder()
    for worker in (0, 1):
        at = Location(device=f"cpu:{worker}")
        w, following, read = (f"worker{worker}/{name}" for name in ("w", "w/next", "w/read"))
        for name in (w, following, read):
            b.blob(name, (2,), location=at)
        b.op(read, "Fetch", [w], [read], location=at, worker=worker)
        b.op(f"{w}/update", "Update", [w, read], [following], location=at, worker=worker)
        b.state(w, following, shared="w", staleness=3)
    return b


def only(graph: Graph) -> GraphError:
    (error,) = problems(graph)
    assert None not in (error.expected, error.found, error.remedy)
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert str(caught.value) == str(error)
    return error


def with_state(b: Builder, **changes: object) -> Graph:
    """The graph of `pair` with other settings of the state of worker 1."""
    state = b.states.pop("worker1/w")
    settings = {"shared": state.shared, "staleness": state.staleness, **changes}
    b.state(state.read, state.next, **settings)  # type: ignore[arg-type]
    return b.graph()


def test_two_workers_that_share_a_weight() -> None:
    assert problems(pair().graph()) == []
    assert problems(with_state(pair(), staleness=None)) == []


def test_all_workers_may_read_a_state_that_keeps_its_value() -> None:
    b = pair()
    b.state(b.blob("rate", ()))
    for worker in (0, 1):
        at = Location(device=f"cpu:{worker}")
        op = b.ops.pop(f"worker{worker}/w/update")
        inputs = [*op.inputs, "rate"]
        b.op(op.name, "Update", inputs, op.outputs, location=at, worker=worker)
    (error,) = problems(b.graph())
    assert "at host" in error.what, "only its location is wrong"


@pytest.mark.parametrize(("bound", "shared"), [(None, ""), (-1, "w")])
def test_a_bound_is_a_number(bound: int | None, shared: str) -> None:
    error = only(with_state(pair(), staleness=bound, shared=shared))
    assert error.what.startswith("state 'worker1/w' ")
    assert error.blob == "worker1/w"


def test_versions_are_read_by_fetches() -> None:
    b = pair()
    b.op("peek", "Relu", ["worker0/w"], [])
    error = only(b.graph())
    assert error.what == "op 'peek' reads state 'worker0/w', of which there are several versions"


def test_a_stale_state_of_one_worker_is_read_by_fetches() -> None:
    b = Builder()
    for name in ("w", "w/next", "w/read"):
        b.blob(name, (2,))
    b.op("read", "Fetch", ["w"], ["w/read"])
    b.op("update", "Update", ["w", "w/read"], ["w/next"])
    b.state("w", "w/next", staleness=2)
    assert problems(b.graph()) == []
    b.op("peek", "Relu", ["w"], [])
    assert only(b.graph()).op == "peek"


def test_a_shared_state_is_made_of_its_newest_version() -> None:
    b = pair()
    b.ops["worker1/w/update"] = Op(
        "worker1/w/update",
        "Update",
        ("worker1/w/read",),
        ("worker1/w/next",),
        location=Location(device="cpu:1"),
        worker=1,
    )
    assert "is shared, and does not read it" in only(b.graph()).what


@pytest.mark.parametrize(
    ("shape", "dtype", "host", "aspect"),
    [
        ((3,), "float32", "127.0.0.1", "shape"),
        ((2,), "float64", "127.0.0.1", "dtype"),
        ((2,), "float32", "10.0.0.2", "host"),
    ],
)
def test_shared_states_agree(shape: tuple[int, ...], dtype: str, host: str, aspect: str) -> None:
    b = pair()
    for name in ("worker1/w", "worker1/w/next", "worker1/w/read"):
        b.blobs[name] = Blob(name, shape, dtype, Location(host, "cpu:1"))
    for name in ("worker1/w/read", "worker1/w/update"):
        op = b.ops.pop(name)
        b.op(name, op.kind, op.inputs, op.outputs, location=Location(host, "cpu:1"), worker=1)
    error = only(b.graph())
    assert error.what == f"states 'worker0/w' and 'worker1/w' are shared and differ in {aspect}"


def test_shared_states_are_at_cpu_devices() -> None:
    b, at = Builder(), Location(device="cuda:0")
    b.blob("w", (2,), location=at)
    b.blob("w/next", (2,), location=at)
    b.op("update", "Update", ["w"], ["w/next"], location=at)
    b.state("w", "w/next", shared="w")
    assert only(b.graph()).what == "state 'w' is shared, and at cuda:0"


def test_workers_have_no_blob_in_common() -> None:
    b = pair()
    at = Location(device="cpu:1")
    b.op("peek", "Relu", ["worker1/w/read"], [], location=at)
    error = only(b.graph())
    assert error.what == (
        "op 'peek' of worker 0 and op 'worker1/w/read' of worker 1 use blob 'worker1/w/read'"
    )


def test_workers_do_not_wait_for_each_other() -> None:
    b = pair()
    b.control.add(("worker0/w/update", "worker1/w/update"))
    assert only(b.graph()).op == "worker1/w/update"


def test_a_state_is_of_one_worker() -> None:
    b = Builder()
    for name in ("x", "x/next"):
        b.blob(name, ())
    b.op("read", "Relu", ["x"], [])
    b.op("write", "Relu", [], ["x/next"], worker=1)
    b.state("x", "x/next")
    assert only(b.graph()).what == "state 'x' leads from worker 1 to worker 0"


def test_a_worker_shares_a_state_once() -> None:
    b = pair()
    at = Location(device="cpu:0")
    for name in ("v", "v/next"):
        b.blob(name, (2,), location=at)
    b.op("update/v", "Update", ["v"], ["v/next"], location=at)
    b.state("v", "v/next", shared="w")
    assert only(b.graph()).what == "worker 0 shares both 'worker0/w' and 'v' as 'w'"


def test_workers_are_numbered_from_zero() -> None:
    b = Builder()
    b.op("one", "Relu", [], [], worker=-1)
    assert only(b.graph()).what == "op 'one' is of worker -1"


def test_periods() -> None:
    b = Builder()
    for name in ("x", "y", "z", "w", "w/next"):
        b.blob(name, ())
    b.op("always", "Relu", [], ["x"])
    b.op("often", "Relu", ["x"], ["y"], every=2, phase=1)
    b.op("with_it", "Relu", ["y"], [], every=2, phase=1)
    b.op("last", "Last", ["x", "y"], ["z"])
    b.op("update", "Update", ["w", "y"], ["w/next"], every=2, phase=1)
    b.state("w", "w/next")
    b.outputs = ["z"]
    assert problems(b.graph()) == []
    b.outputs = ["y"]
    assert only(b.graph()).what == "output 'y' is not there in every iteration"
    b.outputs = []
    b.op("odd", "Relu", ["y"], [], every=4, phase=1)
    assert only(b.graph()).op == "odd"
    b.ops["odd"] = Op("odd", "Last", ("y", "x"), ())
    assert only(b.graph()).op == "odd"


@pytest.mark.parametrize(("every", "phase"), [(0, 0), (2, 2), (1, -1)])
def test_a_phase_is_within_its_period(every: int, phase: int) -> None:
    b = Builder()
    b.op("odd", "Relu", [], [], every=every, phase=phase)
    assert only(b.graph()).op == "odd"


def test_a_state_that_is_kept_at_times_is_read_by_its_update() -> None:
    b = Builder()
    for name in ("w", "w/next"):
        b.blob(name, ())
    b.op("write", "Relu", [], ["w/next"], every=2)
    b.state("w", "w/next")
    assert only(b.graph()).blob == "w"


def test_a_state_knows_whether_it_has_versions() -> None:
    assert not State("w", "w").versioned
    assert State("w", "w", shared="w").versioned
    assert State("w", "w", staleness=1).versioned
