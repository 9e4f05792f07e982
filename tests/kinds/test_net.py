from __future__ import annotations

from dataclasses import replace

import pytest

import purine.kinds
from purine.analysis.infer import check
from purine.errors import ConfigError, KindError
from purine.graph import Filler
from purine.kinds import Net, conv, inner_product, pool, relu, softmax_loss


def lenet() -> Net:
    net = Net()
    image, label = net.data((64, 1, 28, 28))
    x = pool(relu(conv(image, 20, kernel=5, name="conv1")), kernel=2, stride=2, name="pool1")
    softmax_loss(inner_product(x, 10, name="fc"), label, name="loss")
    return net


def test_a_net_reads_from_top_to_bottom_and_passes_the_checks() -> None:
    graph = lenet().graph()
    assert check(graph) == graph
    assert [op.kind for op in graph.ops.values() if not op.kind.startswith("aten")] == [
        "Data",
        "Conv",
        "Relu",
        "Pool",
        "InnerProduct",
        "SoftmaxLoss",
    ]


def test_a_net_reports_what_nothing_reads_unless_told() -> None:
    net = lenet()
    assert net.graph().outputs == ("loss",)
    net = Net()
    x = net.input("x", (2, 3))
    net.output(relu(x, name="a"))
    relu(x, name="b")
    assert net.graph().outputs == ("a",)


def test_a_mistake_is_reported_by_the_layer_that_makes_it() -> None:
    net = Net()
    x = net.input("x", (2, 3, 4, 4))
    with pytest.raises(ConfigError, match="pool 'pool1': kernel is 'big'\n  expected: a whole"):
        pool(x, kernel="big", name="pool1")  # type: ignore[arg-type]
    with pytest.raises(KindError, match="op 'pool1'"):
        pool(x, kernel=9, name="pool1")
    assert "pool1" not in net.builder.blobs


def test_dropped_results_have_no_blob() -> None:
    net = Net()
    x = net.input("x", (2, 6))
    (last,) = net.apply_many("Split", [x], {"parts": 2}, name="cut", labels=[None, "last"])
    assert last.name == "cut/last"
    assert net.graph().ops["cut"].outputs == ("", "cut/last")


def test_what_is_carried_on_keeps_its_multipliers() -> None:
    net = Net()
    state = net.parameter("w", (2,), Filler(), lr_mult=0.5, decay_mult=0.0)
    before = net.builder.states["w"]
    net.carry(state, relu(state, name="v"))
    assert net.graph().states["w"] == replace(before, next="v")
    assert (before.lr_mult, before.decay_mult) == (0.5, 0.0)


def test_public_names_are_sorted_and_exist() -> None:
    names = purine.kinds.__all__
    assert sorted(names, key=lambda name: (name.islower(), name)) == names
    assert all(hasattr(purine.kinds, name) for name in names)
