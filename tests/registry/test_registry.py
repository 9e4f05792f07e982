from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from purine import Run
from purine.arguments import conforms, describe
from purine.autodiff import backward
from purine.errors import ConfigError, KindError
from purine.graph import Filler, Op
from purine.kinds import Net, euclidean_loss, inner_product
from purine.registry import kind as registry
from purine.registry.kind import kind
from purine.registry.lookup import kinds, lookup


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    before = dict(kinds())
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)


def made(function: Any, **options: Any) -> registry.Kind:
    kind(function, **options)
    return kinds()[function.__name__]


def test_a_kind_is_read_from_the_signature_of_its_function() -> None:
    def Twice(x: Tensor, y: Tensor | None = None, *, factor: float, mode: str = "up") -> Tensor:
        return x * factor

    found = made(Twice, evaluation="pass", view=True)
    assert (found.inputs, found.optional, found.variadic) == (("x", "y"), 1, False)
    assert found.attributes["factor"].required
    assert found.attributes["mode"].default == "up"
    assert (found.evaluation, found.view, found.loss) == ("pass", True, False)
    op = Op("op", "Twice", ("a",), ("b",), {"factor": 3.0})
    assert found.bind(op)(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_loss_takes_a_weight_that_its_function_does_not_see() -> None:
    def Loss(x: Tensor) -> Tensor:
        return x.sum()

    op = Op("op", "Loss", ("x",), ("loss",), {"loss_weight": 0.3})
    found = made(Loss, loss=True)
    assert list(found.problems(op)) == []
    assert found.bind(op)(torch.ones(2)).item() == 2


def test_two_kinds_cannot_have_one_name() -> None:
    def Relu(x: Tensor) -> Tensor:
        return x

    with pytest.raises(ConfigError, match="there is a kind 'Relu' already"):
        kind(Relu)


def cell(factor: float) -> Any:
    """What a notebook does when its cell is run: the same names in the same module."""

    @kind
    def Times(x: Tensor) -> Tensor:
        return factor * x

    return Times


def trained_once(factor: float) -> tuple[float, float]:
    """The loss of a net with the kind, and the gradient of its parameter."""
    cell(factor)
    net = Net()
    (data,) = net.source([("data", (1, 1), "float32")])
    x = inner_product(
        data, 1, bias=False, name="fc", weight_filler=Filler("constant", {"value": 1.0})
    )
    x = net.apply("Times", [x], name="times")
    net.output(euclidean_loss(x, data, name="loss"))
    graph = replace(backward(net.graph()), outputs=("loss", "grad/fc/weight"))
    with Run(graph, data=torch.ones(1, 1)) as run:
        (result,) = run.steps(1)
    return result.loss, result["grad/fc/weight"]


def test_a_kind_can_be_defined_again_and_means_the_new_one() -> None:
    # (factor - 1)^2 / 2 and its derivative (factor - 1) * factor
    assert trained_once(3.0) == (2.0, 6.0)
    assert trained_once(5.0) == (8.0, 20.0)


def test_another_module_cannot_take_the_name() -> None:
    times = cell(2.0)

    def Times(x: Tensor) -> Tensor:
        return x

    with pytest.raises(ConfigError, match="there is a kind 'Times' already") as caught:
        kind(Times)
    assert caught.value.found == f"'Times' of {times.__module__}"


def test_an_unknown_kind_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(KindError, match="unknown kind 'Convv'") as caught:
        lookup(Op("conv1", "Convv", (), (), where="net.yaml:3"))
    assert caught.value.op == "conv1"
    assert "Conv" in str(caught.value.remedy)
    assert str(caught.value).startswith("net.yaml:3: ")


@pytest.mark.parametrize(
    ("inputs", "attributes", "expected"),
    [
        (("x", "y"), {"kernel": 2}, "1 (x)"),
        ((), {"kernel": 2}, "1 (x)"),
        (("x",), {}, "kernel, which is a whole number or a list of 2 whole numbers"),
        (("x",), {"kernel": 2.5}, "kernel to be a whole number or a list of 2 whole numbers"),
        (("x",), {"kernel": (1, 2, 3)}, "kernel to be a whole number or a list of 2 whole numbers"),
        (("x",), {"kernel": 2, "method": "mean"}, "method to be one of max, average"),
        (("x",), {"kernel": 2, "strides": 2}, "attributes of Pool: method, kernel, stride, "),
    ],
)
def test_an_op_that_disagrees_with_its_kind(
    inputs: tuple[str, ...], attributes: dict[str, Any], expected: str
) -> None:
    op = Op("pool1", "Pool", inputs, ("y",), attributes, where="net.yaml:7")
    (problem,) = lookup(op).problems(op)
    assert (problem.op, problem.where) == ("pool1", "net.yaml:7")
    assert str(problem.expected).startswith(expected)
    assert problem.remedy


def test_a_misspelt_attribute_is_recognised() -> None:
    op = Op("pool1", "Pool", ("x",), ("y",), {"kernel": 2, "strides": 2})
    (problem,) = lookup(op).problems(op)
    assert problem.remedy == "did you mean 'stride'?"


def test_a_variadic_kind_has_a_least_number_of_inputs() -> None:
    op = Op("sum", "Eltwise", ("x",), ("y",))
    (problem,) = lookup(op).problems(op)
    assert problem.expected == "2 or more (x, y, ...)"
    many = Op("sum", "Eltwise", ("a", "b", "c", "d"), ("y",))
    assert list(lookup(many).problems(many)) == []


@pytest.mark.parametrize(
    ("value", "annotation", "fits"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (1.0, int, False),
        (None, int | None, True),
        (None, int, False),
        ((1, 2, 3), tuple[int, ...], True),
        ((1, 2.5), tuple[int, ...], False),
        ((1, 2, 3), tuple[int, int], False),
        (2, tuple[int, ...], False),
        ("max", Literal["max", "average"], True),
        ("min", Literal["max", "average"], False),
        ((1, None), Any, True),
    ],
)
def test_values_conform_to_annotations(value: object, annotation: Any, fits: bool) -> None:
    assert conforms(value, annotation) is fits


def test_annotations_in_words() -> None:
    assert describe(float | None) == "a number or nothing"
    assert describe(tuple[float, ...]) == "a list of numbers"
    assert describe(bool) == "true or false"


def test_the_kinds_cannot_be_changed_from_outside() -> None:
    with pytest.raises(TypeError):
        kinds()["Mine"] = kinds()["Relu"]  # type: ignore[index]
