"""Large products of a host go into memory that is used again when nothing holds it."""

from __future__ import annotations

import torch

import purine as pu
from purine.lowering import Options, lower
from purine.lowering.products import _Product
from purine.lowering.shares import PRODUCT


def test_memory_is_used_again_when_no_view_of_it_is_left() -> None:
    product, one = _Product(), torch.arange(6.0).view(2, 3)
    first = product.compute(one, one.t())
    row, address = first[1:], first.data_ptr()
    del first
    second = product.compute(one, one.t())
    assert second.data_ptr() != address
    assert row.equal(second[1:])
    del row
    assert product.compute(one, one.t()).data_ptr() == address
    assert len(product.kept) == 2


def test_only_large_products_between_hosts_are_kept() -> None:
    net = pu.zoo.mlp(batch=4, hidden=(4096, 1024))
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)

    def kept(devices: str, host: str | None) -> int:
        graph = lower(pu.parallel.replicate(step, devices), Options(host=host)).graph
        return sum(op.kind == PRODUCT for op in graph.ops.values())

    assert kept("host0-1:cpu:0", "host1") == 2
    assert kept("cpu:0", None) == 0
