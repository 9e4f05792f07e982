"""Cached copies change no bit, and are computed again when someone else has written a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import purine as pu
from purine.compile.inductor import CompiledFunction, compile_function
from purine.compile.rewrites._recorded import CachedCast, Recorded
from purine.compile.rewrites.cached_weights import cache_casts

aten = torch.ops.aten
BF16 = torch.bfloat16


def update(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    """One step that makes the product smaller."""
    low = weight.to(x.dtype)
    y = x @ low.t()
    gradient = (y.t() @ x).float()
    weight.copy_(weight - 0.01 * gradient)
    return (y,)


def padded(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    low = aten.constant_pad_nd(weight.to(BF16), [0, 0, 0, 3])
    y = x @ low.t()
    weight.copy_(weight - 0.01 * (y.t() @ x).float()[: len(weight)])
    return (y,)


def given(dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 8), torch.randn(4, 8).to(dtype)


def recorded(function: Callable[..., Any], *arguments: Tensor) -> GraphModule:
    return make_fx(function, tracing_mode="fake")(*arguments)


def cached(module: GraphModule) -> list[CachedCast]:
    """Apply the rewrite."""
    step = Recorded(module)
    assert cache_casts(step) == len(step.casts)
    module.recompile()
    return step.casts


def casts(module: GraphModule) -> list[Any]:
    """Which of its arguments a function casts."""
    found = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    return [node for node in found if node.args[0].op == "placeholder"]


def follow(one: CompiledFunction, other: CompiledFunction, *, dtype: torch.dtype = BF16) -> None:
    """Both functions go the same way, to the bit."""
    (weight, x), (also, _) = given(dtype), given(dtype)
    for _ in range(5):
        assert torch.equal(one(weight, x)[0], other(also, x)[0])
        assert torch.equal(weight, also)


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_steps_have_the_same_bits(dtype: torch.dtype) -> None:
    one, other = (compile_function(update, given(dtype), cache=cache) for cache in (True, False))
    follow(one, other, dtype=dtype)


def test_a_padded_copy_is_kept_whole() -> None:
    module = recorded(padded, *given())
    assert cached(module) == [CachedCast(0, BF16, (0, 0, 0, 3))]
    assert not casts(module)
    assert not module.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    one, other = (compile_function(padded, given(), cache=cache) for cache in (True, False))
    follow(one, other)


def test_what_is_kept_is_the_new_weight_rounded() -> None:
    module, (weight, x) = recorded(update, *given()), given()
    (cast,) = cached(module)
    kept = cast(weight)
    module(weight, x, kept)
    assert torch.equal(kept, weight.to(BF16))


def test_equal_casts_share_one_copy() -> None:
    def twice(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        results = x @ weight.to(BF16).t(), x @ weight.to(BF16).t()
        weight.copy_(weight * 0.5)
        return results

    module = recorded(twice, *given())
    assert cached(module) == [CachedCast(0, BF16)]
    assert not casts(module)


def reads_only(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x @ weight.to(BF16).t(),)


def no_library_reads_it(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    y = x.sum() * weight.to(BF16)
    weight.copy_(weight * 0.5)
    return (y,)


def writes_first(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    weight.copy_(weight * 0.5)
    return (x @ weight.to(BF16).t(),)


def writes_twice(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    y = x @ weight.to(BF16).t()
    weight.copy_(weight * 0.5)
    weight.t().mul_(2.0)
    return (y,)


def writes_a_part(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    top, rest = weight.split([2, 3])
    y = x @ weight.to(BF16).t()
    weight.copy_(weight * 0.5)
    top.mul_(2.0)
    return y, rest.clone()


def writes_in_a_list(weight: Tensor, x: Tensor) -> tuple[Tensor]:
    y = x @ weight.to(BF16).t()
    weight.copy_(weight * 0.5)
    torch._foreach_mul_([weight], 2.0)
    return (y,)


def returns_it(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    low = weight.to(BF16)
    y = x @ low.t()
    weight.copy_(weight * 0.5)
    return y, low


def returns_views(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    low = weight.to(BF16)
    y = x @ low.t()
    weight.copy_(weight * 0.5)
    return y, *low.t().split([2, 6])


@pytest.mark.parametrize(
    "function",
    [
        *(reads_only, no_library_reads_it, writes_first, writes_twice, writes_in_a_list),
        *(writes_a_part, returns_it, returns_views),
    ],
)
def test_nothing_is_kept_of_others(function: Callable[..., Any]) -> None:
    module = recorded(function, *given())
    before = str(module.graph)
    assert cached(module) == []
    assert str(module.graph) == before


def test_a_weight_that_others_write_is_noticed() -> None:
    made = compile_function(update, given(), cache=True)
    (weight, x), other = given(), torch.randn(5, 8)
    made(weight, x)
    weight.copy_(other)
    assert torch.equal(made(weight, x)[0], update(other.clone(), x)[0])


def test_another_tensor_is_noticed() -> None:
    made = compile_function(update, given(), cache=True)
    weight, x = given()
    made(weight, x)
    for other in (torch.randn(5, 8), torch.randn(5, 8)):
        wanted = update(other.clone(), x)[0]
        assert torch.equal(made(other, x)[0], wanted)


def test_weights_that_torch_does_not_count_are_read_each_time() -> None:
    made = compile_function(update, given(), cache=True)
    with torch.inference_mode():
        weight, x = given()
        made(weight, x)
        weight.fill_(0.5)
        assert torch.equal(made(weight, x)[0], update(torch.full((5, 8), 0.5), x)[0])


def test_a_refresh_writes_to_the_same_memory_and_only_what_is_stale() -> None:
    made = compile_function(update, given(), cache=True)
    weight, x = given()
    made(weight, x)
    (kept,) = made._cache.copies
    place, version = kept.data_ptr(), kept._version
    made.refresh((weight, x))
    assert kept._version == version
    weight.fill_(0.25)
    made.refresh((weight, x))
    assert kept.data_ptr() == place
    assert torch.equal(kept, weight.to(BF16))


def perceptron() -> pu.Graph:
    return pu.zoo.mlp(8, image=(3, 8, 8), hidden=(12,))


def filters() -> pu.Graph:
    net = pu.Net()
    data, label = net.data((8, 3, 8, 8))
    x = pu.kinds.conv(data, 16, kernel=3, name="conv1")
    net.output(pu.kinds.softmax_loss(pu.kinds.inner_product(x, 10, name="fc"), label, name="loss"))
    return net.graph()


def images() -> pu.data.DataSet:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8).numpy()
    labels = torch.randint(0, 10, (64,)).numpy()
    source = pu.data.ArraySource(pixels, labels, names=("image", "label"), classes=10)
    return pu.data.DataSet("images", source)


def trained(
    graph: pu.Graph, monkeypatch: pytest.MonkeyPatch, *, cache: bool
) -> tuple[list[float], dict[str, Tensor], list[Tensor]]:
    """The losses and states of five steps, and what was kept."""
    made: list[CompiledFunction] = []

    def compiling(*arguments: Any) -> CompiledFunction:
        made.append(compile_function(*arguments, cache=cache))
        return made[-1]

    monkeypatch.setattr("purine.compile.fused.compile_function", compiling)
    with pu.Run(graph, data=images(), seed=3, compiled=True) as run:
        losses, states = [result.loss for result in run.steps(5)], run.states()
    (function,) = made
    return losses, states, function._cache.copies


@pytest.mark.parametrize(("net", "precision"), [(perceptron, "fp16"), (filters, "bf16")])
def test_training_has_the_same_bits(
    net: Callable[[], pu.Graph], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 2.0**19 if precision == "fp16" else None  # so large that some updates do not count
    low = pu.mixed(pu.data.prepare(net(), images().train), precision, loss_scale=scale)
    step = pu.solvers.sgd(pu.backward(low), lr=0.05, momentum=0.9)
    fused = pu.fuse(pu.layout(step, "channels-last"))
    losses, states, none = trained(fused, monkeypatch, cache=False)
    found, values, kept = trained(fused, monkeypatch, cache=True)
    assert not none
    assert found == losses
    if scale is not None:
        assert values["loss_scale"] < scale
        assert values["loss_scale/good"] > 0
    for name, value in states.items():
        assert torch.equal(values[name], value), name
    weights = [value for name, value in values.items() if name.endswith("/weight")]
    copies = {(copy.shape, copy.stride()) for copy in kept}
    assert copies >= {(value.shape, value.stride()) for value in weights if value.dim() > 1}
