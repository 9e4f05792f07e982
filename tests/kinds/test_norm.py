from __future__ import annotations

import pytest
import torch

from purine.errors import KindError
from purine.kinds import Net, batch_norm, layer_norm, lrn
from purine.kinds.norm import LRN, BatchNorm, BatchNormTest, LayerNorm
from tests.reference import following, run

X = torch.randn(4, 3, 5, 5, dtype=torch.float64)
ONE, ZERO = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)


def test_batch_norm_normalises_each_channel_over_the_batch() -> None:
    y, _, _ = BatchNorm(X, ONE, ZERO, ZERO, ONE, eps=0.0)
    torch.testing.assert_close(y.mean((0, 2, 3)), ZERO)
    torch.testing.assert_close(y.var((0, 2, 3), unbiased=False), ONE)


def test_running_statistics_move_by_the_momentum() -> None:
    _, mean, variance = BatchNorm(X, ONE, ZERO, ZERO, ONE, momentum=0.25)
    torch.testing.assert_close(mean, 0.25 * X.mean((0, 2, 3)))
    torch.testing.assert_close(variance, 0.75 + 0.25 * X.var((0, 2, 3)))


def test_batch_norm_at_test_time_uses_the_running_statistics() -> None:
    mean, variance = torch.full_like(ONE, 2.0), torch.full_like(ONE, 4.0)
    found = BatchNormTest(X, ONE, ZERO, mean, variance, eps=1e-12)
    torch.testing.assert_close(found, (X - 2) / 2)


def test_a_batch_norm_layer_carries_its_statistics() -> None:
    net = Net(dtype="float64")
    batch_norm(net.input("x", X.shape), name="bn", momentum=0.5)
    graph = net.graph()
    trainable = {name for name, state in graph.states.items() if state.trainable}
    assert trainable == {"bn/weight", "bn/bias"}
    states = following(graph, run(graph, {"x": X}))
    torch.testing.assert_close(states["bn/mean"], 0.5 * X.mean((0, 2, 3)))


def test_layer_norm_is_over_the_last_dimensions() -> None:
    y = LayerNorm(X, shape=(5, 5), eps=0.0)
    torch.testing.assert_close(y.mean((2, 3)), torch.zeros(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="does not end in shape"):
        LayerNorm(X, shape=(3, 5))


def test_layer_norm_layers() -> None:
    net = Net()
    x = net.input("x", (2, 3, 4))
    layer_norm(x, dims=2, name="ln1")
    layer_norm(x, affine=False, name="ln2")
    graph = net.graph()
    assert graph.blobs["ln1/weight"].shape == (3, 4)
    assert graph.ops["ln2"].inputs == ("x",)


def test_lrn_across_channels_sums_squares_of_neighbours() -> None:
    x = torch.arange(1.0, 6.0, dtype=torch.float64).reshape(1, 5, 1, 1)
    found = LRN(x, size=3, alpha=0.6, beta=2.0, k=1.5).flatten()
    squares = [0.0, *(value**2 for value in range(1, 6)), 0.0]
    for place in range(5):
        total = 1.5 + 0.6 / 3 * sum(squares[place : place + 3])
        assert found[place].item() == pytest.approx((place + 1) / total**2)


def test_lrn_within_a_channel_averages_squares_over_a_window() -> None:
    found = LRN(X, size=3, alpha=0.9, beta=0.75, k=1.0, region="within")
    window = X[1, 2, 0:3, 1:4]
    expected = X[1, 2, 1, 2] / (1 + 0.9 / 9 * (window**2).sum()) ** 0.75
    torch.testing.assert_close(found[1, 2, 1, 2], expected)
    corner = X[0, 0, 0:2, 0:2]
    expected = X[0, 0, 0, 0] / (1 + 0.9 / 9 * (corner**2).sum()) ** 0.75
    torch.testing.assert_close(found[0, 0, 0, 0], expected)


def test_lrn_layer_and_its_mistakes() -> None:
    x = Net().input("x", (2, 3, 4, 4))
    assert lrn(x, name="norm1").shape == (2, 3, 4, 4)
    with pytest.raises(KindError, match="odd within a channel"):
        lrn(x, size=4, region="within")
