"""Workers in a run, on threads of their own: what holds in any order of their reads and writes."""

from __future__ import annotations

import pytest
import torch

import purine as pu
from purine.graph import Graph
from purine.optimize import evaluation
from purine.parallel import pipeline, replicate, serve
from purine.parallel.serve import RULES
from tests.parallel.nets import float64, images, lenet, trained


@pytest.mark.parametrize("scheme", list(RULES))
def test_every_scheme_learns(scheme: str) -> None:
    step = pu.solvers.sgd(pu.backward(float64(pu.zoo.mlp(batch=8))), lr=0.05, momentum=0.5)
    found = trained(serve(step, "cpu:0-2", scheme), steps=120)
    assert sum(found.losses[-15:]) < 0.7 * sum(found.losses[:15])


def test_every_ticket_is_taken_once() -> None:
    states = trained(serve(lenet(4), "cpu:0-2", "ssp"), steps=20).states
    assert {int(states[f"worker{worker}/tickets"]) for worker in range(3)} == {20}


def test_weights_of_gossip_add_up_to_one() -> None:
    states = trained(serve(lenet(4), "cpu:0-3", "gossip"), steps=40).states
    own = [states[f"worker{worker}/gossip0/weight"] for worker in range(4)]
    mailed = [states[f"worker0/mail{worker}/gossip0/weight"] for worker in range(4)]
    torch.testing.assert_close(sum([*own, *mailed]), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("staleness", [0, 2])
def test_no_read_is_beyond_the_bound(staleness: int) -> None:
    graph = serve(lenet(2), "cpu:0-2", "local", every=2, staleness=staleness)
    with pu.Run(graph, data=images(), threads=1, share_cores=True) as run:
        assert max(result.staleness for result in run.steps(60)) <= staleness


def test_one_worker_has_the_numbers_of_a_run_without() -> None:
    expected = trained(lenet(6))
    found = trained(serve(lenet(6), "cpu:0", "ssp"))
    assert found.losses == pytest.approx(expected.losses)
    name = "momentum/fc1/weight"
    torch.testing.assert_close(found.states[f"worker0/{name}"], expected.states[name])


def _inner() -> list[Graph]:
    return [
        replicate(lenet(2), "cpu:0-1"),
        pipeline(lenet(2), devices="cpu:0-1", micro=2, cut=["fc1"]),
    ]


@pytest.mark.parametrize("scheme", ["ssp", "easgd", "gossip"])
@pytest.mark.parametrize("inner", [0, 1])
def test_workers_of_several_devices_are_measured(scheme: str, inner: int) -> None:
    net = float64(pu.zoo.lenet(batch=4))
    data = pu.data.DataSet("random", images().train, images().train)
    with pu.Run(serve(_inner()[inner], "cpu:0-3", scheme), data=data, share_cores=True) as run:
        losses = [result.loss for result in run.steps(8)]
        measured = run.evaluate(evaluation(net))
    assert all(loss > 0 for loss in losses)
    assert 0 <= measured["accuracy"] <= 1
