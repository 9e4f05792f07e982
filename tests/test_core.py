"""The core: scripts of events, and random graphs under random interleavings."""

from __future__ import annotations

import random

import pytest
import torch

from purine.core import Core, compile_plan
from purine.graph import Builder, Graph
from purine.lowering import Lowered
from purine.runtime.buffers import Buffers
from purine.runtime.program import compile_program
from purine.runtime.values import initial_states
from tests.runtime.random_graphs import random_graph, same_bits, serial


def chain(names: str, *, carried: bool = False) -> Graph:
    """Ops a, b, c, ... in a row; with `carried`, the last feeds the first through a state."""
    b = Builder()
    b.blob("in", ())
    previous = "in"
    for name in names:
        b.op(name, "aten.relu", [previous], [b.blob(f"{name}/out", ())])
        previous = f"{name}/out"
    b.state("in", previous if carried else None)
    return b.graph()


def tokens(core: Core, found: list[int]) -> list[tuple[str, int]]:
    return [(core.plan.ops[token % core.size], token // core.size) for token in found]


def test_an_op_is_ready_when_its_inputs_are() -> None:
    core = Core(compile_plan(chain("abc")), credit=1)
    assert tokens(core, core.extend(1)) == [("a", 0)]
    assert tokens(core, core.complete(0)) == [("b", 0)]
    assert tokens(core, core.complete(1)) == [("c", 0)]
    assert core.completed == 0
    assert core.complete(2) == []
    assert core.completed == 1
    assert core.idle


def test_nothing_starts_beyond_the_limit() -> None:
    core = Core(compile_plan(chain("a")), credit=4)
    assert core.extend(0) == []
    assert tokens(core, core.extend(2)) == [("a", 0), ("a", 1)]


def test_iterations_overlap_as_far_as_the_credit_goes() -> None:
    core = Core(compile_plan(chain("ab")), credit=2)
    assert tokens(core, core.extend(10)) == [("a", 0), ("a", 1)]
    core.complete(0)
    assert tokens(core, core.complete(1)) == [("a", 2)]


def test_a_state_is_waited_for_and_nothing_else() -> None:
    """The first op of iteration 1 waits for the last of iteration 0, since it reads its state."""
    core = Core(compile_plan(chain("ab", carried=True)), credit=2)
    assert tokens(core, core.extend(2)) == [("a", 0)]
    assert tokens(core, core.complete(0)) == [("b", 0)]
    assert tokens(core, core.complete(1)) == [("a", 1)]


def test_a_later_iteration_may_complete_first() -> None:
    core = Core(compile_plan(chain("a")), credit=2)
    core.extend(2)
    core.complete(1)
    assert core.completed == 0
    core.complete(0)
    assert core.completed == 2


def test_control_edges_order_ops_without_data() -> None:
    b = Builder()
    b.op("second", "aten.relu", [], [b.blob("x", ())])
    b.op("first", "aten.relu", [], [b.blob("y", ())])
    b.control.add(("first", "second"))
    core = Core(compile_plan(b.graph()), credit=1)
    assert tokens(core, core.extend(1)) == [("first", 0)]
    assert tokens(core, core.complete(0)) == [("second", 0)]


def test_a_run_may_start_at_any_iteration() -> None:
    core = Core(compile_plan(chain("ab", carried=True)), start=7, credit=3)
    assert tokens(core, core.extend(8)) == [("a", 7)]
    assert core.completed == 7


def test_waiting_names_what_is_held_up() -> None:
    core = Core(compile_plan(chain("ab")), credit=1)
    core.extend(1)
    assert core.waiting() == [(0, "b", 1)]


def test_short_ends_run_before_the_long_chain_goes_on() -> None:
    """With one lane, an update frees its gradient before the next gradient is made."""
    b = Builder()
    for name in ("x", "gx", "gw", "w", "g2", "g3"):
        b.blob(name, ())
    b.op("loss", "aten.relu", [], ["x"])
    b.op("input_gradient", "aten.relu", ["x"], ["gx"])
    b.op("next_gradient", "aten.relu", ["gx"], ["g2"])
    b.op("last_gradient", "aten.relu", ["g2"], ["g3"])
    b.op("weight_gradient", "aten.relu", ["x"], ["gw"])
    b.op("update", "aten.relu", ["gw"], ["w"])
    order = compile_plan(b.graph()).ops
    assert order.index("update") < order.index("next_gradient")


def test_with_several_lanes_the_longest_path_goes_first() -> None:
    b = Builder()
    for name in ("x", "y", "z", "u"):
        b.blob(name, ())
    b.op("short", "aten.relu", [], ["x"])
    b.op("long1", "aten.relu", [], ["y"], lane="compute:1")
    b.op("long2", "aten.relu", ["y"], ["z"])
    b.op("long3", "aten.relu", ["z"], ["u"])
    assert compile_plan(b.graph()).ops == ("long1", "long2", "short", "long3")


@pytest.mark.parametrize("seed", range(60))
def test_every_interleaving_gives_the_bits_of_the_serial_run(seed: int) -> None:
    """600 interleavings: 10 of each of 60 random graphs, buffers reused and overwritten."""
    iterations = 5
    graph = random_graph(seed, lanes=1 + seed % 4)
    outputs, states = serial(graph, iterations)
    program = compile_program(Lowered(graph))
    for interleaving in range(10):
        draw = random.Random(1000 * seed + interleaving)
        credit = draw.randint(1, 4)
        core = Core(program.plan, credit=credit)
        buffers = Buffers(
            program, states=initial_states(graph, 0), feeds={}, start=0, credit=credit
        )
        seen: set[int] = set()
        ready = core.extend(iterations)
        collected = 0
        while ready:
            token = ready.pop(draw.randrange(len(ready)))
            assert token not in seen
            assert token // core.size < core.completed + credit
            seen.add(token)
            buffers.run(token)
            buffers.release(token)
            ready += core.complete(token)
            while collected < core.completed:
                for name, value in buffers.collect(collected).items():
                    assert same_bits(value, outputs[collected][name]), (collected, name)
                collected += 1
        assert core.completed == iterations
        assert len(seen) == iterations * core.size
        for name, value in buffers.states(iterations).items():
            assert same_bits(value, states[name]), name
        carried = sum(state.next != state.read for state in graph.states.values())
        assert buffers.held() == carried, "a value outlived its last reader"


def test_a_state_is_written_in_place_when_its_readers_have_run() -> None:
    b = Builder()
    b.blob("w", (2,))
    b.blob("rate", (), "float64")
    b.op("reader", "aten.relu", ["w"], [b.blob("y", (2,))])
    b.op("update", "SgdUpdate", ["w", "y", "rate"], [b.blob("w/next", (2,))])
    b.state("w", "w/next")
    b.state("rate")
    b.outputs = ["y"]
    graph = b.graph()
    states = {"w": torch.ones(2), "rate": torch.tensor(0.5, dtype=torch.float64)}
    program = compile_program(Lowered(graph))
    memory = states["w"].data_ptr()
    buffers = Buffers(program, states=states, feeds={}, start=0, credit=1)
    core = Core(program.plan, credit=1)
    for token in core.extend(1):
        buffers.run(token)
        buffers.release(token)
        for following in core.complete(token):
            buffers.run(following)
            buffers.release(following)
            core.complete(following)
    after = buffers.states(1)["w"]
    assert after.tolist() == [0.5, 0.5]
    assert after.data_ptr() == memory
