"""Scalars of a step are computed once, by a function of their own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile.rewrites._recorded import Recorded
from purine.compile.rewrites.scalars import hoist_scalars


def decayed(weight: Tensor, bias: Tensor, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    one = weight - rate * (1.0 - 0.9 ** (count + 1).double()) * weight
    two = bias - rate * (1.0 - 0.9 ** (count + 1).double()) * bias
    return one, two.sum() * rate


def arguments() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(5), torch.tensor(0.1).double(), torch.tensor(7)


def test_scalars_are_taken_out_and_computed_once() -> None:
    given = arguments()
    wanted = decayed(*given)
    recorded = make_fx(decayed, tracing_mode="fake")(*given)
    step = Recorded(recorded)
    assert hoist_scalars(step) > 0
    recorded.recompile()
    first = step.scalars
    assert first is not None
    powers = [node for node in first.graph.nodes if "pow" in str(node.target)]
    assert len(powers) == 1
    assert not any("pow" in str(node.target) for node in recorded.graph.nodes)
    scalars = first(*given)
    assert all(value.dim() == 0 for value in scalars)
    torch.testing.assert_close(recorded(*given, *scalars), wanted)


def test_a_function_without_scalars_is_left_alone() -> None:
    given = torch.randn(3), torch.randn(3)
    recorded = make_fx(lambda x, y: (x + y,), tracing_mode="fake")(*given)
    step = Recorded(recorded)
    assert hoist_scalars(step) == 0
    assert step.scalars is None
    torch.testing.assert_close(recorded(*given), (given[0] + given[1],))
