"""Sums at given places by the kernels for GPUs, here on the CPU, against ATen's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from purine.graph import Location, Op
from purine.ops import aten
from purine.ops.aten import KERNELS
from purine.ops.inductor import compile_function
from tests.ops.interpreter import interpret, needs_triton

ops = torch.ops.aten
X = torch.randn(6, 5, dtype=torch.float64)
PLACES = torch.tensor([0, 2, 2, 4, 1, 2, 0])
ROWS = torch.randn(7, 5, dtype=torch.float64)
TOKENS = torch.tensor([[0, 1, 1, 5], [2, 3, 3, 1]])
PULLED = torch.randn(2, 4, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("overload", "args", "kwargs"),
    [
        (ops.index_add.default, (X, 0, PLACES, ROWS), {}),
        (ops.index_add.default, (X, -1, PLACES[4:6], X[:, :2]), {"alpha": 0.5}),
        (ops.index_put.default, (X, [PLACES], ROWS, True), {}),
        (ops.index_put.default, (X, [None, PLACES[:3]], X[:, :3], True), {}),
        (ops.index_put.default, (X, [PLACES[1:4:2]], X[:2]), {}),
        (ops.scatter_add.default, (X, 0, TOKENS, ROWS), {}),
        (ops.scatter_add.default, (X, -1, TOKENS.clamp_max(4), ROWS), {}),
        (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, -1, False), {}),
        (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, 1, False), {}),
        (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, -1, True), {}),
    ],
)
def test_each_gives_what_the_library_does(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    before = X.clone()
    found = KERNELS[aten.name_of(overload), "cuda"](*args, **kwargs)
    torch.testing.assert_close(found, overload(*args, **kwargs))
    assert torch.equal(X, before)


def test_rows_can_be_added_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor writes over what nobody reads any more: also by these kernels."""
    monkeypatch.setattr(aten, "device_of", lambda location: torch.device("cuda"))
    op = Op("sum", "aten.index_add", ("x", "i", "rows"), ("y",), {"dim": 0}, Location("cuda:0"))
    x = X.clone()
    found = aten.bind_over(op, 0)(x, PLACES, ROWS)
    assert found is x
    torch.testing.assert_close(found, ops.index_add(X, 0, PLACES, ROWS))


def test_a_compiler_leaves_them_alone_and_copies_nothing() -> None:
    def function(low: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        total = KERNELS["aten.index_add", "cuda"](low.float(), 0, places, rows)
        return total.sum(0), total

    low, rows = torch.randn(2000, 300).bfloat16(), torch.randn(7, 300)
    wanted = function(low, PLACES, rows)
    made = compile_function(function, (low, PLACES, rows))
    kept = low.clone()
    with torch.profiler.profile(profile_memory=True) as profile:
        found = made(low, PLACES, rows)
    torch.testing.assert_close(tuple(found), wanted)
    assert torch.equal(low, kept)
    calls = {event.key for event in profile.key_averages()}
    assert "purine::add_rows" in calls
    taken = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert taken < 1.5 * wanted[1].nbytes


ROWS_IN_ORDER = """
import torch
from purine.ops import gpu_rows

torch.manual_seed(0)
for height, shape, chunk, tile, dtype in (
    (50, (3, 37, 20), 16, 8, torch.float32),
    (7, (200, 5), 4, 8, torch.float32),
    (1, (701, 9), 4, 16, torch.float32),
    (1000, (64, 16), 8, 16, torch.float32),
    (3, (33, 3, 4), 8, 8, torch.bfloat16),
    (9, (1, 12), 8, 16, torch.float16),
):
    gpu_rows._CHUNK, gpu_rows._TILE = chunk, tile
    rows = torch.randn(shape).to(dtype)
    lead = 1 if dtype == torch.bfloat16 else len(shape) - 1
    for index in (
        torch.randint(0, height, shape[:lead]),
        torch.full(shape[:lead], height - 1),
        torch.randint(0, height, shape[:lead]).clamp_max(2),
        torch.arange(rows.flatten(0, lead - 1).shape[0]).view(shape[:lead]).clamp_max(height - 1),
    ):
        total = torch.randn(height, *shape[lead:]).to(dtype)
        flat = (index.reshape(-1), rows.double().flatten(0, lead - 1))
        wanted = total.double().index_add(0, *flat)
        gpu_rows.sum_rows(total, index, rows)
        close = 1e-4 if dtype == torch.float32 else 4e-2
        torch.testing.assert_close(total.double(), wanted, rtol=close, atol=close)
total = torch.randn(4, 3)
kept = total.clone()
gpu_rows.sum_rows(total, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
assert torch.equal(total, kept)
"""


@needs_triton
def test_the_kernel_for_rows_adds_up_runs_of_any_length() -> None:
    interpret(ROWS_IN_ORDER)
