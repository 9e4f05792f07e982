"""Mean images; what else `prepare` does is tested where nets are trained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from purine import Run, backward, evaluation
from purine.analysis.infer import check
from purine.data import ArraySource, DataSet, prepare
from purine.data.prepare import MEAN_IMAGE
from purine.errors import DataError
from purine.graph import Graph, from_yaml, to_yaml
from purine.parallel.accumulate import accumulate
from purine.solvers import sgd
from purine.zoo import mlp

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 1, 6, 6), np.uint8)
DATA = DataSet(
    "small", ArraySource(IMAGES, np.arange(8) % 3), ArraySource(IMAGES[:4], np.arange(4) % 3)
)
MEAN = torch.from_numpy(IMAGES.mean(0)).float()


def net(side: int) -> Graph:
    return mlp(batch=8, image=(1, side, side), classes=3)


def centred(graph: Graph) -> torch.Tensor:
    """What the net gets to see of the first batch, in the order of the samples."""
    graph = check(Graph(graph.blobs, graph.ops, graph.states, outputs=("data", "label")))
    with Run(graph, data=DATA) as run:
        run.set_states({MEAN_IMAGE: MEAN})
        return next(run.steps(1)).outputs["data"]


def test_a_mean_image_is_subtracted_before_scaling() -> None:
    seen = centred(prepare(net(6), DATA.train, mean=MEAN, scale=0.5))
    expected = (torch.from_numpy(IMAGES).float() - MEAN) * 0.5
    key = [tuple(row.flatten().tolist()) for row in seen]
    assert sorted(key) == sorted(tuple(row.flatten().tolist()) for row in expected)


def test_a_mean_image_is_cropped_with_the_image() -> None:
    prepared = prepare(net(4), DATA.train, mean=MEAN, scale=1.0, crop=4)
    measured = evaluation(prepared, ["data"])
    with Run(prepared, data=DATA) as run:
        run.set_states({MEAN_IMAGE: MEAN})
        values = run.states()
    with Run(measured, data=DataSet("test", DATA.train, DATA.train)) as run:
        run.set_states({MEAN_IMAGE: values[MEAN_IMAGE]})
        seen = next(run.steps(1)).outputs["data"]
    expected = (torch.from_numpy(IMAGES).float() - MEAN)[:, :, 1:5, 1:5]
    torch.testing.assert_close(seen, expected)


def test_a_test_net_is_prepared_without_chance() -> None:
    tested = evaluation(net(4), ["data"])
    graph = prepare(tested, DATA.train, scale=1.0, crop=4, mirror=True)
    with Run(graph, data=DataSet("test", DATA.train, DATA.train)) as run:
        seen = next(run.steps(1)).outputs["data"]
    torch.testing.assert_close(seen, torch.from_numpy(IMAGES).float()[:, :, 1:5, 1:5])


def test_a_run_that_was_not_told_the_mean_has_no_loss() -> None:
    prepared = prepare(net(6), DATA.train, mean=MEAN)
    assert check(from_yaml(to_yaml(prepared))) == check(prepared)
    step = sgd(accumulate(backward(prepared), 2), lr=0.1)
    with Run(step, data=DATA) as run:
        assert math.isnan(next(run.steps(1)).loss)
    with Run(step, data=DATA) as run:
        run.set_states({MEAN_IMAGE: MEAN})
        assert next(run.steps(1)).loss < 1e6
        assert run.evaluate(evaluation(prepared))["loss"] < 1e6


@pytest.mark.parametrize("mean", [MEAN[:, 1:], MEAN[0], MEAN.to(torch.uint8)])
def test_means_that_do_not_fit(mean: torch.Tensor) -> None:
    with pytest.raises(DataError, match="mean image does not fit") as caught:
        prepare(net(6), DATA.train, mean=mean)
    assert "[1, 6, 6]" in str(caught.value.expected)


def test_a_mean_image_for_samples_that_are_none() -> None:
    source = ArraySource(np.zeros((8, 5), np.float32), names=("row",))
    with pytest.raises(DataError, match="mean image does not fit"):
        prepare(net(6), source, mean=MEAN)
