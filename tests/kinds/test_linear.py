from __future__ import annotations

import pytest
import torch

from purine.errors import KindError
from purine.graph import Filler
from purine.kinds import Net, bias, embedding, inner_product, scale
from purine.kinds.linear import Bias, InnerProduct, Scale
from tests.reference import run


def test_an_inner_product_flattens_from_its_axis() -> None:
    x, weight = torch.randn(2, 3, 4), torch.randn(5, 12)
    torch.testing.assert_close(InnerProduct(x, weight), x.reshape(2, 12) @ weight.T)
    weight = torch.randn(5, 4)
    for axis in (2, -1):
        torch.testing.assert_close(InnerProduct(x, weight, axis=axis), x @ weight.T)


def test_an_inner_product_layer_owns_weight_and_bias() -> None:
    net = Net()
    filler = Filler("constant", {"value": 2.0})
    y = inner_product(net.input("x", (2, 3, 2)), 4, name="fc1", bias_filler=filler)
    graph = net.graph()
    assert y.shape == (2, 4)
    assert graph.blobs["fc1/weight"].shape == (4, 6)
    assert graph.states["fc1/bias"].filler == filler
    assert all(state.trainable for state in graph.states.values())
    values = run(graph, {"x": torch.zeros(2, 3, 2)})
    assert torch.equal(values["fc1"], torch.full((2, 4), 2.0))


def test_layers_of_one_name_get_names_of_their_own() -> None:
    net = Net()
    x = net.input("x", (2, 3))
    assert [inner_product(x, 4).name for _ in range(2)] == ["fc", "fc.1"]
    assert "fc.1/weight" in net.graph().states


def test_a_layer_without_bias_has_none() -> None:
    net = Net()
    inner_product(net.input("x", (2, 3)), 4, bias=False, name="fc")
    assert set(net.graph().states) == {"fc/weight"}


def test_a_weight_of_the_wrong_width_is_refused_with_names() -> None:
    net = Net()
    x, weight = net.input("x", (2, 3)), net.input("weight", (5, 4))
    with pytest.raises(KindError, match="op 'fc'") as caught:
        net.apply("InnerProduct", [x, weight], name="fc")
    assert "weight takes 4 values, x has 3" in str(caught.value)
    assert "weight: float32 [5, 4]" in str(caught.value)


def test_an_embedding_looks_rows_up() -> None:
    net = Net()
    y = embedding(net.input("word", (2, 3), "int64"), 10, 4, name="table")
    assert y.shape == (2, 3, 4)
    word = torch.tensor([[0, 9, 1], [2, 2, 3]])
    values = run(net.graph(), {"word": word})
    assert torch.equal(values["table"], values["table/weight"][word])


def test_scale_and_bias_stand_for_dimensions_from_their_axis() -> None:
    x, factor, shift = torch.randn(2, 3, 4, 5), torch.randn(3, 4), torch.randn(3, 4)
    expected = x * factor[None, :, :, None] + shift[None, :, :, None]
    torch.testing.assert_close(Scale(x, factor, shift), expected)
    torch.testing.assert_close(Bias(x, factor[0], axis=2), x + factor[0][:, None])
    torch.testing.assert_close(Scale(x, torch.tensor(2.0)), x * 2)


def test_scale_does_not_broadcast_by_chance() -> None:
    with pytest.raises(ValueError, match="does not stand for"):
        Scale(torch.randn(2, 3, 4), torch.randn(4))
    with pytest.raises(ValueError, match="axis is 3"):
        Bias(torch.randn(2, 3, 4), torch.randn(4), axis=3)


def test_scale_and_bias_layers_start_as_the_identity() -> None:
    net = Net()
    x = net.input("x", (2, 3, 4))
    y = bias(scale(x, dims=2, bias=True, name="scale"), name="bias")
    assert net.graph().blobs["scale/weight"].shape == (3, 4)
    value = torch.randn(2, 3, 4)
    assert torch.equal(run(net.graph(), {"x": value})[y.name], value)


def test_scale_by_another_blob_has_no_state() -> None:
    net = Net()
    x, gate = net.input("x", (2, 3, 4)), net.input("gate", (2, 3))
    y = scale(x, gate, axis=0)
    assert not net.graph().states
    feeds = {"x": torch.ones(2, 3, 4), "gate": torch.arange(6.0).reshape(2, 3)}
    assert torch.equal(run(net.graph(), feeds)[y.name][:, :, 0], feeds["gate"])
