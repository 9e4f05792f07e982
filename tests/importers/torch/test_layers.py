"""Layers that read values on the host train as in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import purine as pu
from purine.data import ArraySource, DataSet, Reader
from purine.errors import ConfigError, GraphError
from purine.importers.torch import from_torch

BATCH, STEPS = 4, 3


def compare(
    module: nn.Module, loss: Callable[..., Tensor], values: tuple[Tensor, ...], inputs: int
) -> None:
    """Train in Purine and in PyTorch, and test, on batches of the values."""
    module = module.double()
    names = tuple(f"field{place}" for place in range(len(values)))
    example = tuple(value[:BATCH] for value in values)
    imported = from_torch(module, loss, example, inputs=names[:inputs], targets=names[inputs:])
    source = ArraySource(*values, names=names)
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1)
    with pu.Run(step, data=DataSet("d", source, source)) as run:
        run.set_states(imported.values)
        losses = [float(result.loss) for result in run.steps(STEPS)]
        trained = imported.state_dict(run)
        tested = run.evaluate(imported.test)["loss"]
    reader = Reader(source, batch=BATCH, seed=0, shuffle=True)
    solver = torch.optim.SGD(module.parameters(), lr=0.1)

    def loss_on(batch: Any) -> Tensor:
        return loss(module(*batch[:inputs]), *batch[inputs:])

    for number in range(STEPS):
        found = loss_on(reader.read(number))
        solver.zero_grad()
        found.backward()
        solver.step()
        assert losses[number] == pytest.approx(found.item(), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(trained, dict(module.state_dict()), rtol=1e-9, atol=1e-12)
    module.eval()
    batches = [tuple(v[k : k + BATCH] for v in values) for k in range(0, len(values[0]), BATCH)]
    with torch.no_grad():
        expected = sum(loss_on(batch).item() for batch in batches) / len(batches)
    assert tested == pytest.approx(expected, rel=1e-9)


def numbers(*shape: int) -> Tensor:
    return torch.randn(BATCH * STEPS, *shape, dtype=torch.float64)


def square(y: Tensor) -> Tensor:
    return y.square().mean()


def test_batch_norm_that_averages_over_all_batches() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, momentum=None)
    compare(nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2)), square, (numbers(3),), 1)
    assert norm.num_batches_tracked == STEPS


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).log_softmax(-1).transpose(0, 1)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"zero_infinity": True}], ids=str)
def test_the_loss_of_connectionist_temporal_classification(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    labels = torch.randint(1, 6, (BATCH * STEPS, 3))
    times, counts = (torch.randint(k, k + 2, (BATCH * STEPS,)) for k in (4, 2))
    if "zero_infinity" in options:
        times[0] = 1  # too few for its labels

    def loss(y: Tensor, labels: Tensor, times: Tensor, counts: Tensor) -> Tensor:
        return F.ctc_loss(y, labels, times, counts, **options)

    compare(Scores(), loss, (numbers(5, 3), labels, times, counts), 1)


def test_labels_of_all_samples_in_one_row_are_refused() -> None:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return F.ctc_loss(y, labels.flatten(), [5] * BATCH, [2] * BATCH)

    labels = torch.ones(BATCH, 2, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"targets of ctc_loss as \[N, L\]"):
        from_torch(Scores().double(), loss, (numbers(5, 3)[:BATCH], labels))


class Packed(nn.Module):
    """A recurrent layer over sequences of different lengths, with all that it gives."""

    def __init__(self, layer: nn.RNNBase, lengths: Any = None) -> None:
        super().__init__()
        self.layer = layer
        self.lengths = lengths

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        lengths = self.lengths if self.lengths is not None else given[0]
        total = None if self.lengths is not None else x.shape[1]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, hidden = self.layer(packed)
        last = hidden[0] if isinstance(hidden, tuple) else hidden
        y, counts = pad_packed_sequence(y, True, padding_value=0.5, total_length=total)
        return y.mean((1, 2)) + last.sum((0, 2)) + counts


PACKED: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "projected": lambda: nn.LSTM(3, 4, proj_size=2),
    "gru": lambda: nn.GRU(3, 4, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
}


@pytest.mark.parametrize("layer", PACKED)
def test_packed_sequences_with_lengths_of_data(layer: str) -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 6, (BATCH * STEPS,))
    compare(Packed(PACKED[layer]()), square, (numbers(5, 3), lengths), 2)


@pytest.mark.parametrize(
    "lengths", [[2, 4, 1, 3], torch.tensor([2, 4, 1, 3])], ids=["list", "tensor"]
)
def test_packed_sequences_with_lengths_of_the_module(lengths: Any) -> None:
    torch.manual_seed(0)
    compare(Packed(nn.GRU(3, 4), lengths), square, (numbers(5, 3),), 1)


class Unpadded(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
        return pad_packed_sequence(y)[0]


class TakenApart(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
        return y.data.mean()


@pytest.mark.parametrize(
    ("module", "remedy"), [(Unpadded, "total_length"), (TakenApart, "pad_packed_sequence")]
)
def test_uses_of_packed_sequences_that_depend_on_lengths_are_refused(
    module: type[Packed], remedy: str
) -> None:
    example = torch.randn(2, 5, 3), torch.tensor([5, 3])
    with pytest.raises(GraphError, match=remedy) as caught:
        from_torch(module(nn.GRU(3, 4)), square, example, inputs=("x", "lengths"), targets=())
    line = module.forward.__code__.co_firstlineno + 2
    assert str(caught.value.where).endswith(f"test_layers.py:{line}")


class Experts(nn.Module):
    """Each row goes to one of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.randn(3, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).softmax(-1).max(-1)
        _, order = chosen.indices.sort(stable=True)
        ends = F.one_hot(chosen.indices, 3).sum(0).cumsum(0).to(torch.int32)
        y = self.product(x[order], ends)
        return y * chosen.values[order].unsqueeze(1)

    def product(self, x: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight, ends)


class Loops(Experts):
    """The same by a loop."""

    def product(self, x: Tensor, ends: Tensor) -> Tensor:
        starts = [0, *ends.tolist()]
        return torch.cat([x[a:b] @ w for a, b, w in zip(starts, ends, self.weight, strict=False)])


def test_products_of_groups_of_rows() -> None:
    torch.manual_seed(0)
    module, loops = Experts(), Loops()
    loops.load_state_dict(copy.deepcopy(module.state_dict()))
    x = torch.randn(8, 3)
    imported = from_torch(module, square, x, targets=())
    step = pu.backward(imported.net)
    assert "GroupedProductGradient" in {op.kind for op in step.ops.values()}
    wanted = ["loss", "grad/weight", "grad/gate.weight"]
    with pu.Run(pu.prune(step, wanted), data=DataSet("d", ArraySource(x, names=("x",)))) as run:
        run.set_states(imported.values)
        (result,) = run.steps(1)
    loss = square(loops(x))
    loss.backward()
    torch.testing.assert_close(result.outputs["loss"], loss.detach())
    torch.testing.assert_close(result.outputs["grad/weight"], loops.weight.grad)
    torch.testing.assert_close(result.outputs["grad/gate.weight"], loops.gate.weight.grad)
