"""Sums at given places by the kernels for GPUs, here on the CPU, against ATen's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.graph import Location, Op
from purine.ops import add_at, aten, inductor
from purine.ops.add_at import rows_in_place
from purine.ops.aten import KERNELS
from purine.ops.inductor import compile_function
from purine.ops.tracing import Spec, trace_joint
from tests.ops.interpreter import interpret, needs_triton

ops = torch.ops.aten
X = torch.randn(6, 5, dtype=torch.float64)
PLACES = torch.tensor([0, 2, 2, 4, 1, 2, 0])
ROWS = torch.randn(7, 5, dtype=torch.float64)
TOKENS = torch.tensor([[0, 1, 1, 5], [2, 3, 3, 1]])
PULLED = torch.randn(2, 4, 5, dtype=torch.float64)

CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (ops.index_add.default, (X, 0, PLACES, ROWS), {}),
    (ops.index_add.default, (X, -1, PLACES[4:6], X[:, :2]), {"alpha": 0.5}),
    (ops.index_add.default, (X.long(), 0, PLACES, ROWS.long()), {}),
    (ops.index_add.default, (X[:, 0], 0, PLACES, ROWS[:, 0]), {}),
    (ops.index_add.default, (X[0, 0], 0, PLACES[0], ROWS[0, 0]), {}),
    (ops.index_put.default, (X, [PLACES], ROWS, True), {}),
    (ops.index_put.default, (X, [None, PLACES[:3]], X[:, :3], True), {}),
    (ops.index_put.default, (X, [X[:, 0] > 0], X[0], True), {}),
    (ops.index_put.default, (X, [PLACES[1:4:2]], X[:2]), {}),
    (ops.scatter_add.default, (X, 0, TOKENS, ROWS), {}),
    (ops.scatter_add.default, (X, -1, TOKENS.clamp_max(4), ROWS), {}),
    (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, -1, False), {}),
    (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, 1, False), {}),
    (ops.embedding_dense_backward.default, (PULLED, TOKENS, 6, -1, True), {}),
]


@pytest.mark.parametrize(("overload", "args", "kwargs"), CASES)
def test_each_gives_what_the_library_does(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    before = X.clone()
    found = KERNELS[aten.name_of(overload), "cuda"](*args, **kwargs)
    torch.testing.assert_close(found, overload(*args, **kwargs))
    assert torch.equal(X, before)


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (ops.index_add.default, (X, 0, PLACES, ROWS.t().contiguous())),
        (ops.scatter_add.default, (X, 0, TOKENS, ROWS[:1])),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_refuses_what_the_library_does(
    overload: Any, args: tuple[Any, ...], device: str
) -> None:
    def there(value: object) -> object:
        if isinstance(value, list):
            return [there(item) for item in value]
        return value.to(device) if isinstance(value, Tensor) else value

    with pytest.raises((RuntimeError, IndexError)):
        KERNELS[aten.name_of(overload), "cuda"](*map(there, args))


def test_rows_can_be_added_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor writes over what nobody reads any more: also by these kernels."""
    calls: list[tuple[Tensor, ...]] = []
    monkeypatch.setattr(add_at, "add_rows", lambda *args: calls.append(args))
    monkeypatch.setattr(aten, "device_of", lambda location: torch.device("cuda"))
    op = Op("sum", "aten.index_add", ("x", "i", "rows"), ("y",), {"dim": 0}, Location("cuda:0"))
    x = X.clone()
    assert aten.bind_over(op, 0)(x, PLACES, ROWS) is x
    assert [call[0] is x for call in calls] == [True]
    found = KERNELS["aten.index_add_", "cuda"](x, 1, PLACES[4:6], X[:, :2])
    assert found is x
    torch.testing.assert_close(x, ops.index_add(X, 1, PLACES[4:6], X[:, :2]))


@pytest.mark.parametrize(
    ("name", "places", "call"),
    [
        ("aten.index_add", PLACES, lambda kernel, x, i, w: kernel(x, 0, i, w)),
        ("aten.scatter_add", ROWS.long(), lambda kernel, x, i, w: kernel(x, 0, i, w)),
        ("aten.index_put", PLACES, lambda kernel, x, i, w: kernel(x, [i], w, True)),
    ],
)
def test_a_net_that_is_on_a_gpu_already_is_differentiated_as_one_that_is_not(
    name: str, places: Tensor, call: Callable[..., Tensor]
) -> None:
    shapes = [(X, "float64"), (places, "int64"), (ROWS, "float64")]
    specs = [Spec(tuple(value.shape), dtype) for value, dtype in shapes]
    found, wanted = (
        trace_joint(partial(call, kernel), specs, (True, False, True))
        for kernel in (KERNELS[name, "cuda"], aten._overload(name))
    )
    assert found == wanted
    assert found.gradients[0] is not None
    assert found.gradients[2] is not None


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "argument": lambda x: x[:6],
    "copy": lambda x: x[:6].float(),
    "offset": lambda x: x[1:7],
    "made with an offset": lambda x: (x * 2)[1:7],
    "part": lambda x: x.split(6)[1],
    "turned": lambda x: x[:5, :5].t(),
    "product": lambda x: x[:6] @ x[:5],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiler_leaves_them_alone(
    view: Callable[[Tensor], Tensor], in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler knows of views, and of memory that is written over, more than it may use here."""
    if in_place:
        monkeypatch.setattr(inductor, "rewritten", lambda module, gpu: rows_in_place(module))

    def function(x: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        total = view(x)
        found = KERNELS["aten.index_add", "cuda"](total, 0, places, rows.to(total.dtype))
        other = KERNELS["aten.scatter_add", "cuda"](total, 0, places[None], rows.to(total.dtype))
        return found.sum(0), found, other, x + 1

    if view is VIEWS["copy"]:
        x, rows = torch.randn(12, 5).bfloat16(), torch.randn(5, 5)
    else:
        x, rows = torch.randn(12, 5), torch.randn(5, 5)
    places = torch.tensor([0, 2, 2, 4, 1])
    kept = x.clone()
    wanted = function(x, places, rows)
    torch.testing.assert_close(
        tuple(compile_function(function, (x, places, rows))(x, places, rows)), wanted
    )
    assert torch.equal(x, kept)


@pytest.mark.parametrize(
    ("total", "free"),
    [
        (lambda x, w: x @ w, True),
        (lambda x, w: (x @ w).bfloat16().float(), True),
        (lambda x, w: torch.zeros_like(x), False),
        (lambda x, w: x, False),
        (lambda x, w: (x @ w)[1:], False),
        (lambda x, w: (x @ w).view(6, 5), False),
    ],
)
def test_sums_are_written_over_only_what_nobody_else_has(
    total: Callable[[Tensor, Tensor], Tensor], free: bool
) -> None:
    def calls(*, again: bool) -> list[str]:
        def function(x: Tensor, w: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            made = total(x, w)
            found = KERNELS["aten.index_add", "cuda"](made, 0, places, rows)
            return (found, made) if again else (found,)

        module = make_fx(function, tracing_mode="fake")(
            torch.randn(6, 5), torch.randn(5, 5), torch.tensor([0, 2, 2]), torch.randn(3, 5)
        )
        rows_in_place(module)
        module.graph.lint()
        return [str(node.target) for node in module.graph.nodes]

    assert ("purine.add_rows.default" in calls(again=False)) == free
    assert "purine.add_rows.default" not in calls(again=True)


def test_a_table_of_embeddings_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "rewritten", lambda module, gpu: rows_in_place(module))

    def function(low: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        total = KERNELS["aten.index_add", "cuda"](low.float(), 0, places, rows)
        return total.sum(0), total

    low, rows = torch.randn(2000, 300).bfloat16(), torch.randn(7, 300)
    wanted = function(low, PLACES, rows)
    made = compile_function(function, (low, PLACES, rows))
    with torch.profiler.profile(profile_memory=True) as profile:
        found = made(low, PLACES, rows)
    torch.testing.assert_close(tuple(found), wanted)
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
whole = torch.zeros(6, 3)
for wrong in (-1, -2, 4):
    try:
        gpu_rows.sum_rows(whole[1:5], torch.tensor([0, wrong]), torch.ones(2, 3))
    except RuntimeError as error:
        assert "out of range" in str(error)
    else:
        raise AssertionError(wrong)
assert not whole.any()
"""


@needs_triton
def test_the_kernel_for_rows_adds_up_runs_of_any_length() -> None:
    interpret(ROWS_IN_ORDER)
