"""Pipelines train as `accumulate` does on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Graph, Location
from purine.parallel import Schedule, gpipe, one_f_one_b, pipeline, replicate, zero_bubble
from purine.parallel.accumulate import accumulate
from purine.parallel.schedule import Unit
from purine.placement.copies import insert_copies
from tests.importers.models import CASES
from tests.importers.torch.test_imported import imported_from, made
from tests.parallel import nets
from tests.parallel.nets import Trained, agree, float64, images, lenet, trained

MICRO = 4
SMALL = (3, 32, 32)
TOKENS = "synthetic-tokens:length=8,vocabulary=20,count=40"


def nin() -> Graph:
    """A net in a net with dropout, on small images."""
    net = float64(pu.zoo.nin(batch=2, image=(3, 8, 8)))
    return pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9)


def googlenet() -> Graph:
    """Branches, and two auxiliary losses."""
    net = nets.googlenet(1, image=SMALL, width=4, hidden=8)
    return pu.solvers.sgd(pu.backward(float64(net)), lr=0.01, momentum=0.9)


def resnet50() -> Graph:
    """Skip connections, and statistics that pass from micro-batch to micro-batch."""
    net = pu.zoo.resnet50(batch=2, image=(3, 32, 32), classes=10, width=8, layers=(2, 1, 1, 1))
    return pu.solvers.sgd(pu.backward(float64(net)), lr=0.01, momentum=0.9)


def gpt2() -> Graph:
    """A table that the first and the last stage read, dropout, and clipped gradients."""
    net = pu.zoo.gpt2(batch=2, context=8, vocabulary=20, layers=2, heads=2, width=8)
    return pu.solvers.adam(pu.solvers.clip_by_norm(pu.backward(float64(net)), 0.5), lr=0.01)


NETS: dict[str, tuple[Callable[[], Graph], Callable[[], pu.data.DataSet]]] = {
    "lenet": (lambda: lenet(3), images),
    "nin": (nin, lambda: images((3, 8, 8), 40)),
    "googlenet": (googlenet, lambda: images(SMALL, 20)),
    "resnet50": (resnet50, lambda: images((3, 32, 32), 40)),
    "gpt2": (gpt2, lambda: pu.data.open_data(TOKENS)),
}


@cache
def step_of(name: str) -> Graph:
    return NETS[name][0]()


def train(name: str, step: Graph) -> Trained:
    return trained(step, data=NETS[name][1]())


@cache
def serial(name: str) -> Trained:
    return train(name, accumulate(step_of(name), MICRO))


SCHEDULED = [
    (name, (2, 4)[(row + column) % 2], schedule)
    for row, name in enumerate(NETS)
    for column, schedule in enumerate(["gpipe", "1f1b", "interleaved", "zero-bubble"])
]
"""Every net with every schedule, and 2 and 4 stages with each net and with each schedule."""


@pytest.mark.parametrize(("name", "stages", "schedule"), SCHEDULED)
def test_a_pipeline_trains_as_one_device(name: str, stages: int, schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    step = pipeline(
        step_of(name),
        stages,
        devices=[f"cpu:{number}" for number in range(stages // chunks)],
        micro=MICRO,
        schedule=schedule,
        chunks=chunks,
    )
    agree(train(name, step), serial(name))


@pytest.mark.parametrize("name", ["lenet", "resnet50", "gpt2"])
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    step = pipeline(step_of(name), devices="cpu:0-2", micro=MICRO)
    first, second = train(name, step), train(name, step)
    assert first.losses == second.losses
    assert all(torch.equal(first.states[state], second.states[state]) for state in first.states)


@pytest.mark.parametrize("name", ["gpt", "resnet", "siamese"])
def test_imported_modules(name: str) -> None:
    """In `siamese` the statistics of one batch norm pass through two places of the net."""
    case = next(case for case in CASES if case.name == name)
    module, data, example = made(case)
    imported = imported_from(case, module, example)
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1, momentum=0.9)

    def train(step: Graph) -> Trained:
        with pu.Run(step, data=data, threads=1, share_cores=True) as run:
            run.set_states(imported.values)
            return Trained([result.loss for result in run.steps(5)], run.states())

    found = train(pipeline(step, devices="cpu:0-1", micro=2, schedule="zero-bubble"))
    agree(found, train(accumulate(step, 2)))


@pytest.mark.parametrize("micro", [1, 2])
def test_fewer_micro_batches_than_stages(micro: int) -> None:
    step = pipeline(lenet(3), devices="cpu:0-2", micro=micro)
    agree(trained(step), trained(accumulate(lenet(3), micro)))


@pytest.mark.parametrize("name", ["lenet", "gpt2"])
def test_replicas_of_pipelines(name: str) -> None:
    inside = pipeline(step_of(name), devices="cpu:0-1", micro=2)
    agree(train(name, replicate(inside, "cpu:0-3")), serial(name))
    # Copies have names with devices: replicas elsewhere must not take one for another.
    agree(train(name, replicate(inside, "cpu:3,cpu:1,cpu:2,cpu:0")), serial(name))


def test_replicas_keep_the_schedule() -> None:
    inside = pipeline(lenet(3), devices="cpu:0-1", micro=3)
    outside = replicate(inside, "cpu:0-3")
    batch = {edge for edge in inside.control if all("update/" not in name for name in edge)}
    assert {(f"replica1/{a}", f"replica1/{b}") for a, b in batch} <= outside.control


def test_a_step_on_two_devices_takes_two_for_each_stage() -> None:
    step = lenet(3)
    builder = Builder(step)
    other = Location(device="cpu:1")
    for op in step.ops.values():
        if "fc" in op.name or "conv2" in op.name:
            builder.ops[op.name] = replace(op, location=other)
    for name, blob in step.blobs.items():
        maker = step.producers.get(name)
        if (maker is None and ("fc" in name or "conv2" in name)) or (
            maker is not None and builder.ops[maker.name].location == other
        ):
            builder.blobs[name] = replace(blob, location=other)
    both = insert_copies(builder.graph())
    found = pipeline(both, devices="cpu:0-3", micro=MICRO, cut=["fc1"])
    assert {found.ops[f"micro0/{name}"].location.device for name in ("conv1", "pool2")} == {"cpu:0"}
    assert found.ops["micro0/conv2"].location.device == "cpu:1"
    assert found.ops["micro0/relu1"].location.device == "cpu:2"
    assert found.ops["micro0/fc2"].location.device == "cpu:3"
    agree(trained(found), serial("lenet"))


def test_parameters_and_what_belongs_to_them_are_at_their_stage() -> None:
    step = pipeline(lenet(3), devices="cpu:0-1", micro=2, cut=["fc1"])
    for name, state in step.states.items():
        if state.trainable:
            device = "cpu:1" if name.startswith("fc") else "cpu:0"
            for blob in (name, f"{name}/next", f"momentum/{name}"):
                assert step.blobs[blob].location.device == device
    crossing = {op.inputs[0] for op in step.ops.values() if op.kind == "Copy"}
    assert {"micro0/pool2", "micro1/label", "micro0/grad/pool2"} <= crossing
    assert not any("weight" in name for name in crossing)


def test_a_tied_table_is_at_the_first_stage_that_reads_it() -> None:
    step = pipeline(gpt2(), devices="cpu:0-2", micro=2)
    assert step.blobs["embedding/weight"].location.device == "cpu:0"
    assert step.ops["micro0/scores"].location.device == "cpu:2"
    assert "embedding/weight@cpu:2" in step.blobs


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zero_bubble])
def test_devices_work_in_the_order_of_the_schedule(make: Callable[[int, int], Schedule]) -> None:
    schedule = make(2, 4)
    step = pipeline(lenet(3), devices="cpu:0-1", micro=4, schedule=schedule, cut=["fc1"])
    data = images()
    with pu.Run(step, data=data, threads=1, share_cores=True, record=True) as run:
        list(run.steps(2))
        trace = run.trace
    for device, row in enumerate(schedule.rows):
        seen = [
            unit
            for event in sorted(trace.events, key=lambda event: event.start)
            if event.iteration == 1
            and event.lane == "compute"
            and event.location.endswith(f"cpu:{device}")
            for unit in unit_of(event.op, device, split=schedule.split)
        ]
        assert tuple(u for k, u in enumerate(seen) if k == 0 or u != seen[k - 1]) == row


def unit_of(op: str, stage: int, *, split: bool) -> list[Unit]:
    """The unit of an op of lenet, as far as its name tells."""
    prefix, _, name = op.partition("/")
    if not prefix.startswith("micro"):
        return []
    micro = int(prefix.removeprefix("micro"))
    if not name.startswith("grad/"):
        return [Unit("F", micro, stage)]
    weights = ("mm.1", "sum", "/t", "fc2/reshape", "fc1/reshape", "conv1/convolution_backward")
    weights = (*weights, "conv2/convolution_backward")
    return [Unit("W" if split and name.endswith(weights) else "B", micro, stage)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_gradients_of_weights_come_behind_what_another_stage_waits_for(
    make: Callable[[int, int], Schedule],
) -> None:
    step = pipeline(lenet(3), devices="cpu:0-1", micro=4, schedule=make(2, 4), cut=["conv2"])
    for micro in range(4):
        sent = step.producers[f"micro{micro}/grad/pool1"]
        assert {op.kind for op in step.consumers[f"micro{micro}/grad/pool1"]} == {"Copy"}
        behind, found = set(), [sent.name]
        while found:
            behind.update(found)
            found = [later for name in found for later in step.successors[name]]
            found = list(set(found) - behind)
        for layer in ("conv2", "fc1", "fc2"):
            for part in ("weight", "bias"):
                gradient = step.producers[f"micro{micro}/grad/{layer}/{part}/raw"]
                assert gradient.location.device == "cpu:1"
                assert gradient.name in behind


def test_own_schedules_are_taken() -> None:
    grid = """
        0: F0 F1 .  .  B1 B0
        1: .  F0 F1 B1 B0 .
    """
    schedule = Schedule.parse(grid)
    step = pipeline(lenet(6), devices="cpu:0-1", micro=2, schedule=schedule)
    agree(trained(step), trained(accumulate(lenet(6), 2)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"devices": []}, "cannot be laid over 0"),
        ({"devices": ["cpu:0", "cpu:0"]}, "named twice"),
        ({"schedule": "2f2b"}, "no schedule '2f2b'"),
        ({"schedule": gpipe(3, 2)}, "for 3 devices, not 2"),
        ({"schedule": gpipe(2, 3)}, "for 3 micro-batches, not 2"),
        ({"stages": 3}, "for 2 stages, not 3"),
        ({"cut": ["conv2", "fc1"]}, "for 2 stages, not 3"),
        ({"cut": ["cnov2"]}, "no op or block 'cnov2'"),
        ({"chunks": 2}, "one stage on each device"),
        ({"micro": 0}, "micro is 0"),
        ({"schedule": "interleaved", "chunks": 2, "micro": 3}, "cannot be interleaved"),
        ({"devices": "cpu:0-40"}, "cannot be cut into 41 stages"),
    ],
)
def test_wrong_requests(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        pipeline(lenet(3), **{"devices": "cpu:0-1", "micro": 2, **settings})  # type: ignore[arg-type]


def test_a_net_has_no_step() -> None:
    with pytest.raises(GraphError, match="has no gradients"):
        pipeline(pu.zoo.lenet(batch=3), devices="cpu:0-1", micro=2)


def test_an_op_whose_results_nobody_wants() -> None:
    """Pooling by maxima leaves one behind, whose indices the backward makes again."""
    module = nn.Sequential(nn.Linear(6, 4), nn.AdaptiveMaxPool1d(2), nn.Linear(2, 3)).double()
    example = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    net = pu.from_torch(module, nn.functional.mse_loss, example).net
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    assert len(pu.parallel.devices_of(pipeline(step, devices="cpu:0-1", micro=2))) == 2
