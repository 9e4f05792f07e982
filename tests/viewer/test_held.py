"""The bytes that devices hold, from a trace: the forecast where nothing overlaps."""

from __future__ import annotations

from typing import Any

import pytest

from purine.graph import Graph
from purine.job import merge
from purine.job.foresee import foresee
from purine.job.plan import JobPlan, make_plan
from purine.lowering import lower
from purine.lowering.lowered import Lowered
from purine.trace.trace import Trace
from purine.viewer.columns import unpacked
from purine.viewer.document import of_prediction
from purine.viewer.held import memory_of
from purine.viewer.traffic import traffic_of


def planned(**options: object) -> tuple[JobPlan, Lowered, Trace]:
    plan = make_plan(merge({}, {"net": "lenet", "iters": 5, **options}), elsewhere=True)
    return plan, lower(plan.step), foresee(plan, single=True, memory=False).trace


def test_one_iteration_alone_holds_what_the_forecast_says() -> None:
    _, lowered, trace = planned()
    alone = Trace(tuple(e for e in trace.events if e.iteration == 5), trace.edges)
    (device,) = held(alone, lowered.graph)
    (forecast,) = lowered.peak_memory().values()
    assert device["peak"] == pytest.approx(forecast, rel=0.001)
    assert sum(blob[1] for blob in device["blobs"]) <= device["peak"]
    assert max(unpacked(device["held"])) == device["peak"]


def held(trace: Trace, graph: Graph) -> Any:
    return memory_of(trace, [graph], min(event.start for event in trace.events))


def test_iterations_that_overlap_hold_more() -> None:
    _, lowered, trace = planned()
    alone = Trace(tuple(e for e in trace.events if e.iteration == 5), trace.edges)
    (one,), (all_of_it,) = held(alone, lowered.graph), held(trace, lowered.graph)
    assert one["states"] == all_of_it["states"]
    assert one["peak"] < all_of_it["peak"] < 2 * one["peak"]


def test_replicas_send_gradients_and_read_parameters() -> None:
    plan, lowered, trace = planned(devices="cpu:0-1")
    traffic: Any = traffic_of(trace, plan.step, [lowered.graph])
    moved = {(pair[0], pair[1]): pair[2] / traffic["iterations"] for pair in traffic["pairs"]}
    parameters = 4 * 431_080
    assert traffic["places"] == ["host 127.0.0.1, cpu:0", "host 127.0.0.1, cpu:1"]
    # Each gradient goes to the owner of its parameter, which the other device reads.
    assert moved[1, 0] + moved[0, 1] == pytest.approx(2 * parameters, rel=0.001)
    for pair in traffic["pairs"]:
        assert unpacked(pair[5]).sum() == pair[2]


def test_hosts_send_what_the_simulator_sends() -> None:
    plan = make_plan(
        merge({}, {"net": "lenet", "iters": 5, "devices": "host0-1:cpu:0"}), elsewhere=True
    )
    found = foresee(plan, single=True, memory=False)
    traffic: Any = of_prediction(plan, "job", found.trace)["traffic"]
    places = [place.split()[1].rstrip(",") for place in traffic["places"]]
    moved = {
        (places[a], places[b]): size / traffic["iterations"] for a, b, size, *_ in traffic["pairs"]
    }
    assert moved.keys() == found.pairs.keys()
    for pair, size in moved.items():
        assert size == pytest.approx(found.pairs[pair], rel=0.02)
