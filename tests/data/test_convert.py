"""Own data in one line: every form gives the same batches, to nets of every sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import purine as pu
from purine.errors import DataError

X, Y = torch.randn(24, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Pairs(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """The samples one by one."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index], int(Y[index])


class Stream(IterableDataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """The samples one after the other."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter(zip(X, Y.tolist(), strict=True))


def vectors(batch: int = 4) -> pu.Graph:
    net = pu.Net()
    data, label = net.source([("data", (batch, 8), "float32"), ("label", (batch,), "int64")])
    x = pu.kinds.inner_product(data, 3, name="fc")
    net.output(pu.kinds.softmax_loss(x, label, name="loss"))
    return net.graph()


def losses(net: pu.Graph, data: Any, count: int = 5) -> list[float]:
    with pu.Run(pu.solvers.sgd(pu.backward(net), lr=0.1), data=data) as run:
        return [result.loss for result in run.steps(count)]


SHUFFLED: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: (X, Y),
    "a list": lambda: [X, Y],
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "labels of one byte": lambda: (X, Y.to(torch.uint8)),
    "labels of four bytes": lambda: (X, Y.to(torch.int32)),
    "tensors": lambda: pu.data.tensors(X, Y, test=(X, Y)),
    "a source": lambda: pu.data.TensorSource(X, Y),
    "a Dataset": Pairs,
    "a TensorDataset": lambda: TensorDataset(X, Y),
    "a sequence of samples": lambda: pu.data.TorchSource(list(zip(X, Y, strict=True))),
    "a DataLoader": lambda: DataLoader(Pairs(), batch_size=7, shuffle=True),
    "a DataLoader in order": lambda: DataLoader(TensorDataset(X, Y), batch_size=2),
}


@pytest.mark.parametrize("form", SHUFFLED)
def test_all_forms_give_the_same_batches(form: str) -> None:
    assert losses(vectors(), SHUFFLED[form]()) == losses(vectors(), (X, Y))


def test_an_iterable_is_read_in_its_own_order() -> None:
    found = losses(vectors(), Stream(), 7)
    assert found == losses(vectors(), DataLoader(Stream(), batch_size=4), 7)
    weight, bias = torch.zeros(3, 8), torch.zeros(3)
    step = pu.solvers.sgd(pu.backward(vectors()), lr=1e-9)
    with pu.Run(step, data=Stream()) as run:
        run.set_states({"fc/weight": weight + X[:3], "fc/bias": bias})
        seen = [result.loss for result in run.steps(7)]
    rows = [torch.arange(start, start + 4) % 24 for start in range(0, 28, 4)]
    plain = [float(F.cross_entropy(X[row] @ X[:3].T, Y[row])) for row in rows]
    assert seen == pytest.approx(plain, rel=1e-5)


def test_names_and_paths_of_job_files(tmp_path: Path) -> None:
    images, labels = np.zeros((6, 1, 28, 28), np.float32), np.arange(6)
    np.savez(tmp_path / "d.npz", train_images=images, train_labels=labels)
    net = pu.zoo.mlp(batch=2, hidden=())
    assert losses(net, tmp_path / "d.npz") == losses(net, str(tmp_path / "d.npz"))
    named = pu.data.prepare(net, pu.data.fashion_mini().train)
    assert losses(named, "fashion-mini", 2) == losses(named, pu.data.fashion_mini(), 2)


def regression(x: tuple[int, ...], y: tuple[int, ...]) -> pu.Graph:
    net = pu.Net()
    data, target = net.source([("x", (4, *x), "float32"), ("y", (4, *y), "float32")])
    made = pu.kinds.inner_product(pu.kinds.flatten(data), int(np.prod(y)), name="fc")
    made = pu.kinds.reshape(made, (0, *y))
    net.output(pu.kinds.euclidean_loss(made, target, name="distance"))
    return net.graph()


@pytest.mark.parametrize(
    ("x", "y"), [((8,), (1,)), ((8,), (2, 3)), ((3, 4, 4), (3, 4, 4)), ((5, 2), (7,))]
)
def test_vectors_images_and_targets_of_any_shape(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    net, random = regression(x, y), torch.Generator().manual_seed(1)
    data = torch.randn(10, *x, generator=random), torch.randn(10, *y, generator=random)
    step = pu.solvers.sgd(pu.backward(net), lr=1e-9)
    with pu.Run(step, data=pu.data.tensors(*data, test=data)) as run:
        states = run.states()
        found = run.evaluate(pu.evaluation(net))["distance"]
        again = run.evaluate(pu.evaluation(net), data=data)["distance"]
        assert next(run.steps(1)).loss > 0
    made = data[0].flatten(1) @ states["fc/weight"].T + states["fc/bias"]
    plain = ((made - data[1].flatten(1)) ** 2).sum() / (2 * 10)
    assert found == again == pytest.approx(float(plain), rel=1e-5)


class Words(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids)).transpose(1, 2)


def torch_losses(
    module: nn.Module, data: tuple[Tensor, ...], batch: int, count: int
) -> list[float]:
    """A plain loop over the batches that a run with seed 0 reads."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    reader = pu.data.Reader(pu.data.TensorSource(*data), batch=batch, seed=0, shuffle=True)
    found = []
    for iteration in range(count):
        *inputs, target = reader.read(iteration)
        loss = F.cross_entropy(module(*inputs), target.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("scheme", [None, {"data": 2}, {"data": 2, "micro": 2}])
def test_imported_nets_take_token_matrices_on_one_device_and_on_several(
    scheme: dict[str, int] | None,
) -> None:
    torch.manual_seed(0)
    ids, targets = torch.randint(0, 11, (20, 5)), torch.randint(0, 11, (20, 5), dtype=torch.int32)
    module = Words()
    imported = pu.from_torch(module, F.cross_entropy, (ids[:8], targets[:8].long()))

    def solver(graph: pu.Graph) -> pu.Graph:
        return pu.solvers.sgd(graph, lr=0.1)

    if scheme is None:
        step = solver(pu.backward(imported.net))
    else:
        step = pu.compose(imported.net, solver=solver, devices="cpu:0-1", **scheme)
    with pu.Run(step, data=(ids, targets), share_cores=True) as run:
        run.set_states(imported.values)
        found = [result.loss for result in run.steps(6)]
        tested = run.evaluate(imported.test, data=(ids, targets))["loss"]
    assert found == pytest.approx(torch_losses(module, (ids, targets), 8, 6), rel=1e-5)
    assert tested == pytest.approx(F.cross_entropy(module(ids), targets.long()).item(), rel=1e-5)


def test_a_misfit_names_the_input_and_what_to_do() -> None:
    step = pu.solvers.sgd(pu.backward(vectors()))
    for data, expected, found, remedy in (
        ((X.reshape(-1, 2, 4), Y), "float32, [8]", "float32, [2, 4]", "reshape the data to [N, 8]"),
        ((X.double(), Y), "float32, [8]", "float64, [8]", "convert the data to float32"),
        ((X[:, :5], Y), "float32, [8]", "float32, [5]", "build the net for these samples"),
    ):
        with pytest.raises(DataError, match="input 'data' of the net does not fit") as caught:
            pu.Run(step, data=data)
        assert caught.value.blob == "data"
        assert caught.value.expected == f"{expected} a sample"
        assert caught.value.found == f"{found} a sample"
        assert str(caught.value.remedy).startswith(remedy)
    with pytest.raises(DataError, match="reads 2 inputs, and the data has 1 fields") as caught:
        pu.Run(step, data=X)
    assert caught.value.expected == "one field for each of data, label"


def test_a_loader_that_changes_the_samples_is_named() -> None:
    for what, loader in (
        ("collate_fn", DataLoader(Pairs(), collate_fn=lambda rows: rows)),
        ("sampler", DataLoader(Pairs(), sampler=[3, 1])),
        ("batch_sampler", DataLoader(Pairs(), batch_sampler=[[3, 1]])),
    ):
        with pytest.raises(DataError, match=f"has a {what} of its own"):
            pu.data.as_dataset(loader)


def test_what_to_test_on_beside_what_is_there() -> None:
    data = pu.data.as_dataset(Pairs(), test=DataLoader(Pairs()))
    assert data.test is not None
    assert data.train.fields == data.test.fields
    tested = pu.data.as_dataset(pu.data.tensors(X, Y), test=(X[:3], Y[:3])).test
    assert tested is not None
    assert len(tested) == 3
