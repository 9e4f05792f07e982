"""The rules of states with several versions, of workers, and of ops that do not always run."""

from __future__ import annotations

from collections.abc import Iterator

from purine.errors import GraphError
from purine.graph.graph import Graph
from purine.graph.nodes import FETCH, LAST, Op, State
from purine.graph.rule import Kinds, uses, wrong

__all__ = [
    "periods_fit",
    "shared_states_agree",
    "states_are_versioned_rightly",
    "workers_share_states_alone",
]


def states_are_versioned_rightly(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """A state of which old versions may be read is read by `Fetch` ops, and by its updates alone.

    The op that updates such a state reads its newest version, so no update is lost.
    """
    for state in graph.states.values():
        bound, name = state.staleness, f"state {state.read!r}"
        if bound is None and not state.shared:
            what, remedy = f"{name} may be read at any staleness", "give a number"
            yield wrong(state, what, "a bound, unless the state is shared", "none", remedy)
        elif bound is not None and bound < 0:
            what, remedy = f"{name} has the staleness {bound}", "write staleness: 0 or more"
            yield wrong(state, what, "a whole number, 0 or more", str(bound), remedy)
        producer = graph.producers.get(state.next)
        for op in graph.consumers.get(state.read, ()) if state.versioned else ():
            if op.kind != FETCH and (producer is None or producer.name != op.name):
                what = f"op {op.name!r} reads {name}, of which there are several versions"
                expected, found = "a Fetch op, or the op that updates the state", f"a {op.kind} op"
                remedy = "read it through a Fetch op"
                yield wrong(op, what, expected, found, remedy, blob=state.read)
        if state.shared and producer is not None and state.read not in producer.inputs:
            what = f"op {producer.name!r} writes {name}, which is shared, and does not read it"
            expected, found = "an op that makes the next version of the newest", "one that does not"
            yield wrong(producer, what, expected, found, "let it read the state", blob=state.read)


def shared_states_agree(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """States that are shared under one name are typed alike, at CPU devices of one host."""
    first: dict[str, State] = {}
    for state in graph.states.values():
        blob = graph.blobs.get(state.read)
        if not state.shared or blob is None:
            continue
        other = first.setdefault(state.shared, state)
        like = graph.blobs.get(other.read)
        assert like is not None
        for aspect in ("shape", "dtype", "host"):
            own, others = (
                getattr(one.location if aspect == "host" else one, aspect) for one in (blob, like)
            )
            if own != others:
                what = f"states {other.read!r} and {state.read!r} are shared and differ in {aspect}"
                remedy = f"give both the same {aspect}, or share them under different names"
                yield wrong(state, what, f"{aspect} {others}", f"{aspect} {own}", remedy)
        if not blob.location.device.startswith("cpu:"):
            found = blob.location.device
            what = f"state {state.read!r} is shared, and at {found}"
            yield wrong(state, what, "a CPU device", found, "keep shared states at a CPU device")


def workers_share_states_alone(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """Workers are connected by shared states alone, of which each has at most one of a name.

    All may read a state that nobody updates.
    """
    if all(op.worker == 0 for op in graph.ops.values()):
        return
    expected, remedy = "ops of one worker", "share a state between the workers"
    user_of: dict[str, Op] = {}
    constant = {name for name, state in graph.states.items() if state.next == name}
    for op in graph.ops.values():
        if op.worker < 0:
            what = f"op {op.name!r} is of worker {op.worker}"
            yield wrong(op, what, "a whole number, 0 or more", str(op.worker), "write worker: 0")
        for name, _ in uses(op):
            first = user_of.setdefault(name, op)
            if first.worker != op.worker and name not in constant:
                found = f"op {first.name!r} of worker {first.worker}"
                what = f"op {op.name!r} of worker {op.worker} and {found} use blob {name!r}"
                yield wrong(op, what, expected, found, remedy, blob=name)
    for before, after in sorted(graph.control):
        one, two = graph.ops.get(before), graph.ops.get(after)
        if one and two and one.worker != two.worker:
            what = f"op {after!r} of worker {two.worker} waits for op {before!r}"
            yield wrong(two, what, expected, f"worker {one.worker}", remedy)
    shares: dict[tuple[int, str], State] = {}
    for state in graph.states.values():
        ends = [user_of[name].worker for name in (state.read, state.next) if name in user_of]
        if len(set(ends)) > 1:
            what = f"state {state.read!r} leads from worker {ends[-1]} to worker {ends[0]}"
            yield wrong(state, what, "a state of one worker", f"two: {ends}", remedy)
        elif ends and state.shared:
            twin = shares.setdefault((ends[0], state.shared), state)
            if twin is not state:
                both = f"{twin.read!r} and {state.read!r}"
                what = f"worker {ends[0]} shares both {both} as {state.shared!r}"
                yield wrong(state, what, "one state of each worker", both, "let both read one")


def periods_fit(graph: Graph, kinds: Kinds | None) -> Iterator[GraphError]:
    """An op that does not run in every iteration is read by ops that run in the same ones.

    A `Last` op goes on without such inputs. A state that such an op writes keeps its value in the
    other iterations, so the op reads it.
    """
    for op in graph.ops.values():
        if not 0 <= op.phase < op.every:
            what = f"op {op.name!r} runs in iteration {op.phase} of {op.every}"
            expected, found = "every >= 1 and 0 <= phase < every", f"{op.every} and {op.phase}"
            yield wrong(op, what, expected, found, "correct every and phase")
        for name in op.inputs[:1] if op.kind == LAST else op.inputs:
            maker = graph.producers.get(name)
            if maker is None or maker.every == 1:
                continue
            if (maker.every, maker.phase) == (op.every, op.phase):
                continue
            what = f"op {op.name!r} reads {name!r}, which is not there in every iteration"
            expected = f"iteration {maker.phase} of {maker.every}, as op {maker.name!r} has"
            found = f"iteration {op.phase} of {op.every}"
            remedy = "give both the same every and phase, or carry the value with a state"
            yield wrong(op, what, expected, found, remedy, blob=name)
    for name in graph.outputs:
        maker = graph.producers.get(name)
        if maker is not None and maker.every != 1:
            what = f"output {name!r} is not there in every iteration"
            expected, found = "an op that runs in every iteration", f"one of {maker.every}"
            yield wrong(maker, what, expected, found, "return another blob", blob=name)
    for state in graph.states.values():
        maker = graph.producers.get(state.next)
        if maker is not None and maker.every != 1 and state.read not in maker.inputs:
            what = f"op {maker.name!r}, which writes state {state.read!r}, does not always run"
            expected, found = "an op that reads the state it keeps", "one that does not"
            yield wrong(maker, what, expected, found, "let it read the state", blob=state.read)
