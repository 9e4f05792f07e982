"""Cuts into stages."""

from __future__ import annotations

from functools import partial

import pytest

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph
from purine.parallel import balanced_cut, cut_at, times_of_step
from purine.parallel.cut import seconds
from purine.parallel.flow import flow_of
from purine.parallel.halves import halve
from tests.importers.models import CASES
from tests.importers.torch.test_imported import imported_from, made
from tests.parallel.test_pipeline import NETS, step_of


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NETS)
def test_values_go_to_later_stages_and_gradients_to_earlier_ones(name: str, stages: int) -> None:
    step = step_of(name)
    halves = halve(step)
    stage = balanced_cut(step, stages)
    assert stage.keys() == {op.name for op in halves.batch}
    assert set(stage.values()) == set(range(stages))
    back = set(flow_of(step, halves).backward)
    for before in stage:
        for after in step.successors[before]:
            if after in stage and before in back:
                assert stage[before] >= stage[after]
            elif after in stage and after not in back:
                assert stage[before] <= stage[after]


def longest(step: Graph, stages: int) -> float:
    times = [0.0] * stages
    for name, stage in balanced_cut(step, stages).items():
        times[stage] += seconds(step.ops[name], step.blobs)
    return max(times)


@pytest.mark.parametrize("name", ["googlenet", "resnet50", "gpt2"])
def test_stages_take_equally_long(name: str) -> None:
    step = step_of(name)
    assert longest(step, 4) < 1.3 * longest(step, 1) / 4


def test_backward_is_where_forward_is() -> None:
    step = step_of("gpt2")
    stage = cut_at(step, ["layer1", "layer2", "ln"])
    for name, number in stage.items():
        for block in (1, 2):
            if name.startswith((f"layer{block}/", f"grad/layer{block}/")):
                assert number == block
    assert stage["grad/scores/mm"] == stage["scores"] == 3
    assert stage["grad/embedding/weight"] == stage["embedding"] == 0


def test_what_is_drawn_or_read_is_where_it_is_used() -> None:
    step = step_of("gpt2")
    stage = balanced_cut(step, 4)
    for block in ("layer1/attention/drop", "layer2/mlp/drop"):
        assert stage[f"{block}/mask"] == stage[block]


def test_cuts_at_blocks() -> None:
    stage = cut_at(step_of("resnet50"), ["stage2", "stage4/block1"])
    for name, number in stage.items():
        if name.startswith(("stage1/", "grad/stage1/")):
            assert number == 0
        elif name.startswith(("stage2/", "stage3/", "grad/stage3/")):
            assert number == 1
        elif name.startswith(("stage4/", "grad/stage4/", "fc", "loss")):
            assert number == 2


@pytest.mark.parametrize(
    ("names", "message", "remedy"),
    [
        (["conv3"], "no op or block 'conv3'", "did you mean 'conv"),
        (["fc1", "conv2"], "stage 1 of the cut is empty", "sort the names"),
        (["fc1", "fc1"], "stage 1 of the cut is empty", "sort the names"),
        (["conv1"], "stage 0 of the cut is empty", "without the first op"),
    ],
)
def test_wrong_names(names: list[str], message: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        cut_at(step_of("lenet"), names)
    assert remedy in str(caught.value.remedy)


def test_a_state_that_passes_through_the_net_stays_in_one_stage() -> None:
    case = next(case for case in CASES if case.name == "siamese")
    module, _, example = made(case)
    net = imported_from(case, module, example).net
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    state = "tower.1.running_mean"
    last = step.producers[step.states[state].next].name
    stage = balanced_cut(step, 2)
    assert len({stage[op.name] for op in (*step.consumers[state], step.ops[last])}) == 1
    with pytest.raises(ConfigError, match="parts ops that carry state"):
        cut_at(step, [last])


@pytest.mark.parametrize("stages", [0, 100])
def test_wrong_numbers_of_stages(stages: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot be cut into {stages} stages"):
        balanced_cut(step_of("lenet"), stages)


def test_a_net_has_no_step() -> None:
    with pytest.raises(GraphError, match="has no gradients"):
        balanced_cut(pu.zoo.lenet(batch=3), 2)


def test_measured_times_decide_the_cut() -> None:
    step = step_of("lenet")
    slow = dict.fromkeys(step.ops, 0.0) | {"fc1": 1.0, "fc2": 1.0}
    stage = balanced_cut(step, 2, times=slow)
    assert (stage["conv1"], stage["conv2"], stage["fc1"], stage["fc2"]) == (0, 0, 0, 1)
    slow = dict.fromkeys(step.ops, 0.0) | {"conv1": 1.0, "conv2": 1.0}
    stage = balanced_cut(step, 2, times=slow)
    assert (stage["conv1"], stage["conv2"], stage["fc2"]) == (0, 1, 1)


def test_times_of_a_pipeline_are_those_of_its_step() -> None:
    step = step_of("lenet")
    graph = pu.parallel.pipeline(step, 2, devices="cpu:0-1", micro=3, schedule="1f1b")
    found = times_of_step(graph, dict.fromkeys(graph.ops, 1.0))
    assert found["conv1"] == found["grad/fc2/mm"] == 1.0
    sums = [op for op in graph.ops.values() if op.kind == "AddScaled"]
    for op in sums:
        assert graph.producers[op.inputs[1]].name.partition("/")[2] in found
    assert sum(found.values()) == pytest.approx(
        (len(sums) + sum(name.startswith("micro") for name in graph.ops)) / 3
    )
    assert not [name for name in found if name.startswith("update/") or name == "lr"]


def test_times_of_one_micro_batch_are_left_as_they_are() -> None:
    step = step_of("lenet")
    graph = pu.parallel.pipeline(step, 2, devices="cpu:0-1", micro=1)
    times = dict.fromkeys(graph.ops, 1.0)
    assert times_of_step(graph, times) == times


def test_times_of_another_graph_are_refused() -> None:
    step = step_of("lenet")
    graph = pu.parallel.pipeline(step, 2, devices="cpu:0-1", micro=2)
    with pytest.raises(ConfigError, match="no op 'conv1' that a time is given for"):
        times_of_step(graph, {"conv1": 1.0})
    with pytest.raises(ConfigError, match="no op 'micro0/conv1'"):
        times_of_step(step, {"micro0/conv1": 1.0})


def test_a_trace_of_a_pipeline_cuts_it_again() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=4), data.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    graph = pu.parallel.pipeline(step, 2, devices="cpu:0-1", micro=2)
    with pu.Run(graph, data=data, share_cores=True, record=True) as run:
        for _ in run.steps(2):
            pass
        times = times_of_step(graph, run.trace.times())
    assert set(balanced_cut(step, 2)) <= set(times)
    assert set(balanced_cut(step, 2, times=times).values()) == {0, 1}


def test_times_of_replicas_of_a_pipeline() -> None:
    net = pu.zoo.lenet(batch=4)
    settings = {"data": 2, "pipeline": 2, "micro": 2}
    solver = partial(pu.solvers.sgd, lr=0.1)
    graph = pu.compose(net, solver=solver, devices="cpu:0-3", **settings)
    found = times_of_step(graph, dict.fromkeys(graph.ops, 1.0))
    assert found["conv1"] == found["grad/fc2/mm"] == 1.0
    assert not [name for name in found if "micro" in name or "replica" in name]
