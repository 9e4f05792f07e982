"""What a forward leaves behind is a state of the net, makes no difference, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purine as pu
from purine.errors import GraphError
from purine.importers.torch import from_torch
from tests.importers.differential import BATCH, Base, compared

EXAMPLE = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.int64)


class Keeping(Base):
    """Buffers, a tensor that is none, a number and a list."""

    def __init__(self, function: Callable[[Keeping, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("rows", torch.zeros(8))
        self.plain = torch.zeros((), dtype=torch.float64)
        self.steps = 0
        self.seen: list[float] = []
        self.caches: dict[str, Tensor] = {}
        self.function = function

    def between(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def assigned(m: Keeping, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + x.detach().mean()
    return x * m.mean.exp()


def assigned_in_training(m: Keeping, x: Tensor) -> Tensor:
    if m.training:
        m.mean = 0.9 * m.mean + x.detach().mean()
        m.rows = m.mean + m.rows
    return x * m.mean.exp() + m.rows


def in_place(m: Keeping, x: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(x.detach().mean())
    m.rows[0] = x.detach().mean()
    m.rows[1:3] += 1
    return x * m.mean.exp() + m.rows


def copied(m: Keeping, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.rows.copy_(x.mean(0))
    m.mean += 1
    return x * (m.rows + m.mean)


def by_data(m: Keeping, x: Tensor) -> Tensor:
    m.rows.data.add_(x.detach().mean(0))
    return x * (m.rows + 1)


def unread(m: Keeping, x: Tensor) -> Tensor:
    m.steps += 1
    m.last = x
    m.seen = [*m.seen, 1.0]
    return x


def cached_mask(m: Keeping, x: Tensor) -> Tensor:
    if getattr(m, "mask", None) is None or m.mask.shape[0] != x.shape[1]:
        m.mask = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu()
    return x @ m.mask


def cached_in_tests(m: Keeping, x: Tensor) -> Tensor:
    if m.training:
        m.caches.clear()
        return x + m.fc1.bias.exp()
    if "bias" not in m.caches:
        m.caches["bias"] = m.fc1.bias.exp()
    return x + m.caches["bias"]


CARRIED = [assigned, assigned_in_training, in_place, copied, by_data]
HARMLESS = [unread, cached_mask, cached_in_tests]


@pytest.mark.parametrize("function", [*CARRIED, *HARMLESS])
def test_what_a_forward_carries_on_trains_as_in_pytorch(
    function: Callable[[Keeping, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    compared(Keeping(function))


@pytest.mark.parametrize("function", HARMLESS[:2])
def test_an_import_leaves_the_attributes_of_a_module_as_they_were(
    function: Callable[[Keeping, Tensor], Tensor],
) -> None:
    module = Keeping(function).double()
    before = dict(module.__dict__)
    from_torch(module, F.cross_entropy, (EXAMPLE[0].double(), EXAMPLE[1]))
    assert module.__dict__ == before


def with_gradient(m: Keeping, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + x.mean()
    return x


def with_gradient_in_place(m: Keeping, x: Tensor) -> Tensor:
    m.mean.add_(x.mean())
    return x


def reshaped(m: Keeping, x: Tensor) -> Tensor:
    m.rows = x.detach()
    return x


def plain_tensor(m: Keeping, x: Tensor) -> Tensor:
    m.plain = 0.9 * m.plain + x.detach().mean()
    return x * m.plain.exp()


def plain_in_place(m: Keeping, x: Tensor) -> Tensor:
    m.plain.add_(x.detach().mean())
    return x * m.plain.exp()


def counter(m: Keeping, x: Tensor) -> Tensor:
    m.steps += 1
    return x / m.steps


def late_counter(m: Keeping, x: Tensor) -> Tensor:
    m.steps += 1
    return x if m.steps < 1000 else 2 * x


def first_call(m: Keeping, x: Tensor) -> Tensor:
    if m.steps == 0:
        m.steps = 1
        m.rows.copy_(x.detach().std(0))
    return x / (1 + m.rows)


def growing(m: Keeping, x: Tensor) -> Tensor:
    m.seen.append(1.0)
    return x * len(m.seen)


def cached_data(m: Keeping, x: Tensor) -> Tensor:
    if not hasattr(m, "kept"):
        m.kept = x.detach()
    return x + m.kept


def parameter(m: Keeping, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.fc2.weight.mul_(0.99)
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (with_gradient, "buffer 'mean' is given a value that has a gradient"),
        (with_gradient_in_place, "buffer 'mean' is given a value that has a gradient"),
        (reshaped, "buffer 'rows' is given a value of another form"),
        (plain_tensor, "attribute 'plain' is changed"),
        (plain_in_place, "tensor 'plain' is changed by the forward, and is no buffer"),
        (counter, "attribute 'steps' is changed"),
        (late_counter, "attribute 'steps' is changed"),
        (first_call, "attribute 'steps' is changed"),
        (growing, "attribute 'seen' is changed"),
        (cached_data, "attribute 'kept' is changed"),
        (parameter, "parameter 'fc2.weight' is changed"),
    ],
)
def test_what_cannot_be_carried_on_is_refused_by_name(
    function: Callable[[Keeping, Tensor], Tensor], words: str
) -> None:
    module = Keeping(function).double()
    before = dict(module.__dict__)
    with pytest.raises(GraphError, match=words) as caught:
        from_torch(module, F.cross_entropy, (EXAMPLE[0].double(), EXAMPLE[1]))
    assert ".py:" in str(caught.value.where)
    assert caught.value.remedy
    assert module.__dict__ == before
    assert module.seen == []
    assert "training" not in vars(nn.Module)


def normed(layer: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), layer(nn.Linear(8, 8)), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "layer",
    [
        nn.utils.spectral_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.orthogonal,
    ],
)
def test_parametrizations_train_and_test_as_in_pytorch(
    layer: Callable[[nn.Module], nn.Module],
) -> None:
    torch.manual_seed(0)
    compared(normed(layer))


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.BatchNorm1d(8, track_running_stats=False)],
        lambda: [nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, affine=True), nn.Flatten()],
        lambda: [nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.0), nn.Flatten()],
    ],
    ids=["batch_norm", "instance_norm", "transformer"],
)
def test_layers_train_and_test_as_in_pytorch(layers: Callable[[], list[nn.Module]]) -> None:
    torch.manual_seed(0)
    compared(nn.Sequential(nn.Linear(6, 8), *layers(), nn.Linear(8, 3)))


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.AlphaDropout()],
        lambda: [nn.FeatureAlphaDropout()],
        lambda: [nn.Unflatten(1, (4, 2, 1)), nn.Dropout2d(), nn.Flatten()],
        lambda: [nn.Unflatten(1, (4, 2, 1, 1)), nn.Dropout3d(), nn.Flatten()],
        lambda: [nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.5), nn.Flatten()],
    ],
)
def test_what_is_random_in_training_is_not_in_tests(
    layers: Callable[[], list[nn.Module]],
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), *layers(), nn.Linear(8, 3)).double()
    x, label = torch.randn(BATCH, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    imported = from_torch(module, F.cross_entropy, (x, label))
    kinds = {op.kind.removeprefix("sized.") for op in imported.test.ops.values()}
    assert kinds.isdisjoint({"Dropout", "RandomMask"})
    states = {
        name: imported.values[name] for name in imported.test.states if name in imported.values
    }
    found = pu.compute(pu.inference(imported.test, imported.outputs), {"data": x}, states=states)
    with torch.no_grad():
        torch.testing.assert_close(found[imported.outputs[0]], module.eval()(x))


def test_hooks_that_a_first_call_installs_are_taken_back_with_its_note() -> None:
    class Recording(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            if not getattr(self, "installed", False):
                self.installed = True
                self.fc.register_forward_hook(lambda m, given, result: self.seen.append(result))
            self.seen.clear()
            self.fc(x)
            (result,) = self.seen
            self.seen.clear()
            return result

    module = Recording()
    x, target = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    net = from_torch(module, F.cross_entropy, (x, target)).net
    assert not module.fc._forward_hooks
    assert not hasattr(module, "installed")
    assert sum(op.kind == "aten.linear" for op in net.ops.values()) == 1
