"""Sums at given places by the kernels for GPUs, here on the CPU, against ATen's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from purine.analysis.tracing import Spec, trace_joint
from purine.compile import inductor
from purine.compile.inductor import compile_function
from purine.compile.rewrites import apply_rewrites
from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.rows import duplicate_row_gathers
from purine.graph import Location, Op
from purine.kinds import add_at
from purine.registry import aten
from purine.registry.aten import KERNELS
from tests.kernels.interpreter import interpret, needs_triton

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
        (ops.index_add.default, (X, 2, PLACES, ROWS)),
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


@pytest.mark.parametrize("places", [PLACES - 1, PLACES + 2, PLACES.bool(), PLACES.double()])
@pytest.mark.parametrize("name", ["aten.index_add", "aten.index_add_"])
def test_places_that_are_none_are_refused(name: str, places: Tensor) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        KERNELS[name, "cuda"](X.clone(), 0, places, ROWS)


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


@pytest.fixture
def rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with this rewrite, as on a GPU."""

    def apply(module: GraphModule, **_: object) -> Recorded:
        step = apply_rewrites(module, gpu=False)
        duplicate_row_gathers(step)
        module.recompile()
        return step

    monkeypatch.setattr(inductor, "apply_rewrites", apply)


@pytest.mark.usefixtures("rewriting")
@pytest.mark.parametrize("tied", [True, False])
def test_a_table_of_embeddings_is_read_where_it_is_used(tied: bool) -> None:
    """Nothing as large as the table is made for what is added to a few of its rows."""

    def function(low: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        if tied:
            total = KERNELS["aten.index_add", "cuda"](low.float(), 0, places, rows)
        else:
            kernel = KERNELS["aten.embedding_dense_backward", "cuda"]
            total = kernel(rows, places, len(low), -1, False)
        return total.square().bfloat16(), (total * 0.5).bfloat16(), (total + low).bfloat16()

    low, rows = torch.randn(2000, 300).bfloat16(), torch.randn(7, 300)
    wanted = function(low, PLACES, rows)
    made = compile_function(function, (low, PLACES, rows))
    with torch.profiler.profile(profile_memory=True) as profile:
        found = made(low, PLACES, rows)
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-2, atol=1e-2)
    events = profile.profiler.kineto_results.events()
    taken = sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")
    assert taken < 1.1 * sum(value.nbytes for value in wanted)


@pytest.mark.usefixtures("rewriting")
def test_what_is_read_behind_a_write_is_that_of_before() -> None:
    def function(x: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        total = KERNELS["aten.index_add", "cuda"](x, 0, places, rows)
        x.copy_(total * 0.5)
        return total + 1, total * 2

    x, rows = torch.randn(6, 5), torch.randn(7, 5)
    total = ops.index_add(x, 0, PLACES, rows)
    found = compile_function(function, (x.clone(), PLACES, rows))(x, PLACES, rows)
    torch.testing.assert_close(tuple(found), (total + 1, total * 2))
    torch.testing.assert_close(x, total * 0.5)


READERS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "two": (lambda total: (total * 2, total * total), 2),
    "lists": (lambda total: torch._foreach_mul([total], 2) + torch._foreach_exp([total]), 2),
    "a cast": (lambda total: (total.double() * 2, total.double() * 3), 2),
    "sums": (lambda total: (total.sum(), total.sum(0)), 2),
    "products": (lambda total: (total @ total.t(), total * 2), 1),
    "one that returns it": (lambda total: (total, total * 2), 1),
    "a view": (lambda total: (total[1:], total * 2), 1),
}


@pytest.mark.parametrize(("readers", "count"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_reader_adds_sums_of_rows_by_itself_unless_one_needs_the_table(
    readers: Callable[[Tensor], Any], count: int, dtype: torch.dtype
) -> None:
    def function(x: Tensor, places: Tensor, rows: Tensor) -> Any:
        return readers(KERNELS["aten.index_add", "cuda"](x, 0, places, rows))

    arguments = (torch.randn(6, 5).to(dtype), PLACES, torch.randn(7, 5).to(dtype))
    module = make_fx(function, tracing_mode="fake")(*arguments)
    duplicate_row_gathers(Recorded(module))
    module.graph.lint()
    module.recompile()
    made = module.graph.find_nodes(op="call_function", target=ops._unsafe_index.Tensor)
    assert [len(node.users) for node in made] == [1] * count
    for found, wanted in zip(module(*arguments), function(*arguments), strict=True):
        torch.testing.assert_close(found, wanted)


def test_it_is_one_of_the_rewrites_for_gpus() -> None:
    def function(x: Tensor, places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        total = KERNELS["aten.index_add", "cuda"](x, 0, places, rows)
        return total * 2, total * total

    for gpu in (True, False):
        module = make_fx(function, tracing_mode="fake")(torch.ones(6, 5), PLACES, torch.ones(7, 5))
        apply_rewrites(module, gpu=gpu)
        made = module.graph.find_nodes(op="call_function", target=ops._unsafe_index.Tensor)
        assert len(made) == (2 if gpu else 1)


ROWS_IN_ORDER = """
import torch
from purine.kernels import rows as gpu_rows

torch.manual_seed(0)
for number, (height, shape, chunk, tile, dtype) in enumerate((
    (50, (71, 20), 16, 8, torch.float32),
    (7, (90, 5), 4, 8, torch.float32),
    (1, (181, 9), 4, 16, torch.float32),
    (300, (64, 16), 8, 16, torch.float32),
    (100, (210, 3), 16, 4, torch.float32),
    (3, (33, 3, 4), 8, 8, torch.bfloat16),
    (9, (1, 12), 8, 16, torch.float16),
    (5, (40,), 8, 16, torch.float32),
)):
    gpu_rows._CHUNK, gpu_rows._TILE = chunk, tile
    rows = torch.randn(shape).to(dtype)
    count = len(rows)
    for order, index in enumerate((
        torch.randint(0, height, (count,)),
        torch.full((count,), height - 1),
        torch.randint(0, height, (count,)).clamp_max(2).int(),
        torch.arange(count).clamp_max(height - 1),
    )):
        gpu_rows._SHORT = 1000 * ((number + order) % 2)  # both with each shape and each order
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
