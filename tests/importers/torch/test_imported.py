"""Imported modules train as PyTorch trains them."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.data import ArraySource, DataSet, Reader
from purine.importers.torch import Imported, from_torch
from tests.importers.differential import compared
from tests.importers.models import BATCH, CASES, Case, Gpt, Mlp, ResNet

STEPS = 5


def made(case: Case) -> tuple[nn.Module, DataSet, tuple[Tensor, ...]]:
    """A module in float64, a data set with a test part, and an example batch."""
    torch.manual_seed(0)
    module = case.make().double()
    generator = torch.Generator().manual_seed(1)
    names = (*case.inputs, "answer")
    parts = [ArraySource(*case.data(generator, count * BATCH), names=names) for count in (STEPS, 2)]
    return module, DataSet(case.name, *parts), case.data(generator, BATCH)


def imported_from(case: Case, module: nn.Module, example: tuple[Tensor, ...]) -> Imported:
    return from_torch(module, case.loss, example, inputs=case.inputs, targets=("answer",))


def torch_losses(case: Case, module: nn.Module, data: DataSet, *, lr: float = 0.1) -> list[float]:
    """PyTorch's own loop over the batches that a run reads."""
    reader = Reader(data.train, batch=BATCH, seed=0, shuffle=True)
    solver = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)
    module.train()
    losses = []
    for step in range(STEPS):
        *inputs, target = reader.read(step)
        loss = case.loss(module(*inputs), target)
        solver.zero_grad()
        loss.backward()
        solver.step()
        losses.append(loss.item())
    return losses


def close(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_module_trains_and_tests_with_the_numbers_of_pytorch(case: Case) -> None:
    module, data, example = made(case)
    imported = imported_from(case, module, example)
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1, momentum=0.9)
    with pu.Run(step, data=data, seed=0) as run:
        run.set_states(imported.values)
        losses = [result.loss for result in run.steps(STEPS)]
        tested = run.evaluate(imported.test)["loss"]
        trained = imported.state_dict(run)
    close(losses, torch_losses(case, module, data))
    assert losses[0] != losses[-1]
    assert set(trained) == set(module.state_dict())
    for name, value in module.state_dict().items():
        close(trained[name], value)
    module.eval()
    assert data.test is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = [Reader(data.test, batch=BATCH, seed=0, shuffle=False).read(i) for i in range(2)]
        close(
            tested,
            sum(case.loss(module(*batch[:-1]), batch[-1]).item() for batch in batches) / 2,
        )


class Applied(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.function(y[0] if isinstance(y, tuple) else y)


def written(y: Tensor) -> Tensor:
    z = torch.zeros_like(y)
    z[:, 1:] = y[:, :-1]
    z[0] += 1
    z[:, 0] = y[0, 0, 0]
    return z


PARTS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "bidirectional_lstm": (
        lambda: nn.LSTM(6, 4, 2, bidirectional=True, batch_first=True),
        torch.tanh,
    ),
    "gru": (lambda: nn.GRU(6, 4), torch.tanh),
    "rnn": (lambda: nn.RNN(6, 4), torch.tanh),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), torch.sin),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), torch.sin),
    "assignment": (lambda: nn.Linear(6, 3), written),
    "sorting": (lambda: nn.Linear(6, 3), lambda y: y.cumsum(1).sort(-1)[0].max(1)[0]),
    "spectrum": (lambda: nn.Linear(6, 3), lambda y: torch.fft.rfft(y).abs()),
    "group_norm_of_a_transpose": (
        lambda: nn.Linear(6, 6),
        lambda y: F.group_norm(1.5 * y.transpose(1, 2), 2).sin(),
    ),
    "group_norm_and_a_transpose": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(1, 5)),
        lambda y: y.transpose(1, 2) @ torch.arange(15.0, dtype=y.dtype).view(5, 3).sin(),
    ),
    "convolution": (lambda: nn.Conv1d(5, 4, 3), lambda y: F.pad(y, (1, 1), "reflect").exp()),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_modules_keep_their_numbers(part: str) -> None:
    layer, function = PARTS[part]
    case = Case(
        part,
        lambda: Applied(layer(), function),
        lambda y, t: (y.flatten(1).sum(1) - t).pow(2).mean(),
        ("data",),
        lambda g, n: (
            torch.randn(n, 5, 6, generator=g, dtype=torch.float64),
            torch.randn(n, generator=g, dtype=torch.float64),
        ),
    )
    module, data, example = made(case)
    imported = imported_from(case, module, example)
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.001, momentum=0.9)
    with pu.Run(step, data=data, seed=0) as run:
        run.set_states(imported.values)
        losses = [result.loss for result in run.steps(STEPS)]
        trained = imported.state_dict(run)
    close(losses, torch_losses(case, module, data, lr=0.001))
    close(trained, dict(module.state_dict()))


def mlp_example() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 6), torch.randint(3, (BATCH,))


def evaluated(imported: Imported, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the module returns at test time, by its graph."""
    graph = pu.inference(imported.test, imported.outputs)
    values = {name: imported.values[name] for name in graph.states if name in imported.values}
    return pu.compute(graph, feeds, states=values)


class Dropping(nn.Module):
    """Every way to drop: elements, channels, attention weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 1)
        self.channels = nn.Dropout1d(0.25)
        self.elements = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.conv(x)
        causal = F.scaled_dot_product_attention(y, y, y, dropout_p=0.5, is_causal=True)
        return self.channels(y), self.elements(y), causal if self.training else y


def test_dropout_draws_by_our_randomness_and_is_gone_at_test_time() -> None:
    torch.manual_seed(0)
    module = Dropping()
    x = torch.randn(64, 6, 10)

    def loss(outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        channels, elements, attended = outputs
        whole = (channels == 0).all(2) | (channels != 0).all(2)
        return {
            "loss": attended.mean(),
            "kept_channels": (channels != 0).float().mean(),
            "whole": whole.float().mean(),
            "kept_elements": (elements != 0).float().mean(),
            "mean": elements.mean(),
        }

    imported = from_torch(module, loss, x, targets=())
    assert {"Dropout", "sized.RandomMask"} <= {op.kind for op in imported.net.ops.values()}
    assert imported.net.ops["elements/native_dropout"].attributes["stream"] == (
        "elements/native_dropout"
    )
    data = DataSet("x", ArraySource(x, names=("x",)), ArraySource(x, names=("x",)))
    runs = []
    for _ in range(2):
        with pu.Run(imported.net, data=data, seed=3) as run:
            run.set_states(imported.values)
            runs.append([dict(result.outputs) for result in run.steps(2)])
            tested = run.evaluate(imported.test)
    first, second = runs[0]
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
    assert first["loss"] != second["loss"]
    assert first["kept_channels"].item() == pytest.approx(0.75, abs=0.08)
    assert first["kept_elements"].item() == pytest.approx(0.5, abs=0.04)
    assert first["whole"] == 1
    assert tested["kept_channels"] == tested["kept_elements"] == 1
    assert tested["mean"] == pytest.approx(module.conv(x).mean().item(), abs=1e-6)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_is_drawn(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 6, dtype=torch.float64)

    def imported_with(dropout: float) -> Imported:
        torch.manual_seed(1)
        module = layer(6, 4, 3, dropout=dropout, bidirectional=True).double()
        return from_torch(module, lambda y: y[0].pow(2).mean(), x, targets=())

    dropped, plain = imported_with(0.5), imported_with(0.0)
    drops = [op for op in dropped.net.ops.values() if op.kind == "Dropout"]
    assert len(drops) == 2
    assert {op.attributes["ratio"] for op in drops} == {0.5}
    # With nothing dropped, the layers one by one are the stack.
    kept = {op.name: replace(op, attributes={**op.attributes, "ratio": 0.0}) for op in drops}
    graph = replace(dropped.net, ops={**dropped.net.ops, **kept})
    data = DataSet("x", ArraySource(x, names=("x",)))
    losses = []
    for net in (graph, plain.net, dropped.net):
        with pu.Run(net, data=data) as run:
            run.set_states(plain.values)
            losses += [result.loss for result in run.steps(1)]
    close(losses[0], losses[1])
    assert losses[2] != losses[1]


def test_gradients_go_through_the_mask_that_was_drawn() -> None:
    module = Mlp(dropout=0.5).double()
    x, label = mlp_example()
    imported = from_torch(module, F.cross_entropy, (x.double(), label))
    step = pu.backward(imported.net)
    (mask,) = [op.outputs[0] for op in step.ops.values() if op.kind == "RandomMask"]
    wanted = [mask, "grad/fc1.weight", "data", "label"]
    data = DataSet("d", ArraySource(x.double(), label, names=("data", "label")))
    with pu.Run(pu.prune(step, wanted), data=data) as run:
        run.set_states(imported.values)
        (result,) = run.steps(1)
    module.drop = nn.Identity()
    hidden = F.relu(module.fc1(result.outputs["data"])) * result.outputs[mask]
    F.cross_entropy(module.fc2(hidden), result.outputs["label"]).backward()
    close(result.outputs["grad/fc1.weight"], module.fc1.weight.grad)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 8), nn.Linear(8, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(ids)))


def words(generator: torch.Generator, count: int) -> tuple[Tensor, ...]:
    ids = torch.randint(7, (count, 10), generator=generator)
    return ids[:, :5].clone(), ids[:, 5:].clone()


IDS = torch.randint(7, (BATCH, 6), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "example",
    [(IDS[:, 1:], IDS[:, 1:]), (*[IDS[:, :-1].contiguous()] * 2,), (IDS[:, :-1], IDS[:, 1:])],
    ids=["views", "same", "overlapping"],
)
def test_fields_that_share_memory_in_the_example_are_two(example: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    compared(
        Words(),
        loss=lambda y, ids: F.cross_entropy(y.flatten(0, 1), ids.flatten()),
        data=words,
        example=example,
    )


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, pair: dict[str, list[Tensor]]) -> Tensor:
        return self.fc(pair["a"][0]) * self.fc(pair["a"][1]).sin()


def test_nested_fields_that_are_one_tensor_are_two() -> None:
    x = torch.randn(BATCH, 6)
    module = Pair()
    imported = from_torch(module, lambda y: y.sum(), ({"a": [x, x]},), targets=())
    feeds = {"data/a/0": x, "data/a/1": 2 * x}
    found = evaluated(imported, feeds)["output"]
    torch.testing.assert_close(found, module({"a": [x, 2 * x]}).detach())


def test_tied_weights_are_one_blob() -> None:
    tokens = torch.randint(11, (2, 6))
    module = Gpt()
    imported = from_torch(module, lambda y, t: y.mean() + 0 * t.sum(), (tokens, tokens))
    assert imported.names["head.weight"] == "tokens.weight"
    assert "head.weight" not in imported.net.blobs
    assert len([op for op in imported.net.ops.values() if "tokens.weight" in op.inputs]) == 2
    assert with_batch(imported.net, 5).blobs["label"].shape == (5, 6)


def test_frozen_parameters_do_not_train_and_frozen_batch_norm_stays_frozen() -> None:
    torch.manual_seed(0)
    module = ResNet().double()
    module.stem.requires_grad_(False)
    module.stem.eval()
    before = copy.deepcopy(module.stem.state_dict())
    x, label = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.arange(4)
    imported = from_torch(module, F.cross_entropy, (x, label))
    assert module.training
    assert not module.stem.training
    assert module.layer1.training
    assert not imported.net.states["stem.0.weight"].trainable
    data = DataSet("d", ArraySource(x, label, names=("data", "label")))
    with pu.Run(pu.solvers.sgd(pu.backward(imported.net), lr=0.1), data=data) as run:
        run.set_states(imported.values)
        list(run.steps(2))
        imported.to_torch(run, module)
    close(dict(module.stem.state_dict()), dict(before))
    assert module.layer1[0].bn1.num_batches_tracked == 2


@pytest.mark.parametrize("scheme", [{"model": 2}, {"model": 2, "data": 2}], ids=str)
def test_a_run_in_shards_takes_and_gives_whole_values(
    scheme: dict[str, int], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = Mlp().double()
    x, label = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 3
    imported = from_torch(module, F.cross_entropy, (x, label))
    source = ArraySource(x, label, names=("data", "label"))
    data = DataSet("d", source, source)

    def solver(net: pu.Graph) -> pu.Graph:
        return pu.solvers.sgd(net, lr=0.1, momentum=0.9)

    with pu.Run(solver(pu.backward(imported.net)), data=data) as serial:
        serial.set_states(imported.values)
        list(serial.steps(2))
        whole = serial.states()
        serial.save(tmp_path)
        losses = [result.loss for result in serial.steps(2)]
        tested = serial.evaluate(imported.test)
        expected = imported.state_dict(serial)
    devices = f"cpu:0-{math.prod(scheme.values()) - 1}"
    step = pu.compose(imported.net, solver=solver, devices=devices, **scheme)
    assert "fc1.weight/shard1" in step.states
    with pu.Run(step, data=data, threads=1, share_cores=True) as run:
        run.set_states(imported.values)
        list(run.steps(2))
        close(imported.state_dict(run), {name: whole[name] for name in imported.names})
        run.set_states(whole)
        close([result.loss for result in run.steps(2)], losses)
        close(run.evaluate(imported.test), tested)
        imported.to_torch(run, module)
        close(dict(module.state_dict()), expected)
        assert run.load(tmp_path) == 2
        close([result.loss for result in run.steps(2)], losses)


def test_trained_values_go_back_by_way_of_a_file(tmp_path: Path) -> None:
    module = Gpt()
    tokens = torch.randint(11, (2, 6))
    imported = from_torch(module, lambda y: y.pow(2).mean(), tokens, targets=())
    data = DataSet("d", ArraySource(tokens, names=("tokens",)))
    with pu.Run(pu.solvers.sgd(pu.backward(imported.net), lr=0.1), data=data) as run:
        run.set_states(imported.values)
        list(run.steps(1))
        save_file(imported.state_dict(run), tmp_path / "trained.safetensors")
        trained = run.states()
    fresh = Gpt()
    fresh.load_state_dict(load_file(tmp_path / "trained.safetensors"))
    torch.testing.assert_close(fresh.tokens.weight.detach(), trained["tokens.weight"])
    assert not torch.equal(module.tokens.weight, fresh.tokens.weight)


class Nesting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2, dtype=torch.bfloat16)
        self.register_buffer("shift", torch.tensor([1, 2]), persistent=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(
        self, pair: tuple[Tensor, dict[str, Tensor]], *, scale: Tensor
    ) -> dict[str, object]:
        x, more = pair
        y = self.fc(x.to(torch.bfloat16)) * more["mask"] + self.shift
        return {"y": y, "all": [y.float() * scale.unsqueeze(1), None]}


def test_nested_inputs_and_outputs_of_many_dtypes() -> None:
    module = Nesting()
    example = {
        "pair": (torch.randint(9, (4, 3)), {"mask": torch.tensor([[True], [False]] * 2)}),
        "scale": torch.rand(4),
    }
    imported = from_torch(module, lambda y: y["all"][0].sum(), example, targets=())
    assert imported.net.ops["data"].outputs == ("pair/0", "pair/1/mask", "scale")
    assert imported.outputs == ("output/y", "output/all/0")
    x, more = example["pair"]
    found = evaluated(
        imported, {"pair/0": x, "pair/1/mask": more["mask"], "scale": example["scale"]}
    )
    expected = module(**example)
    torch.testing.assert_close(found["output/y"], expected["y"].detach())
    torch.testing.assert_close(found["output/all/0"], expected["all"][0].detach())
    assert found["output/y"].dtype == torch.bfloat16
    assert set(imported.names) == {"fc.weight", "fc.bias", "unused"}
    assert {"shift", "unused"} <= set(imported.net.states)


class Constant(nn.Module):
    """Uses other constants in training than at test time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        factor = torch.tensor([1.0, 2.0]) if self.training else torch.tensor([3.0, 4.0])
        return x * self.weight * factor


def test_constants_of_training_and_testing_are_kept_apart() -> None:
    x = torch.ones(4, 2)
    imported = from_torch(Constant(), lambda y: y.sum(), x, targets=())
    data = DataSet("d", ArraySource(x, names=("x",)), ArraySource(x, names=("x",)))
    with pu.Run(imported.net, data=data) as run:
        run.set_states(imported.values)
        (result,) = run.steps(1)
        assert result.loss == 12.0
        assert run.evaluate(imported.test)["loss"] == 28.0


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            still = self.a(x).exp()
        return self.b(x) * still + self.a(x).detach()


def test_gradients_end_at_no_grad_and_detach() -> None:
    imported = from_torch(Stopping(), F.cross_entropy, mlp_example())
    step = pu.backward(imported.net)
    assert "grad/b.weight" in step.blobs
    assert "grad/a.weight" not in step.blobs


def test_an_imported_net_can_be_written_and_read() -> None:
    imported = from_torch(Mlp(dropout=0.1), F.cross_entropy, mlp_example())
    assert pu.graph.from_yaml(pu.graph.to_yaml(imported.net)) == imported.net
    pu.check(imported.net)
    where = imported.net.ops["fc1/linear"].where
    assert where is not None
    assert "models.py:" in where


class Masked(nn.Module):
    """Attention with a mask that is data: which words are there."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (2, 12)).transpose(1, 2).split(4, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_of_attention_reach_both_directions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = Masked().to(dtype)
    x, mask = torch.randn(4, 5, 8, dtype=dtype), 3 * torch.randn(4, 1, 5, 5, dtype=dtype)
    label = torch.tensor([0, 1, 2, 0])
    imported = from_torch(module, F.cross_entropy, (x, mask, label), inputs=("x", "mask"))
    wanted = ["loss", "grad/qkv.weight", "x", "mask", "label"]
    data = DataSet("d", ArraySource(x, mask, label, names=("x", "mask", "label")))
    with pu.Run(pu.prune(pu.backward(imported.net), wanted), data=data) as run:
        run.set_states(imported.values)
        (found,) = run.steps(1)
    loss = F.cross_entropy(
        module(found.outputs["x"], found.outputs["mask"]), found.outputs["label"]
    )
    loss.backward()
    torch.testing.assert_close(found.outputs["loss"], loss.detach())
    torch.testing.assert_close(found.outputs["grad/qkv.weight"], module.qkv.weight.grad)


class AlwaysDrops(nn.Module):
    """Dropout in both modes, as some want it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.5, training=True)


class AsksForTheMode(AlwaysDrops):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return 2 * y if self.training else y


class ChangesWithTheMode(AlwaysDrops):
    """What it computes depends on an attribute that its own `train` sets."""

    factor = 2.0

    def train(self, mode: bool = True) -> ChangesWithTheMode:
        self.factor = 2.0 if mode else 1.0
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.fc(x)


class AlwaysNormalises(nn.Module):
    """Batch statistics in both modes, though there are running ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.fc(x), self.mean, self.var, training=True)


PLAIN = [
    lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)),
    lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
]
NOT_PLAIN = [
    AsksForTheMode,
    ChangesWithTheMode,
    AlwaysNormalises,
    lambda: nn.Sequential(
        nn.Linear(4, 3), nn.Unflatten(1, (3, 1)), nn.Dropout1d(0.5), nn.Flatten()
    ),
]


@pytest.mark.parametrize("make", [*PLAIN, *NOT_PLAIN])
def test_the_test_graph_is_the_module_in_test_mode(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    x, label = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    data = DataSet("d", *[ArraySource(x, label, names=("data", "label"))] * 2)
    imported = from_torch(module, F.cross_entropy, (x, label))
    module.eval()
    with pu.Run(pu.backward(imported.net), data=data) as run:
        run.set_states(imported.values)
        found = run.evaluate(imported.test)["loss"]
    with torch.no_grad():
        assert found == pytest.approx(float(F.cross_entropy(module(x), label)), rel=1e-5)


def test_dropout_that_is_always_there_is_there_in_tests() -> None:
    example = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    imported = from_torch(AlwaysDrops(), F.cross_entropy, example)
    assert "Dropout" in {op.kind for op in imported.test.ops.values()}


def test_a_plain_module_is_traced_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    whole = torch.export.export

    def counted(*given: object, **named: object) -> object:
        nonlocal count
        count += 1
        return whole(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.export, "export", counted)
    example = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    for make in PLAIN:
        count = 0
        from_torch(make(), F.cross_entropy, example)
        assert count == 2
    count = 0
    from_torch(AsksForTheMode(), F.cross_entropy, example)
    assert count > 2
    assert "training" not in vars(nn.Module)
