from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from purine.graph import Attribute, Location, Op
from purine.registry import aten
from purine.registry.lookup import lookup

ops = torch.ops.aten


def call(kind: str, attributes: Mapping[str, Attribute], *tensors: torch.Tensor) -> Any:
    op = Op("op", kind, tuple(f"x{i}" for i in range(len(tensors))), ("y",), attributes)
    return lookup(op).bind(op)(*tensors)


def test_the_default_overload_needs_no_name() -> None:
    assert aten.kind_of("aten.relu") is not None
    assert aten.kind_of("aten.add.Tensor") is not None
    assert aten.name_of(ops.relu.default) == "aten.relu"
    assert aten.name_of(ops.add.Tensor) == "aten.add.Tensor"


@pytest.mark.parametrize("name", ["aten.no_such", "aten.add.NoSuch", "aten", "Relu", "aten.a.b.c"])
def test_what_is_no_overload_is_no_kind(name: str) -> None:
    assert aten.kind_of(name) is None


def test_views_are_known_from_the_schema() -> None:
    views = {name: aten.kind_of(name) for name in ("aten.t", "aten.reshape", "aten.relu")}
    assert [kind.view for kind in views.values() if kind] == [True, True, False]


def test_tensors_come_in_the_order_of_the_schema() -> None:
    bias, x, weight = torch.randn(3), torch.randn(2, 4), torch.randn(4, 3)
    found = call("aten.addmm", {"beta": 2}, bias, x, weight)
    assert torch.equal(found, torch.addmm(bias, x, weight, beta=2))


def test_an_absent_tensor_is_an_attribute_that_holds_null() -> None:
    x, bias = torch.randn(2, 4), torch.randn(4)
    settings: dict[str, Attribute] = {"normalized_shape": (4,), "eps": 1e-5}
    y, _, _ = call("aten.native_layer_norm", {**settings, "weight": None}, x, bias)
    expected = torch.nn.functional.layer_norm(x, (4,), None, bias)
    torch.testing.assert_close(y, expected)


def test_a_list_takes_all_inputs_that_are_left() -> None:
    x, y, z = torch.randn(2, 1), torch.randn(2, 2), torch.randn(2, 3)
    assert torch.equal(call("aten.cat", {"dim": 1}, x, y, z), torch.cat([x, y, z], 1))


def test_places_in_a_list_stand_for_inputs() -> None:
    x, rows, columns = torch.randn(3, 4), torch.tensor([0, 2]), torch.tensor([1, 1])
    found = call("aten.index.Tensor", {"indices": (None, "$1")}, x, columns)
    assert torch.equal(found, x[:, columns])
    found = call("aten.index.Tensor", {"indices": ("$1", "$2")}, x, rows, columns)
    assert torch.equal(found, x[rows, columns])


def test_a_dtype_is_an_attribute_by_name() -> None:
    x = torch.ones(2, 3)
    assert call("aten.sum", {"dtype": "float64"}, x).dtype == torch.float64
    assert call("aten._to_copy", {"dtype": "int64"}, x).dtype == torch.int64


def test_a_result_is_created_where_the_op_is() -> None:
    settings: dict[str, Attribute] = {"size": (2,), "fill_value": 1.5, "dtype": "float64"}
    op = Op("one", "aten.full", (), ("y",), settings, Location(device="cpu:3"))
    found = lookup(op).bind(op)()
    assert found.dtype == torch.float64
    assert found.device == torch.device("cpu")
    assert str(aten.device_of(Location(device="cuda:1"))) == "cuda:1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_dtypes_by_name(dtype: torch.dtype) -> None:
    assert aten.dtype_of(aten.dtype_name(dtype)) == dtype


X, ROWS, BIAS = torch.randn(3, 4), torch.tensor([0, 2]), torch.randn(4)


@pytest.mark.parametrize(
    ("overload", "args", "kwargs"),
    [
        (ops.relu.default, (X,), {}),
        (ops.addmm.default, (BIAS, X, torch.randn(4, 4)), {"alpha": 0.5}),
        (ops.cat.default, ([X, X], 1), {}),
        (ops.index.Tensor, (X, [None, ROWS]), {}),
        (ops.index_put.default, (X, [ROWS], BIAS), {}),
        (ops.native_layer_norm.default, (X, [4], None, BIAS, 1e-5), {}),
        (ops.native_layer_norm.default, (X, [4], None, None, 1e-5), {}),
        (ops._to_copy.default, (X,), {"dtype": torch.float64}),
        (ops.sum.dim_IntList, (X, [0], True), {"dtype": torch.float64}),
        (ops.full.default, ([2, 3], 1.0), {"dtype": torch.int32}),
        (ops.clone.default, (X,), {"memory_format": torch.contiguous_format}),
        (ops.slice.Tensor, (X, 1, 0, 2), {}),
        (ops.where.self, (X > 0, X, X), {}),
    ],
    ids=lambda value: str(value) if callable(value) else "",
)
def test_a_recorded_call_gives_the_same_results_as_an_op(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    tensors: list[torch.Tensor] = []

    def number(value: object) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        tensors.append(value)
        return len(tensors) - 1

    inputs, attributes = aten.attributes_of(overload, args, kwargs, number)
    found = call(aten.name_of(overload), attributes, *(tensors[i] for i in inputs))
    torch.testing.assert_close(found, overload(*args, **kwargs), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [k for k in aten.OVERWRITES if not k.endswith("_backward")])
def test_a_result_can_be_written_over_an_input(kind: str) -> None:
    rows = kind == "aten.index_add"
    for index in aten.OVERWRITES[kind]:
        overload = aten.kind_of(kind)
        assert overload is not None
        tensors = [torch.rand(5) + 0.5 for _ in overload.inputs]
        if rows:
            tensors[1] = torch.tensor([0, 2, 2, 4, 1])
        names = tuple(f"x{i}" for i in range(len(tensors)))
        op = Op("op", kind, names, ("y",), {"dim": 0} if rows else {})
        expected = lookup(op).bind(op)(*tensors)
        found = aten.bind_over(op, index)(*tensors)
        torch.testing.assert_close(found, expected)
        assert found.data_ptr() == tensors[index].data_ptr()
