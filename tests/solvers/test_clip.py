from __future__ import annotations

import pytest
import torch
from torch import optim

from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import ConfigError
from purine.solvers import clip_by_norm, sgd
from tests.reference import run
from tests.solvers.small import NAMES, assert_same, batches, small_net, train, train_torch


@pytest.mark.parametrize("max_norm", [0.05, 0.5, 100.0])
def test_training_gives_the_numbers_of_torch(max_norm):
    step = check(sgd(clip_by_norm(backward(small_net()), max_norm), lr=0.5, momentum=0.9))
    states, _ = train(step)
    make = lambda p: optim.SGD(p, lr=0.5, momentum=0.9)  # noqa: E731
    assert_same(states, train_torch(step, make, max_norm=max_norm))


def test_norm_and_raw_gradients_can_be_read():
    graph = check(clip_by_norm(backward(small_net()), 0.01))
    data, label = next(batches())
    values = run(graph, {"data": data, "label": label})
    raw = torch.cat([values[f"grad/{name}/raw"].flatten() for name in NAMES])
    clipped = torch.cat([values[f"grad/{name}"].flatten() for name in NAMES])
    torch.testing.assert_close(values["grad/norm"], raw.norm())
    assert raw.norm() > 0.02
    torch.testing.assert_close(clipped, raw * (0.01 / (raw.norm() + 1e-6)))


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf")])
def test_a_norm_out_of_range_is_refused(max_norm):
    with pytest.raises(ConfigError, match="max_norm is"):
        clip_by_norm(backward(small_net()), max_norm)
