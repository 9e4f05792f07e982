"""The list of rewrites: order, conditions, log, and the switch that turns rewrites off."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import purine as pu
from purine.compile.fused import compiled
from purine.compile.rewrites import REWRITES, WITHOUT, apply_rewrites, rewrites_table, switched_off
from purine.errors import ConfigError

aten = torch.ops.aten
NAMES = [
    "hoist-scalars",
    "align-rows",
    "join-attention-gradients",
    "fuse-bias-sums",
    "max-pools",
    "fuse-norm-gradients",
    "batch-totals",
    "shorten-gelu",
    "relu-masks",
    "image-convolutions",
    "row-gathers",
    "dead-code",
    "cache-weights",
]


def step(weight: Tensor, x: Tensor, rate: Tensor) -> tuple[Tensor]:
    """A step with a GELU, an update of a weight, and a scalar."""
    y = torch.nn.functional.gelu(x @ weight.bfloat16().t(), approximate="tanh")
    weight.copy_(weight * (1.0 - rate * 0.5))
    return (y,)


def recorded() -> GraphModule:
    arguments = torch.randn(5, 8), torch.randn(4, 8).bfloat16(), torch.tensor(0.1)
    return make_fx(step, tracing_mode="fake")(*arguments)


def targets(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes]


def test_the_order_and_the_table_of_rewrites() -> None:
    assert [rewrite.name for rewrite in REWRITES] == NAMES
    assert [row[0] for row in rewrites_table()] == NAMES
    assert all(condition and reason.endswith(".") for _, condition, reason in rewrites_table())


def test_on_a_cpu_only_scalars_are_hoisted() -> None:
    module = recorded()
    result = apply_rewrites(module, gpu=False)
    assert result.scalars is not None
    assert not result.casts
    assert "aten.gelu.default" in targets(module)


def test_rewrites_that_change_a_step_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="purine.compile"):
        result = apply_rewrites(recorded(), gpu=True)
    told = [record.getMessage() for record in caplog.records]
    assert "rewrite hoist-scalars applied in 2 places" in told
    assert "rewrite shorten-gelu applied in 1 places" in told
    assert "rewrite cache-weights applied in 1 places" in told
    assert not any("max-pools" in line for line in told)
    assert len(result.casts) == 1


def test_one_rewrite_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(WITHOUT, "shorten-gelu, hoist-scalars")
    module = recorded()
    with caplog.at_level(logging.INFO, logger="purine.compile"):
        result = apply_rewrites(module, gpu=True)
    assert "aten.gelu.default" in targets(module)
    assert result.scalars is None
    assert len(result.casts) == 1
    assert f"rewrite shorten-gelu is switched off by {WITHOUT}" in caplog.text


def test_all_rewrites_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, "all")
    module = recorded()
    before = str(module.graph)
    result = apply_rewrites(module, gpu=True)
    assert str(module.graph) == before
    assert (result.scalars, result.casts) == (None, [])


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("shorten-gelus", "did you mean 'shorten-gelu'?"), ("max-pools,x", "one of hoist-scalars, ")],
)
def test_an_unknown_name_is_refused_before_anything_is_compiled(
    given: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITHOUT, given)
    with pytest.raises(ConfigError) as caught:
        switched_off()
    assert str(caught.value.remedy).startswith(remedy)
    graph = pu.fuse(pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4)), lr=0.1))
    with pytest.raises(ConfigError):
        compiled(next(op for op in graph.ops.values() if op.kind == "Fused"))
