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
from purine.ops import add_at, aten
from purine.ops.add_at import rows_where_read
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
    calls = []
    plain = add_at.row_sums
    monkeypatch.setattr(add_at, "row_sums", lambda *args: calls.append(args) or plain(*args))
    monkeypatch.setattr(aten, "device_of", lambda location: torch.device("cuda"))
    op = Op("sum", "aten.index_add", ("x", "i", "rows"), ("y",), {"dim": 0}, Location("cuda:0"))
    x = X.clone()
    assert aten.bind_over(op, 0)(x, PLACES, ROWS) is x
    assert len(calls) == 1
    torch.testing.assert_close(x, ops.index_add(X, 0, PLACES, ROWS))
    x = X.clone()
    assert KERNELS["aten.index_add_", "cuda"](x, 1, PLACES[4:6], X[:, :2]) is x
    torch.testing.assert_close(x, ops.index_add(X, 1, PLACES[4:6], X[:, :2]))


def test_low_precision_is_added_up_in_float32() -> None:
    x, rows = torch.ones(2, 3).bfloat16(), torch.full((1024, 3), 2.0**-10).bfloat16()
    found = KERNELS["aten.index_add", "cuda"](x, 0, torch.zeros(1024, dtype=torch.int64), rows)
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[2.0] * 3, [1.0] * 3]


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
def test_a_compiler_makes_of_them_what_they_are(view: Callable[[Tensor], Tensor]) -> None:
    """It knows of views more than it may use here."""

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


def test_a_table_of_embeddings_is_read_where_it_is_used() -> None:
    """Nothing as large as the table is made for what is added to a few of its rows."""

    def function(low: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        total = KERNELS["aten.index_add", "cuda"](low.float(), 0, places, rows)
        return total.sum(0), total.square().bfloat16()

    low, rows = torch.randn(2000, 300).bfloat16(), torch.randn(7, 300)
    wanted = function(low, PLACES, rows)
    made = compile_function(function, (low, PLACES, rows))
    with torch.profiler.profile(profile_memory=True) as profile:
        found = made(low, PLACES, rows)
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-2, atol=1e-2)
    taken = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert taken < 1.5 * wanted[1].nbytes


def test_each_reader_adds_sums_of_rows_by_itself() -> None:
    """A compiler makes in memory what has two readers: none has, the sums themselves aside."""

    def function(x: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        total = KERNELS["aten.index_add", "cuda"](x, 0, places, rows)
        return total * 2, total * total, x[places] + 1

    arguments = (torch.randn(6, 5), PLACES, torch.randn(7, 5))
    module = make_fx(function, tracing_mode="fake")(*arguments)
    rows_where_read(module)
    module.graph.lint()
    module.recompile()
    targets = (ops._unsafe_index.Tensor, ops.add.Tensor)
    made = [node for node in module.graph.nodes if node.target in targets]
    assert [node.target for node in made].count(ops._unsafe_index.Tensor) == 2
    assert [len(node.users) for node in made] == [1] * len(made)
    for found, wanted in zip(module(*arguments), function(*arguments), strict=True):
        assert torch.equal(found, wanted)


ROWS_IN_ORDER = """
import torch
from purine.ops import gpu_rows

torch.manual_seed(0)
for height, shape, chunk, tile, dtype in (
    (50, (111, 20), 16, 8, torch.float32),
    (7, (200, 5), 4, 8, torch.float32),
    (1, (701, 9), 4, 16, torch.float32),
    (1000, (64, 16), 8, 16, torch.float32),
    (3, (33, 3, 4), 8, 8, torch.bfloat16),
    (9, (1, 12), 8, 16, torch.float16),
    (5, (40,), 8, 16, torch.float32),
):
    gpu_rows._CHUNK, gpu_rows._TILE = chunk, tile
    rows = torch.randn(shape).to(dtype)
    count = len(rows)
    for index in (
        torch.randint(0, height, (count,)),
        torch.full((count,), height - 1),
        torch.randint(0, height, (count,)).clamp_max(2).int(),
        torch.arange(count).clamp_max(height - 1),
    ):
        for short in (0, 1000):
            gpu_rows._SHORT = short
            sums = torch.full((count + 1, *shape[1:]), torch.nan)
            slots = torch.full((height,), count, dtype=torch.int32)
            gpu_rows.sums_of_rows(index, rows, sums, slots)
            wanted = torch.zeros(height, *shape[1:]).index_add(0, index, rows.float())
            torch.testing.assert_close(sums[slots], wanted, rtol=1e-4, atol=1e-4)
sums, slots = torch.full((1, 3), torch.nan), torch.zeros(4, dtype=torch.int32)
gpu_rows.sums_of_rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), sums, slots)
assert not sums.any()
for wrong in (-1, -2, 4):  # where nothing says so, nothing is written elsewhere
    sums, slots = torch.zeros(3, 3), torch.full((6,), 2, dtype=torch.int32)
    gpu_rows.sums_of_rows(torch.tensor([0, wrong]), torch.ones(2, 3), sums, slots[1:5])
    assert (slots == 2).sum() == 5
"""


@needs_triton
def test_the_kernel_for_rows_adds_up_runs_of_any_length() -> None:
    interpret(ROWS_IN_ORDER)
