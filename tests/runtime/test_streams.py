"""Where events stand between the streams of GPUs: plain graph tests, no GPU needed."""

from __future__ import annotations

import purine as pu
from purine.core import Plan, compile_plan
from purine.graph import Builder, Graph, Location
from purine.lowering import Lowered
from purine.parallel import replicate
from purine.placement.copies import insert_copies
from purine.placement.place import to_device
from purine.runtime.program import compile_program
from purine.runtime.streams import StreamPlan, stream_plan
from purine.solvers import sgd
from purine.zoo import mlp

GPU = Location(device="cuda:0")


def planned(graph: Graph) -> tuple[Plan, StreamPlan]:
    plan = compile_plan(graph)
    return plan, stream_plan(graph, plan)


def waits_of(graph: Graph, name: str) -> list[tuple[str, int]]:
    plan, found = planned(graph)
    index = plan.ops.index(name)
    return [(plan.ops[op], ago) for op, ago in (*found.waits[index], *found.host_waits[index])]


def chain(*lanes: tuple[str, Location]) -> Graph:
    """Ops in a row, each on a lane at a location."""
    builder = Builder()
    before = builder.blob("x", (2,), location=lanes[0][1])
    for count, (lane, location) in enumerate(lanes):
        after = builder.blob(f"y{count}", (2,), location=location)
        builder.op(f"op{count}", "Copy", [before], [after], location=location, lane=lane)
        before = after
    return builder.graph()


def test_ops_of_one_stream_need_no_event() -> None:
    graph = chain(("compute", GPU), ("compute", GPU))
    assert waits_of(graph, "op1") == []
    assert planned(graph)[1].signals == frozenset()


def test_a_stream_waits_for_another_by_an_event() -> None:
    graph = chain(("inbound", GPU), ("compute", GPU))
    plan, found = planned(graph)
    assert waits_of(graph, "op1") == [("op0", 0)]
    assert found.signals == {plan.ops.index("op0")}
    assert found.foreign[plan.ops.index("op1")] == ("y0",)


def test_the_host_waits_where_a_cpu_reads_from_a_gpu_and_not_the_other_way() -> None:
    cpu = Location()
    graph = chain(("compute", cpu), ("inbound", GPU), ("inbound", cpu))
    plan, found = planned(graph)
    assert waits_of(graph, "op1") == []
    last = plan.ops.index("op2")
    assert found.host_waits[last] == ((plan.ops.index("op1"), 0),)
    assert found.waits[last] == ()


def test_what_a_state_carries_is_waited_for_in_the_next_iteration() -> None:
    builder = Builder()
    for name in ("w", "w/next", "y"):
        builder.blob(name, (2,), location=GPU)
    builder.op("update", "aten.neg", ["w"], ["w/next"], location=GPU, lane="inbound")
    builder.op("use", "aten.relu", ["w"], ["y"], location=GPU)
    builder.state("w", "w/next")
    builder.outputs = ["y"]
    graph = builder.graph()
    assert ("update", 1) in waits_of(graph, "use")
    assert planned(graph)[1].foreign[planned(graph)[0].ops.index("use")] == ("w",)


def test_outputs_made_on_a_gpu_are_fetched() -> None:
    step = to_device(sgd(pu.backward(mlp(batch=4)), lr=0.1), "cuda:0")
    plan, found = planned(step)
    maker = plan.ops.index(step.producers["loss"].name)
    assert ("loss", 0) in found.fetched[maker]
    assert maker in found.signals


def test_a_state_that_is_reported_is_fetched_behind_what_carries_it_on() -> None:
    net = pu.mixed(mlp(batch=4), "fp16")
    step = to_device(sgd(pu.backward(net), lr=0.1), "cuda:0")
    assert "loss_scale" in step.outputs
    plan, found = planned(step)
    maker = plan.ops.index(step.producers[step.states["loss_scale"].next].name)
    assert ("loss_scale", 1) in found.fetched[maker]
    assert maker in found.signals


def test_an_update_in_place_waits_for_the_streams_that_read_the_old_value() -> None:
    step = replicate(sgd(pu.backward(mlp(batch=4)), lr=0.1, momentum=0.9), "cuda:0-1")
    sources = {op.name: lambda *_: None for op in step.ops.values() if op.kind == "Data"}
    program = compile_program(Lowered(step), sources)  # type: ignore[arg-type]
    plan = program.plan
    found = stream_plan(step, plan, program)
    owner = step.ops["update/fc1/weight"]
    readers = [
        op.name
        for op in step.consumers["fc1/weight"]
        if (op.location, op.lane) != (owner.location, owner.lane)
    ]
    assert readers
    index = plan.ops.index(owner.name)
    assert {(plan.ops.index(name), 0) for name in readers} <= set(found.waits[index])


def test_batches_do_not_wait_for_what_other_devices_send() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(mlp(batch=4), data.train)
    step = replicate(sgd(pu.backward(net), lr=0.1, momentum=0.9), "cuda:0-1")
    plan, found = planned(step)
    queues = dict(zip(plan.ops, found.queue, strict=True))
    inbound = [op for op in step.ops.values() if op.lane == "inbound" and op.location != Location()]
    fed = [op for op in inbound if not step.blobs[op.inputs[0]].location.device.startswith("cuda")]
    rest = [op for op in inbound if op not in fed]
    assert any("data" in op.name for op in fed)
    assert any("grad/" in op.name for op in rest)
    assert {queues[op.name] for op in fed}.isdisjoint(queues[op.name] for op in rest)


def test_data_for_a_gpu_is_read_on_the_host_and_prepared_on_the_gpu() -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=4), data.train)
    step = to_device(sgd(pu.backward(net), lr=0.1), "cuda:0")
    assert step.ops["data"].location == Location()
    assert step.blobs["data/raw"].dtype == "uint8"
    assert step.ops["data/raw@cuda:0"].lane == "inbound"
    assert step.ops["data/normalize"].location == GPU
    assert step.ops["data/normalize"].lane == "compute"
    assert step.blobs["iteration"].location == Location()
    assert insert_copies(step) == step
