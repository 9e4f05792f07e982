from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from purine.errors import KindError
from purine.kinds import (
    Net,
    accuracy,
    euclidean_loss,
    hinge_loss,
    sigmoid_cross_entropy_loss,
    softmax,
    softmax_loss,
)
from purine.kinds.loss import (
    Accuracy,
    EuclideanLoss,
    HingeLoss,
    SigmoidCrossEntropyLoss,
    Softmax,
    SoftmaxLoss,
)
from purine.registry.lookup import kinds

X = torch.randn(4, 5, dtype=torch.float64)
LABEL = torch.tensor([0, 3, 4, 1])


def test_softmax_sums_to_one_along_its_axis() -> None:
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(Softmax(x).sum(1), torch.ones(2, 4))
    torch.testing.assert_close(Softmax(x, axis=-1).sum(2), torch.ones(2, 3))


def test_softmax_loss_is_the_mean_over_labels() -> None:
    expected = -F.log_softmax(X, 1)[torch.arange(4), LABEL].mean()
    torch.testing.assert_close(SoftmaxLoss(X, LABEL), expected)
    torch.testing.assert_close(SoftmaxLoss(X, LABEL.to(torch.uint8)), expected)


def test_softmax_loss_of_equal_scores_is_the_log_of_the_classes() -> None:
    assert SoftmaxLoss(torch.zeros(3, 10), LABEL[:3]).item() == pytest.approx(math.log(10))


def test_classes_may_lie_along_any_axis() -> None:
    x, label = torch.randn(2, 3, 5, dtype=torch.float64), torch.tensor([[0, 1, 4], [2, 3, 0]])
    expected = SoftmaxLoss(x.reshape(6, 5), label.flatten())
    torch.testing.assert_close(SoftmaxLoss(x, label, axis=2), expected)
    torch.testing.assert_close(SoftmaxLoss(x.transpose(1, 2), label), expected)


def test_ignored_labels_do_not_count() -> None:
    expected = SoftmaxLoss(X[[0, 2, 3]], LABEL[[0, 2, 3]])
    torch.testing.assert_close(SoftmaxLoss(X, LABEL, ignore_label=3), expected)
    outside = torch.tensor([0, 255, 4, 1])
    torch.testing.assert_close(SoftmaxLoss(X, outside, ignore_label=255), expected)
    nothing = torch.full((4,), 255)
    assert SoftmaxLoss(X, nothing, ignore_label=255).item() == 0


def test_a_label_outside_the_classes_is_never_ignored_silently() -> None:
    for wrong in (-100, 5):
        with pytest.raises((IndexError, RuntimeError)):
            SoftmaxLoss(X, torch.tensor([0, wrong, 1, 2]))


def test_sigmoid_cross_entropy_is_summed_per_sample() -> None:
    target = torch.rand(4, 5, dtype=torch.float64)
    p = torch.sigmoid(X)
    expected = -(target * p.log() + (1 - target) * (1 - p).log()).sum() / 4
    torch.testing.assert_close(SigmoidCrossEntropyLoss(X, target), expected)
    whole = torch.ones(4, 5, dtype=torch.int64)
    torch.testing.assert_close(SigmoidCrossEntropyLoss(X, whole), -p.log().sum() / 4)


def test_euclidean_loss_is_half_of_the_square_per_sample() -> None:
    x, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    assert EuclideanLoss(x, target).item() == pytest.approx((1 + 4 + 9) / 4)
    with pytest.raises(ValueError, match="target has"):
        EuclideanLoss(x, target[:1])


def test_hinge_loss_is_one_against_all() -> None:
    x, label = torch.tensor([[0.5, -2.0, 0.0]]), torch.tensor([0])
    assert HingeLoss(x, label).item() == pytest.approx(0.5 + 0 + 1)
    assert HingeLoss(x, label, norm=2).item() == pytest.approx(0.25 + 0 + 1)


def test_accuracy_counts_labels_among_the_greatest() -> None:
    x = torch.tensor([[0.1, 0.9, 0.5], [0.9, 0.1, 0.5], [0.1, 0.5, 0.9], [0.5, 0.9, 0.1]])
    label = torch.tensor([1, 1, 1, 0])
    assert Accuracy(x, label).item() == 0.25
    assert Accuracy(x, label, top_k=2).item() == 0.75
    assert Accuracy(x, label, top_k=3).item() == 1.0
    assert Accuracy(x, label, ignore_label=0).item() == pytest.approx(1 / 3)
    assert Accuracy(x[:, :, None], label[:, None]).item() == 0.25


def test_scores_that_are_no_numbers_are_not_all_right() -> None:
    x = torch.full((6, 3), float("nan"))
    assert Accuracy(x, torch.tensor([0, 0, 1, 1, 2, 2])).item() < 1


def test_layers_make_scalars_and_losses_are_marked() -> None:
    net = Net(dtype="float64")
    x, target = net.input("x", (4, 5)), net.input("target", (4, 5))
    label = net.input("label", (4,), "int64")
    made = [
        softmax_loss(x, label, loss_weight=0.3),
        sigmoid_cross_entropy_loss(x, target),
        euclidean_loss(x, target),
        hinge_loss(x, label, norm=2),
        accuracy(x, label, top_k=2),
    ]
    ops = net.graph().ops
    assert {y.shape for y in made} == {()}
    assert {y.blob.dtype for y in made} == {"float64"}
    assert [kinds()[ops[y.name].kind].loss for y in made] == [True, True, True, True, False]
    assert ops["softmax_loss"].attributes == {"loss_weight": 0.3}
    assert softmax(x).shape == (4, 5)


def test_mistakes() -> None:
    net = Net()
    x, label = net.input("x", (4, 5)), net.input("label", (4,), "int64")
    with pytest.raises(KindError, match=r"label has shape \[4\]: scores like x need \[5\]"):
        softmax_loss(x, label, axis=0)
    with pytest.raises(KindError, match="labels are whole numbers"):
        softmax_loss(x, net.input("real", (4,)))
    with pytest.raises(KindError, match="top_k is 6, but there are 5 classes"):
        accuracy(x, label, top_k=6)
    with pytest.raises(KindError, match="norm to be one of 1, 2"):
        net.apply("HingeLoss", [x, label], {"norm": 3})
