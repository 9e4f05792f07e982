from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import purine as pu
from purine.arguments import check_fields, checked, conforms, describe, shown
from purine.errors import ConfigError


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [0, -3], [True, 1.0, "1", None]),
        (float, [1, 0.5], [True, "1"]),
        (bool, [True], [1, "yes"]),
        (str, ["", "a"], [b"a", None]),
        (int | None, [None, 2], ["2"]),
        (Literal["a", 1], ["a", 1], [True, "b", 1.0]),
        (tuple[int, int], [(1, 2), [1, 2]], [(1,), (1, 2, 3), ("1", 2), 12]),
        (tuple[int, ...], [(), [1, 2]], [("1",), 1]),
        (Sequence[str], [["a"], ("a", "b")], ["ab", [1], {"a"}, None]),
        (Iterable[str], [["a"], {"a"}, iter("ab")], ["ab", 3, [1]]),
        (Mapping[str, int], [{}, {"a": 1}], [{"a": "1"}, {1: 1}, [("a", 1)]]),
        (Callable[..., int], [len, int], ["len", None]),
        (str | Path, ["a", Path("a")], [3]),
        (Tensor, [torch.zeros(2)], [np.zeros(2)]),
        (Any, [None, 3], []),
    ],
)
def test_values_and_annotations(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(conforms(value, annotation) for value in good)
    assert not any(conforms(value, annotation) for value in bad)
    assert describe(annotation)


@checked
def scaled(values: Sequence[float], *more: float, by: float = 2.0) -> list[float]:
    """Values times a factor."""
    return [value * by for value in (*values, *more)]


def test_a_checked_function_is_the_function() -> None:
    assert scaled([1, 2], np.float32(3), by=np.int64(2)) == [2, 4, 6]
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Values times a factor.")
    assert list(inspect.signature(scaled).parameters) == ["values", "more", "by"]


def test_what_is_wrong_with_a_call() -> None:
    with pytest.raises(ConfigError, match="scaled: by is '3'") as caught:
        scaled([1], by="3")  # type: ignore[arg-type]
    assert (caught.value.expected, caught.value.found) == ("a number", "'3'")
    with pytest.raises(ConfigError, match=r"scaled: more\[0\] is None"):
        scaled([1], None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scaled has no argument 'bye'") as caught:
        scaled([1], bye=3)  # type: ignore[call-arg]
    assert caught.value.remedy == "did you mean 'by'?"
    with pytest.raises(ConfigError, match="missing a required argument: 'values'"):
        scaled()  # type: ignore[call-arg]


def test_errors_within_a_function_are_its_own() -> None:
    @checked
    def broken(value: int) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        broken(1)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (nn.Linear(2, 2), "import the module: pu.from_torch(module, loss, example).net"),
        (pu.Net(), "freeze the net: net.graph()"),
        (None, "change net"),
    ],
)
def test_a_wrong_graph_has_a_remedy_of_its_own(given: Any, remedy: str) -> None:
    with pytest.raises(ConfigError, match="evaluation: net is") as caught:
        pu.evaluation(given)
    assert caught.value.remedy == remedy


def test_fields_of_a_dataclass() -> None:
    @dataclass
    class Size:
        width: int

        def __post_init__(self) -> None:
            check_fields(self)

    globals()["Size"] = Size
    assert Size(3).width == 3
    with pytest.raises(ConfigError, match="Size: width is None"):
        Size(None)  # type: ignore[arg-type]


def test_values_are_shown_in_few_words() -> None:
    assert shown("a" * 200) == f"'{'a' * 79}..."
    assert shown(list(range(200))) == "a list of 200"
    assert shown(torch.zeros(2, 3)) == "a Tensor of shape [2, 3]"
    assert shown(10**5000) == "an int of many digits"
    assert shown(nn.Linear) == "the class Linear"


def test_annotations_of_all_public_functions_can_be_read() -> None:
    modules = (pu, pu.data, pu.graph, pu.kinds, pu.optimize, pu.parallel, pu.solvers, pu.zoo)
    for module in modules:
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                assert typing.get_type_hints(function), name
                assert hasattr(function, "__wrapped__"), f"{name} is not checked"


def test_an_alias_of_types_that_is_an_object_means_what_it_stands_for() -> None:
    """As `npt.NDArray` is with newer versions of Python and numpy."""

    class Alias:
        __value__ = list[int]

    assert conforms([1], Alias())
    assert not conforms("1", Alias())
    assert describe(Alias()) == describe(list[int])
