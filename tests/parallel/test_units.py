"""A step in units trains as the step itself."""

from __future__ import annotations

import pytest
import torch

import purine as pu
from purine.graph import Graph
from purine.parallel.units import in_units
from tests.parallel.nets import Trained, agree, float64, lenet, same_bits, trained


def step(solver: str, batch: int = 12) -> Graph:
    net = float64(pu.zoo.lenet(batch=batch))
    return getattr(pu.solvers, solver)(pu.backward(net), lr=0.01)  # type: ignore[no-any-return]


def whole(cut: Graph, found: Trained) -> Trained:
    return Trained(found.losses, pu.parallel.gather_values(cut, found.states))


@pytest.mark.parametrize("solver", ["sgd", "adam", "rmsprop"])
def test_units_change_no_bit(solver: str) -> None:
    base = step(solver)
    cut, cuts = in_units(base, 1 << 14)
    assert {"conv2/weight", "fc1/weight"} <= cuts.keys()
    assert len(cuts["fc1/weight"].units) > 20
    same_bits(whole(pu.check(cut), trained(cut)), trained(base))


def test_clipped_gradients_are_cut_before_their_norm() -> None:
    base = lenet(12)
    cut, cuts = in_units(base, 1 << 14)
    assert "fc1/weight" in cuts
    agree(whole(cut, trained(pu.check(cut))), trained(base))


def test_scaled_losses_are_checked_unit_by_unit() -> None:
    net = pu.mixed(pu.zoo.lenet(batch=12), "fp16")
    base = pu.solvers.sgd(pu.backward(net), lr=0.01)
    cut, cuts = in_units(base, 1 << 14)
    assert "fc1/weight" in cuts
    flags = next(op for op in cut.ops.values() if op.kind == "AllTrue").inputs
    assert len(flags) > len(base.states) / 4
    pu.check(cut)


def test_an_update_that_depends_on_the_whole_parameter_is_not_cut() -> None:
    base = pu.solvers.lars(pu.backward(pu.zoo.lenet(batch=4)), lr=0.01)
    cut, cuts = in_units(base, 1 << 14)
    assert not cuts
    assert cut is base


def test_units_of_a_sharded_parameter_are_shards_of_the_whole() -> None:
    net = pu.parallel.shard(float64(pu.zoo.lenet(batch=4)), "cpu:0-1")
    base = pu.check(pu.solvers.sgd(pu.backward(net), lr=0.01))
    cut, cuts = in_units(base, 1 << 14)
    assert cuts
    values = pu.parallel.gather_values(base, trained(base, steps=1).states)
    pieces = pu.parallel.shard_values(cut, values)
    joined = pu.parallel.gather_values(cut, pieces)
    assert joined.keys() == values.keys()
    assert all(torch.equal(joined[name], value) for name, value in values.items())
