"""Modules, losses and examples that cannot be imported are told apart."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purine.errors import ConfigError, GraphError
from purine.importers.torch import from_torch
from tests.forked import python
from tests.importers.models import Mlp


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


def test_what_cannot_be_traced_is_told_with_its_line() -> None:
    with pytest.raises(GraphError) as caught:
        from_torch(Branching(), lambda y: y.mean(), torch.ones(2, 3), targets=())
    line = Branching.forward.__code__.co_firstlineno + 1
    assert str(caught.value.where).endswith(f"test_refused.py:{line}")
    assert caught.value.found == "if x.sum() > 0:"
    assert "torch.where" in str(caught.value.remedy)


class Telling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("the user's own words", file=sys.stderr)
        logging.getLogger("torch.fx.experimental.symbolic_shapes").warning("other news")
        return x if x.sum() > 0 else -x


def test_torch_prints_nothing_of_its_own_about_a_branch_on_a_value() -> None:
    program = (
        "import torch; from purine import PurineError, from_torch\n"
        "from tests.importers.torch.test_refused import Telling\n"
        "try: from_torch(Telling(), lambda y: y.mean(), torch.ones(2, 3), targets=())\n"
        "except PurineError as error: print(error)\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert "the path of module Telling depends on the values of tensors" in done.stdout
    assert "GuardOnDataDependentSymNode" not in done.stdout
    words = [line for line in done.stderr.splitlines() if "other news" not in line]
    assert words == ["the user's own words"] * 2  # traced, then tried without tracing
    assert done.stderr.count("other news") == 2


class Reading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean().item()


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (2 * x.long().sum().item())


class Sizing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.ones(x.long().sum().item()).sum()


@pytest.mark.parametrize(
    "module", [Reading(), Counting(), Sizing()], ids=lambda m: type(m).__name__
)
def test_a_number_that_is_read_from_a_tensor_is_refused_at_its_line(module: nn.Module) -> None:
    with pytest.raises(GraphError, match=r"replace \.item\(\) by tensors") as caught:
        from_torch(module, lambda y: y.mean(), torch.ones(2, 3), targets=())
    line = type(module).forward.__code__.co_firstlineno + 1
    assert str(caught.value.where).endswith(f"test_refused.py:{line}")


class Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x[x[:, 0] > 0]


class Finding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.nonzero(x).sum()


class Distinct(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.unique(x, return_counts=True)[1].sum()


@pytest.mark.parametrize(
    ("module", "found"),
    [(Choosing(), "[?, 3]"), (Finding(), "[?, 2]"), (Distinct(), "[?]")],
    ids=["mask", "nonzero", "unique"],
)
def test_a_size_that_depends_on_values_is_refused_at_its_line(
    module: nn.Module, found: str
) -> None:
    with pytest.raises(GraphError, match=r"the size .* depends on the values") as caught:
        from_torch(module, lambda y: y.mean(), torch.ones(2, 3), targets=())
    line = type(module).forward.__code__.co_firstlineno + 1
    assert str(caught.value.where).endswith(f"test_refused.py:{line}")
    assert caught.value.found == f"size {found}"
    assert "torch.where" in str(caught.value.remedy)


def test_a_number_that_is_read_and_not_used_is_nothing_to_refuse() -> None:
    def loss(y: Tensor) -> Tensor:
        y.mean().item()
        return y.mean()

    assert from_torch(Mlp(), loss, torch.ones(4, 6), targets=()).net.outputs == ("loss",)


@pytest.mark.parametrize(
    ("example", "options", "words"),
    [
        ((torch.ones(4, 6),), {}, "the example has 1 items"),
        ((torch.ones(4, 6), torch.ones(3)), {}, "differ in batch size"),
        ((torch.ones(4, 6), 1.0), {}, "cannot be read from data"),
        ({"x": torch.ones(4, 6)}, {}, "has no label"),
        ((torch.ones(4, 6), torch.ones(4, 3)), {"reduction": "none"}, "no scalar"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    example: object, options: dict[str, str], words: str
) -> None:
    def loss(y: Tensor, label: Tensor) -> Tensor:
        return F.mse_loss(y, label, **options)

    with pytest.raises(ConfigError, match=words):
        from_torch(Mlp(), loss, example)


class ByName(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x}


FEATURES, LABELS = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("module", "loss", "example", "words"),
    [
        (
            lambda x: x,
            F.cross_entropy,
            (FEATURES, LABELS),
            ["module is a function", "into the forward"],
        ),
        (
            Mlp,
            F.cross_entropy,
            (FEATURES, LABELS),
            ["module is the class Mlp", "to do: make an object of the class: Mlp("],
        ),
        (Mlp(), None, (FEATURES, LABELS), ["loss is None", "expected: a function"]),
        (
            Mlp(),
            F.cross_entropy,
            (torch.ones(4, 5), LABELS),
            ["module Mlp fails on its example", "takes float32 [4, 5]", "found: RuntimeError: "],
        ),
        (
            Mlp(),
            F.cross_entropy,
            (FEATURES, LABELS.float()),
            ["the loss function fails", "float32 [4]", "labels of classes as int64"],
        ),
        (
            ByName(),
            F.cross_entropy,
            (FEATURES, LABELS),
            ["the loss function fails", "a dict, int64 [4]", "out of the dict"],
        ),
        (
            Mlp(),
            lambda y: y.sum(),
            (FEATURES, LABELS),
            ["the loss function fails", "2 were given", "until loss("],
        ),
    ],
)
def test_what_fails_without_tracing_too_is_told_as_such(
    module: Any, loss: Any, example: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_torch(module, loss, example)
    for word in words:
        assert word in str(caught.value)
    assert "torch.where" not in str(caught.value)


def test_a_failed_import_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match="the loss function fails"):
        from_torch(module, F.cross_entropy, (2 * FEATURES, LABELS.float()))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


class Hiding(nn.Module):
    """Changes values in ways that autograd does not see."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.head = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x) * 1.5
        getattr(self, self.how)(y)
        return y.abs()

    def detached(self, y: Tensor) -> None:
        y.detach().mul_(0.5)

    def viewed(self, y: Tensor) -> None:
        y.detach()[:, 0].add_(0.5)

    def unseen(self, y: Tensor) -> None:
        with torch.no_grad():
            y.mul_(0.5)

    def unseen_in_part(self, y: Tensor) -> None:
        with torch.no_grad():
            y[:, 1].mul_(0.5)
            self.mean.add_(y.mean(0))

    def seen(self, y: Tensor) -> None:
        y.mul_(0.5)

    def without_gradient(self, y: Tensor) -> None:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0))
        own = y.detach().clone()
        own.mul_(2)
        self.mean.add_(own.mean(0))


@pytest.mark.parametrize("how", ["detached", "viewed", "unseen", "unseen_in_part"])
def test_writes_that_autograd_does_not_see_are_refused(how: str) -> None:
    example = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(GraphError, match="autograd does not see") as caught:
        from_torch(Hiding(how), F.cross_entropy, example)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


@pytest.mark.parametrize("how", ["seen", "without_gradient"])
def test_writes_that_autograd_sees_or_does_not_need_are_kept(how: str) -> None:
    example = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    assert from_torch(Hiding(how), F.cross_entropy, example).net.ops
