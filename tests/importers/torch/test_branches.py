"""Branches whose outcome is known or expected are followed, others refused at their line."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import purine as pu
from purine.data import ArraySource, DataSet
from purine.errors import GraphError
from purine.importers.torch import Imported, from_torch


class Layer(nn.Module):
    """A layer, and a function of what it gives and takes."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x), x)


def imported_from(function: Callable[[Tensor, Tensor], Tensor]) -> Imported:
    return from_torch(Layer(function), lambda y: y.mean(), torch.ones(4, 3), targets=())


def loss_on(imported: Imported, x: Tensor) -> float:
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1)
    with pu.Run(step, data=DataSet("d", ArraySource(x, names=("data",)))) as run:
        run.set_states(imported.values)
        return float(next(iter(run.steps(1))).loss)


DROPS: dict[str, Callable[[float], object]] = {
    "a scalar": lambda p: torch.rand([]) < p,
    "from the other side": lambda p: p > torch.rand(1),
    "what is kept": lambda p: not torch.rand([]) > p,
    "an item": lambda p: torch.rand(1).item() < p,
    "in place": lambda p: torch.empty(1).uniform_(0, 1)[0] < p,
    "Python": lambda p: random.random() < p,
    "Python's bounds": lambda p: random.uniform(0, 1) < p,
    "NumPy": lambda p: np.random.rand() < p,
    "NumPy's bounds": lambda p: np.random.uniform(0, 1) < p,
}


@pytest.mark.parametrize("drop", DROPS)
def test_a_layer_that_is_dropped_by_chance(drop: str) -> None:
    def dropping(p: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda y, x: x if DROPS[drop](p) else y

    states = random.getstate(), np.random.get_state()[2]
    assert "fc/linear" in imported_from(dropping(0.0)).net.ops
    assert "fc/linear" not in imported_from(dropping(1.0)).net.ops
    with pytest.raises(GraphError, match="random number") as caught:
        imported_from(dropping(0.3))
    assert "test_branches.py:" in str(caught.value.where)
    assert "layerdrop" in str(caught.value.remedy)
    assert (random.getstate(), np.random.get_state()[2]) == states


def test_a_number_that_was_changed_since_it_was_drawn_is_not_known() -> None:
    def changed(y: Tensor, x: Tensor) -> Tensor:
        draw = torch.rand([])
        draw.mul_(10)
        return x if draw < 1.0 else y

    with pytest.raises(GraphError, match="depends on the values"):
        imported_from(changed)


def test_numbers_of_python_that_are_drawn_anew_are_refused() -> None:
    with pytest.raises(GraphError, match="random number"):
        imported_from(lambda y, x: y * random.gauss(0, 1))
    with pytest.raises(GraphError, match="random number"):
        imported_from(lambda y, x: y * np.random.rand())

    def seeded(y: Tensor, x: Tensor) -> Tensor:
        np.random.seed(0)
        return y * float(np.random.rand())

    assert imported_from(seeded).outputs == ("output",)


def clamping(y: Tensor, x: Tensor) -> Tensor:
    if not torch.isfinite(y).all():
        y = y.clamp(-1, 1)
    return y


def clamping_twice(y: Tensor, x: Tensor) -> Tensor:
    if torch.isinf(y).any() or torch.isnan(y).any():
        y = y.clamp(-1, 1)
    return y


def asserting(y: Tensor, x: Tensor) -> Tensor:
    assert (x < 9).all(), "small values"
    return y


def asserting_of_a_number(y: Tensor, x: Tensor) -> Tensor:
    assert x.max().item() < 9
    return y


def raising(y: Tensor, x: Tensor) -> Tensor:
    if (x >= 9).any() or x.isnan().any():
        raise ValueError("large values")
    return y


def distributed(y: Tensor, x: Tensor) -> Tensor:
    return torch.distributions.Normal(y, 9.0 - x.detach()).mean


@pytest.mark.parametrize(
    "function",
    [clamping, clamping_twice, asserting, asserting_of_a_number, raising, distributed],
    ids=lambda function: function.__name__,
)
def test_what_is_expected_of_values_is_kept_as_a_condition(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    module = Layer(function)
    imported = from_torch(module, lambda y: y.mean(), torch.ones(4, 3), targets=())
    x = torch.randn(4, 3)
    assert loss_on(imported, x) == pytest.approx(module(x).mean().item(), rel=1e-5)
    assert np.isnan(loss_on(imported, torch.full((4, 3), float("inf"))))
    told = str(imported.net.ops["mean/expected"].attributes["expected"])
    line = function.__code__.co_firstlineno + 1
    assert f"test_branches.py:{line}: " in told


def test_gradients_are_none_where_a_condition_fails() -> None:
    imported = imported_from(asserting)
    wanted = ["grad/fc.weight"]
    data = DataSet("d", ArraySource(torch.full((4, 3), 10.0), names=("data",)))
    with pu.Run(pu.prune(pu.backward(imported.net), wanted), data=data) as run:
        run.set_states(imported.values)
        (result,) = run.steps(1)
    assert result.outputs["grad/fc.weight"].isnan().all()


def test_a_branch_with_two_ways_is_refused_with_its_code() -> None:
    def branching(y: Tensor, x: Tensor) -> Tensor:
        if (x > 9).any():
            y = -y
        return y

    with pytest.raises(GraphError, match="depends on the values of tensors") as caught:
        imported_from(branching)
    assert caught.value.found == "if (x > 9).any():"
    assert str(caught.value.where).endswith(f":{branching.__code__.co_firstlineno + 1}")


class Rescaling(nn.Module):
    """Halves its weights for tests, once, and doubles them when it is to train again."""

    def __init__(self, *, once: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.halved = False
        self.once = once

    def forward(self, x: Tensor) -> Tensor:
        if self.halved == self.training:
            with torch.no_grad():
                self.fc.weight.mul_(2.0 if self.training else 0.5)
            self.halved = not self.training and self.once
        return self.fc(x)


def test_weights_that_are_rescaled_between_modes() -> None:
    torch.manual_seed(0)
    module = Rescaling()
    x = torch.randn(4, 3)
    imported = from_torch(module, lambda y: y.mean(), x, targets=())
    assert not module.halved
    graph = pu.inference(imported.test, imported.outputs)
    values = {name: imported.values[name] for name in graph.states if name in imported.values}
    found = pu.compute(graph, {"data": x}, states=values)["output"]
    torch.testing.assert_close(found, module.eval()(x).detach())
    with pytest.raises(GraphError, match="changed by the module's own forward") as caught:
        from_torch(Rescaling(once=False), lambda y: y.mean(), x, targets=())
    assert "test_branches.py:" in str(caught.value.where)
