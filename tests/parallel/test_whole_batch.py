"""Losses that are no plain mean over samples: every scheme gives the numbers of the whole batch.

What couples samples is computed on the whole batch, or refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.errors import ConfigError, GraphError
from purine.graph import Graph
from purine.importers.torch import Imported
from tests.parallel.nets import agree, float64, in_order, trained

BATCH, STEPS, CLASSES = 12, 2, 5
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.1], dtype=torch.float64)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(BATCH * STEPS, 6, generator=generator, dtype=torch.float64)
    return values, torch.randint(CLASSES, (BATCH * STEPS,), generator=generator)


class Net(nn.Module):
    """Two layers, with something between them that may look at the batch as a whole."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))


class RunningMean(nn.Module):
    """Subtracts a running mean, which is a buffer that the forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.average


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, CLASSES).double()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": F.cross_entropy,
    "sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "none": lambda y, t: F.cross_entropy(y, t, reduction="none").mean(),
    "class weights": lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS),
    "ignored label": lambda y, t: F.cross_entropy(y, t, ignore_index=1),
    "smooth and weighted": lambda y, t: F.cross_entropy(
        y, t, weight=WEIGHTS, label_smoothing=0.1, ignore_index=2
    ),
    "nll": lambda y, t: F.nll_loss(y.log_softmax(1), t, weight=WEIGHTS),
    "masked mean": lambda y, t: ((y**2).sum(1) * (t > 1)).sum() / (t > 1).sum(),
    "batchmean": lambda y, t: F.kl_div(y.log_softmax(1), one_hot(t), reduction="batchmean"),
    "sum and mean": lambda y, t: F.cross_entropy(y, t) + 0.1 * (y**2).sum(),
    "squared sum": lambda y, t: F.mse_loss(y, one_hot(t), reduction="sum"),
}
ROOT = {"root": lambda y, t: F.mse_loss(y, one_hot(t)).sqrt()}
MIXING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logsumexp": lambda y, t: torch.logsumexp(y[:, 0], 0),
    "contrastive": lambda y, t: F.cross_entropy(y @ y.T, torch.arange(len(y))),
}


@cache
def case(loss: str, between: Callable[[Tensor], Tensor] | None = None) -> tuple[Imported, list]:  # type: ignore[type-arg]
    """A module, imported, and PyTorch's own losses and parameters."""
    torch.manual_seed(0)
    module = Net(between or torch.nn.Identity()).double()
    function = (LOSSES | ROOT | MIXING)[loss]
    values, labels = data()
    imported = pu.from_torch(module, function, (values[:BATCH], labels[:BATCH]))
    module = copy.deepcopy(module)
    solver = torch.optim.SGD(module.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        found = function(module(values[part]), labels[part])
        solver.zero_grad()
        found.backward()
        solver.step()
        losses.append(found.item())
    return replace(imported, net=in_order(imported.net)), [losses, module.state_dict()]


def solver(graph: Graph) -> Graph:
    return pu.solvers.sgd(graph, lr=0.01)


def step_of(net: Graph, batch: int) -> Graph:
    return solver(pu.backward(with_batch(net, batch)))


def composed(**settings: object) -> Callable[[Graph], Graph]:
    def make(net: Graph) -> Graph:
        return pu.compose(net, solver=solver, **settings)  # type: ignore[arg-type]

    return make


SCHEMES: dict[str, Callable[[Graph], Graph]] = {
    "replicas": lambda net: pu.parallel.replicate(step_of(net, 6), "cpu:0-1"),
    "uneven replicas": lambda net: pu.parallel.replicate(
        [step_of(net, size) for size in (2, 6, 4)], "cpu:0-2"
    ),
    "micro-batches": lambda net: pu.parallel.accumulate(step_of(net, 4), 3),
    "pipeline": composed(devices="cpu:0-1", pipeline=2, micro=3, schedule="1f1b"),
    "zero-bubble": composed(devices="cpu:0-1", pipeline=2, micro=3, schedule="zero-bubble"),
    "replicas of pipelines": composed(devices="cpu:0-3", data=2, pipeline=2, micro=2),
    "replicas of micro-batches": lambda net: pu.parallel.replicate(
        pu.parallel.accumulate(step_of(net, 2), 3), "cpu:0-1", topology="ring"
    ),
    "shards": composed(devices="cpu:0-3", data=2, model=2),
}


def check_numbers(imported: Imported, expected: list, step: Graph) -> None:  # type: ignore[type-arg]
    source = pu.data.ArraySource(*data(), names=("x", "label"))
    with pu.Run(step, data=pu.data.DataSet("two", source), share_cores=True) as run:
        run.set_states(imported.values)
        losses = [result.loss for result in run.steps(STEPS)]
        states = imported.state_dict(run)
    torch.testing.assert_close(losses, expected[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(states, dict(expected[1]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_cut_batch_has_the_numbers_of_the_whole(loss: str, scheme: str) -> None:
    imported, expected = case(loss)
    check_numbers(imported, expected, SCHEMES[scheme](imported.net))


@pytest.mark.parametrize("loss", [*LOSSES, *ROOT, *MIXING])
def test_one_device_has_the_numbers_of_torch(loss: str) -> None:
    imported, expected = case(loss)
    check_numbers(imported, expected, solver(pu.backward(imported.net)))


def test_what_is_not_linear_in_the_loss_waits_for_all_forwards() -> None:
    imported, expected = case("root")
    for scheme in ("replicas", "uneven replicas", "micro-batches", "replicas of micro-batches"):
        check_numbers(imported, expected, SCHEMES[scheme](imported.net))
    every = composed(devices="cpu:0-1", pipeline=2, micro=3, schedule="gpipe")
    check_numbers(imported, expected, every(imported.net))
    with pytest.raises(GraphError, match="which the schedule makes later") as error:
        SCHEMES["pipeline"](imported.net)
    assert "schedule gpipe" in str(error.value)


@pytest.mark.parametrize("scheme", ["replicas", "uneven replicas", "micro-batches"])
def test_a_mean_over_the_batch_inside_a_net_is_that_of_the_whole(scheme: str) -> None:
    imported, expected = case("mean", _centred)
    check_numbers(imported, expected, SCHEMES[scheme](imported.net))


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _above_largest(x: Tensor) -> Tensor:
    return x - x.amax(0)


@pytest.mark.parametrize("scheme", ["replicas", "micro-batches", "replicas of micro-batches"])
def test_a_buffer_moves_once_for_the_whole_batch(scheme: str) -> None:
    imported, expected = case("mean", RunningMean())
    check_numbers(imported, expected, SCHEMES[scheme](imported.net))


@pytest.mark.parametrize("loss", MIXING)
@pytest.mark.parametrize("devices", ["cpu:0-1", "cpu:0-2"])
def test_a_loss_that_mixes_samples_is_computed_on_the_whole_batch(loss: str, devices: str) -> None:
    imported, expected = case(loss)
    step = composed(devices=devices)(imported.net)
    check_numbers(imported, expected, step)
    assert "replica1/first" in " ".join(step.ops) or "replica1/linear" in step.ops
    assert sum(op.kind in ("aten.logsumexp", "aten.matmul") for op in step.ops.values()) <= 3


def test_mixing_inside_the_net_is_computed_on_the_whole_batch() -> None:
    imported, expected = case("mean", _above_largest)
    check_numbers(imported, expected, composed(devices="cpu:0-1")(imported.net))


@pytest.mark.parametrize("scheme", [*SCHEMES])
@pytest.mark.parametrize("loss", MIXING)
def test_other_schemes_refuse_to_cut_what_mixes_samples(loss: str, scheme: str) -> None:
    imported, _ = case(loss)
    with pytest.raises(GraphError, match="the batch cannot be cut: op") as error:
        SCHEMES[scheme](imported.net)
    assert error.value.where is not None
    assert "test_whole_batch.py" in error.value.where
    assert "mixes the samples" in str(error.value)


@pytest.mark.parametrize("loss", MIXING)
def test_unequal_shares_of_what_mixes_samples_are_refused(loss: str) -> None:
    imported, _ = case(loss)
    with pytest.raises(ConfigError, match="reads the samples of a batch together") as error:
        composed(devices="cpu:0-1", shares=(2, 1))(imported.net)
    assert error.value.found == "shares=2:1"
    assert error.value.remedy == "leave shares out"


def test_synchronised_batch_norm_before_what_mixes_samples_is_refused() -> None:
    """Before a mixing op every device has its own samples, and batch norm would see these alone."""
    imported, _ = case("contrastive", nn.BatchNorm1d(8))
    synchronised = composed(devices="cpu:0-1", data=2, batch_norm="synchronised")
    with pytest.raises(GraphError, match="the batch cannot be cut"):
        synchronised(imported.net)


def test_hybrid_refuses_a_first_part_that_mixes_samples() -> None:
    imported, _ = case("mean", _above_largest)
    with pytest.raises(GraphError, match="mixes the samples") as error:
        pu.parallel.hybrid(with_batch(imported.net, 6), "cpu:0-1", split="second/linear")
    assert "split=" in str(error.value)


@pytest.mark.parametrize("ignored", [None, 3])
def test_our_own_losses_with_ignored_labels_are_means_over_the_whole_batch(
    ignored: int | None,
) -> None:
    def net(batch: int) -> Graph:
        made = pu.kinds.Net()
        x, label = made.data((batch, 1, 28, 28))
        scores = pu.kinds.inner_product(x, 10, name="fc")
        made.output(pu.kinds.softmax_loss(scores, label, ignore_label=ignored, name="loss"))
        made.output(pu.kinds.accuracy(scores, label, ignore_label=ignored, name="accuracy"))
        return in_order(float64(made.graph()))

    def step(batch: int) -> Graph:
        return solver(pu.backward(net(batch)))

    serial = trained(step(24))
    for cut in (
        pu.parallel.replicate(step(12), "cpu:0-1"),
        pu.parallel.accumulate(step(8), 3),
    ):
        agree(trained(cut), serial)


def test_a_plain_mean_needs_no_marks() -> None:
    step = pu.backward(pu.zoo.lenet(batch=4))
    marks = {"BatchReduce", "WholeBatch", "LabelCount"}
    assert marks.isdisjoint(op.kind for op in step.ops.values())


def test_labels_are_counted_ahead_of_compute() -> None:
    """No replica waits for the forward of another: the count of labels depends on data alone."""
    imported, _ = case("ignored label")
    step = SCHEMES["replicas"](imported.net)
    counts = [op for op in step.ops.values() if op.kind == "LabelCount"]
    assert len(counts) == 2
    assert {op.lane for op in counts} == {"inbound"}
    behind = set()
    for name in step.order:
        made = {step.producers[b].name for b in step.ops[name].inputs if b in step.producers}
        if step.ops[name].kind == "aten.linear" or made & behind:
            behind.add(name)
    (quotient,) = [
        op.name for op in step.ops.values() if op.name.startswith("grad/") and "div" in op.kind
    ]
    assert quotient not in behind
