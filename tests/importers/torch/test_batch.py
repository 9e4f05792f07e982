"""Imported nets at other batch sizes than the example's: the numbers of the module itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.data import ArraySource, DataSet
from purine.data.order import Reader
from purine.errors import KindError
from purine.graph import Graph
from purine.importers.torch import Imported, from_torch
from purine.parallel import replicate
from tests.importers.models import BATCH, CASES, Case

STEPS = 2
OTHERS = (3, 7)
WITHOUT_BATCH_NORM = [c for c in CASES if c.name not in ("resnet", "densenet", "siamese")]


def imported_from(case: Case) -> tuple[nn.Module, Imported]:
    """A module to be trained, and the graphs of one like it."""
    module, imported = _imported(case)
    return copy.deepcopy(module), imported


@cache
def _imported(case: Case) -> tuple[nn.Module, Imported]:
    torch.manual_seed(0)
    module = case.make().double()
    example = case.data(torch.Generator().manual_seed(1), BATCH)
    return module, from_torch(module, case.loss, example, inputs=case.inputs, targets=("answer",))


def data_of(case: Case, train: int, test: int) -> DataSet:
    generator = torch.Generator().manual_seed(2)
    names = (*case.inputs, "answer")
    parts = (ArraySource(*case.data(generator, count), names=names) for count in (train, test))
    return DataSet(case.name, *parts)


def close(found: object, expected: object, rtol: float = 1e-8) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-12)


def trained(
    step: Graph, imported: Imported, data: DataSet, test: Graph | None = None
) -> tuple[list[float], dict[str, Tensor], float]:
    """Losses, the state dict behind them, and the loss of the test set."""
    with pu.Run(pu.solvers.sgd(step, lr=0.1, momentum=0.9), data=data, seed=0) as run:
        run.set_states(imported.values)
        losses = [result.loss for result in run.steps(STEPS)]
        tested = 0.0 if test is None else run.evaluate(test)["loss"]
        return losses, imported.state_dict(run), tested


@pytest.mark.parametrize("batch", OTHERS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_net_of_another_batch_size_is_the_module_at_that_size(case: Case, batch: int) -> None:
    module, imported = imported_from(case)
    count = BATCH + batch // 2
    data = data_of(case, STEPS * batch, count)
    net = pu.check(with_batch(imported.net, batch))
    losses, states, tested = trained(pu.backward(net), imported, data, imported.test)

    reader = Reader(data.train, batch=batch, seed=0, shuffle=True)
    solver = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for step in range(STEPS):
        *inputs, target = reader.read(step)
        loss = case.loss(module(*inputs), target)
        solver.zero_grad()
        loss.backward()
        solver.step()
        expected.append(loss.item())
    close(losses, expected)
    close(states, dict(module.state_dict()))
    module.eval()
    assert data.test is not None
    whole = Reader(data.test, batch=count, seed=0, shuffle=False).read(0)
    total = 0.0
    for rows in (slice(BATCH), slice(BATCH, None)):
        *inputs, target = (value[rows] for value in whole)
        with torch.no_grad():
            total += case.loss(module(*inputs), target).item() * len(target)
    close(tested, total / count)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_own_batch_size_gives_the_same_net_again(case: Case) -> None:
    _, imported = imported_from(case)
    for graph in (imported.net, imported.test):
        assert with_batch(with_batch(graph, 9), BATCH) == graph
        assert "FixedBatch" not in {op.kind for op in graph.ops.values()}


def as_one_batch(imported: Imported, data: DataSet) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The states by micro-batches of the imported net, and by the one batch twice as large."""
    parts = pu.parallel.accumulate(pu.backward(imported.net), 2)
    whole = pu.backward(with_batch(imported.net, 2 * BATCH))
    found, expected = trained(parts, imported, data), trained(whole, imported, data)
    close(found[0], expected[0], 1e-9)
    return found[1], expected[1]


@pytest.mark.parametrize("case", WITHOUT_BATCH_NORM, ids=str)
def test_micro_batches_are_one_large_batch(case: Case) -> None:
    _, imported = imported_from(case)
    found, expected = as_one_batch(imported, data_of(case, STEPS * 2 * BATCH, 1))
    running = {"load"}  # a mean over steps, of which micro-batches make two
    for name in expected.keys() - running:
        close(found[name], expected[name], 1e-9)


class Dropping(nn.Module):
    """Dropout of elements, channels, attention weights, and where the batch comes second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 5, 1)
        self.channels = nn.Dropout1d(0.25)
        self.attend = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
        self.lstm = nn.LSTM(6, 4, 2, dropout=0.5, batch_first=True)
        self.elements = nn.Dropout(0.5)
        self.turned = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channels(self.conv(x))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = self.turned(x.transpose(0, 1)).transpose(0, 1)
        return self.elements(self.lstm(x)[0]).flatten(1)


DROPPING = Case(
    "dropping",
    Dropping,
    F.cross_entropy,
    ("data",),
    lambda g, n: (
        torch.randn(n, 5, 6, generator=g, dtype=torch.float64),
        torch.randint(20, (n,), generator=g),
    ),
)


def test_parts_of_a_batch_drop_what_the_whole_batch_drops() -> None:
    _, imported = imported_from(DROPPING)
    kinds = [op.kind for op in imported.net.ops.values()]
    assert kinds.count("Dropout") == 4
    assert kinds.count("sized.RandomMask") == 1
    found, expected = as_one_batch(imported, data_of(DROPPING, STEPS * 2 * BATCH, 1))
    close(found, expected, 1e-9)


def test_replicas_drop_what_the_whole_batch_drops() -> None:
    _, imported = imported_from(DROPPING)
    data = data_of(DROPPING, STEPS * 2 * BATCH, 1)
    found = []
    for step in (
        pu.solvers.sgd(pu.backward(with_batch(imported.net, 2 * BATCH)), lr=0.1),
        replicate(pu.solvers.sgd(pu.backward(imported.net), lr=0.1), "cpu:0-1"),
    ):
        with pu.Run(step, data=data, seed=0, share_cores=True) as run:
            run.set_states(imported.values)
            losses = [result.loss for result in run.steps(STEPS)]
            found.append((losses, {name: run.states()[name] for name in imported.values}))
    close(found[1], found[0], 1e-9)


def vectors(g: torch.Generator, count: int) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, generator=g, dtype=torch.float64), torch.arange(count) % 3


def own_score(y: Tensor, label: Tensor) -> Tensor:
    return -y.log_softmax(1)[torch.arange(len(y)), label].sum() / len(y)


def contrast(y: Tensor, label: Tensor) -> Tensor:
    """Two views of each sample, each of which should be most like the other."""
    count = len(y)
    both = torch.cat([y, y.flip(1)])
    likeness = both @ both.T
    likeness = likeness.masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
    partner = torch.cat([torch.arange(count, 2 * count), torch.arange(count)])
    first, second = both[:count], both[count:]
    return F.cross_entropy(likeness, partner) + (first - second).abs().sum() * (1 / count)


def covariance(y: Tensor, label: Tensor) -> Tensor:
    centred = y - y.sum(0) / float(len(y))
    spread = centred.T @ centred / (len(y) - 1)
    return spread.pow(2).sum() + y.new_zeros(len(y), 3).add(y).mean() + 0 * label.sum()


def repeated(y: Tensor, label: Tensor) -> Tensor:
    table = torch.linspace(0, 1, 3, dtype=torch.float64).repeat(len(y), 1)
    return (y - table).pow(2).view(len(y) * 3).mean() + (y.unsqueeze(0) - y.unsqueeze(1)).expand(
        len(y), -1, 3
    ).pow(2).mean()


@pytest.mark.parametrize(
    ("loss", "counts"),
    [
        (own_score, {"batch"}),
        (contrast, {"batch", "2*batch", "1.0/batch"}),
        (covariance, {"batch", "1.0*batch", "batch-1"}),
        (repeated, {"batch"}),
    ],
)
def test_numbers_made_from_the_batch_size_follow_it(
    loss: Callable[..., Tensor], counts: set[str]
) -> None:
    case = Case(loss.__name__, lambda: nn.Linear(3, 3), loss, ("data",), vectors)
    test_a_net_of_another_batch_size_is_the_module_at_that_size(case, 7)
    _, imported = imported_from(case)
    assert pu.graph.from_yaml(pu.graph.to_yaml(imported.net)) == imported.net
    found = {
        item
        for op in imported.net.ops.values()
        if op.kind.startswith("sized.")
        for value in op.attributes.values()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, str) and "batch" in item
    }
    assert found == counts


def test_a_serving_graph_of_another_size_needs_no_labels() -> None:
    case = next(case for case in CASES if case.name == "vit")
    module, imported = imported_from(case)
    graph = with_batch(pu.inference(imported.test, imported.outputs), 5)
    assert graph.inputs == ("data",)
    x, _ = case.data(torch.Generator().manual_seed(3), 5)
    values = {name: imported.values[name] for name in graph.states}
    module.eval()
    close(pu.compute(graph, {"data": x}, states=values)["output"], module(x).detach())


def by_sample(y: Tensor, label: Tensor) -> Tensor:
    return sum((row.pow(2).sum() for row in y), torch.zeros(())) + 0 * label.sum()


def by_pair(y: Tensor, label: Tensor) -> Tensor:
    return torch.pdist(y).sum() / (len(y) * (len(y) - 1)) + 0 * label.sum()


def by_table(y: Tensor, label: Tensor) -> Tensor:
    return y.sum() / torch.tensor(float(len(y))) + 0 * label.sum()


def by_heart(y: Tensor, label: Tensor) -> Tensor:
    return y.view(BATCH, 3).mean() + 0 * label.sum()


@pytest.mark.parametrize(
    ("loss", "op", "words"),
    [
        (by_sample, True, "with other batch sizes"),
        (by_pair, True, "holds 12 and 42 for 4 and 7 samples"),
        (by_table, False, "constant"),
        (by_heart, False, "with other batch sizes the loss function fails"),
    ],
)
def test_what_cannot_follow_keeps_its_size_and_says_why(
    loss: Callable[..., Tensor], op: bool, words: str
) -> None:
    case = Case(loss.__name__, lambda: nn.Linear(3, 3), loss, ("data",), vectors)
    module, imported = imported_from(case)
    data = data_of(case, STEPS * BATCH, 1)
    losses, _, _ = trained(pu.backward(pu.check(imported.net)), imported, data)
    *inputs, target = Reader(data.train, batch=BATCH, seed=0, shuffle=True).read(0)
    close(losses[0], loss(module(*inputs), target).item())
    read_back = pu.graph.from_yaml(pu.graph.to_yaml(imported.net))
    for graph in (imported.net, imported.test, read_back):
        with pytest.raises(KindError, match=words) as caught:
            with_batch(graph, 5)
        error = caught.value
        assert (error.op in graph.ops) == (error.blob in graph.blobs) == op
        assert error.expected == "a batch of 4"
        assert error.found == "a batch of 5"
        assert error.remedy is not None
        assert "example" in error.remedy
