from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import purine as pu
from purine.analysis.infer import check
from purine.autodiff import backward, gradient_of, reverse
from purine.errors import GraphError
from purine.graph import Builder, Filler, Graph, verify
from purine.kinds import (
    Net,
    Var,
    accuracy,
    batch_norm,
    conv,
    dropout,
    eltwise,
    euclidean_loss,
    inner_product,
    pool,
    relu,
    sigmoid,
    softmax_loss,
    split,
    tanh,
)
from purine.registry.kind import REGISTERED, kind
from purine.registry.lookup import kinds
from tests.reference import run


def total(x: Var, name: str = "loss") -> str:
    return x.net.apply("aten.sum", [x], name=name).name


def of_backward(graph: Graph) -> list[str]:
    return [name for name in graph.ops if name.startswith("grad/")]


@pytest.fixture
def net() -> Net:
    return Net(dtype="float64")


@pytest.fixture
def x(net: Net) -> Var:
    return net.input("x", (2, 3))


VALUE = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.1, -0.2]], dtype=torch.float64)


def test_gradients_are_called_after_their_blobs(net: Net, x: Var) -> None:
    label = net.input("label", (2,), "int64")
    softmax_loss(inner_product(relu(inner_product(x, 4, name="fc1")), 5, name="fc2"), label)
    graph = check(backward(net.graph()))
    for name in net.graph().states:
        assert graph.blobs[gradient_of(name)].shape == graph.blobs[name].shape
    assert gradient_of("x") not in graph.blobs
    assert graph.outputs == net.graph().outputs


def test_a_small_step_along_the_gradient_changes_the_loss_as_predicted(net: Net) -> None:
    image, label = net.input("image", (4, 1, 8, 8)), net.input("label", (4,), "int64")
    y = pool(relu(batch_norm(conv(image, 3, kernel=3, name="conv1"), name="bn")), kernel=2)
    softmax_loss(inner_product(y, 5, name="fc"), label, name="loss")
    graph = backward(net.graph())
    feeds = {
        "image": torch.randn(4, 1, 8, 8, dtype=torch.float64),
        "label": torch.tensor([0, 4, 2, 2]),
    }
    before = run(graph, feeds)
    trained = [name for name, state in graph.states.items() if state.trainable]
    gradients = {name: before[gradient_of(name)] for name in trained}
    moved = {name: before[name] - 1e-6 * gradients[name] for name in trained}
    after = run(graph, feeds, moved)
    expected = -1e-6 * sum(float((g * g).sum()) for g in gradients.values())
    assert float(after["loss"] - before["loss"]) == pytest.approx(expected, rel=1e-3)


def test_the_values_of_the_forward_are_unchanged(net: Net, x: Var) -> None:
    y = inner_product(dropout(x, name="drop"), 4, name="fc")
    net.output(y)
    total(tanh(y))
    plain = run(net.graph(), {"x": VALUE})
    joint = run(backward(net.graph(), losses={"loss": 1.0}), {"x": VALUE})
    assert all(torch.equal(plain[name], joint[name]) for name in ("drop", "fc", "loss"))


def test_contributions_are_added_by_explicit_ops_in_a_fixed_order(net: Net, x: Var) -> None:
    parts = [relu(x, name="a"), tanh(x, name="b"), sigmoid(x, name="c")]
    loss = total(eltwise(parts))
    graph = backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    first, second = [op for op in graph.ops.values() if op.kind == "aten.add.Tensor"][-2:]
    assert first.inputs == ("grad/c/sigmoid_backward", "grad/b/tanh_backward")
    assert second.inputs == (*first.outputs, "grad/a/threshold_backward")
    assert second.outputs == ("grad/x",)
    assert graph == backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    expected = (VALUE > 0) + (1 - torch.tanh(VALUE) ** 2)
    expected += torch.sigmoid(VALUE) * (1 - torch.sigmoid(VALUE))
    torch.testing.assert_close(run(graph, {"x": VALUE})["grad/x"], expected)


def test_a_blob_that_one_op_reads_twice(net: Net, x: Var) -> None:
    loss = total(eltwise([x, x], operation="product"))
    graph = backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    torch.testing.assert_close(run(graph, {"x": VALUE})["grad/x"], 2 * VALUE)


def test_a_loss_that_is_itself_read_on(net: Net, x: Var) -> None:
    first = total(x, "first")
    second = net.apply("aten.mul.Scalar", [Var(net, first)], {"other": 3.0}, name="second").name
    graph = backward(net.graph(), losses={first: 1.0, second: 1.0}, wrt=["x"])
    torch.testing.assert_close(run(graph, {"x": VALUE})["grad/x"], torch.full_like(VALUE, 4.0))


def test_no_gradient_passes_a_stop(net: Net, x: Var) -> None:
    stopped = net.apply("StopGradient", [tanh(x)], name="stop")
    loss = total(eltwise([stopped, x], operation="product"))
    graph = backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    assert graph.ops["stop"].kind == "StopGradient"
    assert not any("tanh" in name for name in of_backward(graph))
    torch.testing.assert_close(run(graph, {"x": VALUE})["grad/x"], torch.tanh(VALUE))


@pytest.mark.parametrize("change", [{"trainable": False}, {"lr_mult": 0.0}])
def test_frozen_parameters_cost_nothing(net: Net, x: Var, change: dict[str, float]) -> None:
    y = relu(inner_product(x, 4, name="fc1"), name="relu1")
    total(inner_product(y, 5, name="fc2"))
    builder = Builder(net.graph())
    for name in ("fc1/weight", "fc1/bias"):
        builder.states[name] = replace(builder.states[name], **change)  # type: ignore[arg-type]
    graph = backward(builder.graph(), losses={"loss": 1.0})
    assert graph.ops["fc1"].kind == "InnerProduct"
    assert graph.ops["relu1"].kind == "Relu"
    assert not any(name.startswith(("grad/fc1", "grad/relu1")) for name in graph.blobs)
    assert "grad/fc2/weight" in graph.blobs


def test_ops_that_no_loss_depends_on_stay_as_they_are(net: Net, x: Var) -> None:
    label = net.input("label", (2,), "int64")
    y = inner_product(x, 4, name="fc")
    softmax_loss(y, label)
    accuracy(y, label, name="accuracy")
    graph = backward(net.graph())
    assert graph.ops["accuracy"] == net.graph().ops["accuracy"]


def test_losses_are_added_with_their_weights(net: Net, x: Var) -> None:
    label, target = net.input("label", (2,), "int64"), net.input("target", (2, 3))
    softmax_loss(x, label, name="main", loss_weight=0.3)
    euclidean_loss(x, target, name="other", loss_weight=2.0)
    feeds = {"x": VALUE, "label": torch.tensor([0, 2]), "target": torch.zeros_like(VALUE)}

    def gradient(losses: dict[str, float] | None) -> torch.Tensor:
        return run(backward(net.graph(), losses=losses, wrt=["x"]), feeds)["grad/x"]

    expected = 0.3 * gradient({"main": 1.0}) + 2 * gradient({"other": 1.0})
    torch.testing.assert_close(gradient(None), expected)


def test_a_result_without_a_cotangent_counts_as_zero(net: Net, x: Var) -> None:
    parts = split(x, 3, name="cut")
    loss = total(parts[1])
    graph = backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    expected = torch.tensor([[0.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    assert torch.equal(run(graph, {"x": VALUE})["grad/x"], expected)


def test_an_op_that_returns_its_input_unchanged(net: Net, x: Var) -> None:
    same = net.apply("Flatten", [x], name="same")
    loss = total(eltwise([same, same], operation="product"))
    graph = check(backward(net.graph(), losses={loss: 1.0}, wrt=["x"]))
    values = run(graph, {"x": VALUE})
    assert torch.equal(values["same"], VALUE)
    torch.testing.assert_close(values["grad/x"], 2 * VALUE)


def test_a_gradient_that_is_another_blob_s_gradient(net: Net, x: Var) -> None:
    y = net.input("y", (2, 3))
    loss = total(eltwise([x, y], name="sum"))
    graph = check(backward(net.graph(), losses={loss: 1.0}, wrt=["x", "y", "sum"]))
    values = run(graph, {"x": VALUE, "y": VALUE})
    for name in ("x", "y", "sum"):
        assert torch.equal(values[gradient_of(name)], torch.ones_like(VALUE))


def test_ops_of_the_backward_are_where_their_op_is(net: Net, x: Var) -> None:
    total(tanh(inner_product(x, 4, name="fc")), "loss")
    builder = Builder(net.graph())
    for name, op in builder.ops.items():
        builder.ops[name] = replace(op, location=replace(op.location, device="cpu:1"))
    for name, blob in builder.blobs.items():
        builder.blobs[name] = replace(blob, location=replace(blob.location, device="cpu:1"))
    graph = verify(backward(builder.graph(), losses={"loss": 1.0}))
    assert {op.location.device for op in graph.ops.values()} == {"cpu:1"}


def test_a_net_without_a_loss(net: Net, x: Var) -> None:
    relu(x)
    with pytest.raises(GraphError, match="the net has no loss") as caught:
        backward(net.graph())
    assert caught.value.found == "kinds Relu"


@pytest.mark.parametrize(
    "options", [{"losses": {"los": 1.0}}, {"losses": {"loss": 1.0}, "wrt": ["los"]}]
)
def test_a_blob_that_does_not_exist(net: Net, x: Var, options: dict[str, object]) -> None:
    total(x)
    with pytest.raises(GraphError, match="there is no blob 'los'"):
        backward(net.graph(), **options)  # type: ignore[arg-type]


def test_a_kind_that_cannot_be_differentiated(
    net: Net, x: Var, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED, "Broken", kinds()["Relu"])  # taken out again at the end
    monkeypatch.delitem(REGISTERED, "Broken")

    def Broken(x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            raise ValueError("no gradient here")
        return x * 2

    kind(Broken)
    loss = total(net.apply("Broken", [x], name="mine"))
    with pytest.raises(GraphError, match=r"'mine' .* cannot be differentiated") as caught:
        backward(net.graph(), losses={loss: 1.0}, wrt=["x"])
    assert caught.value.op == "mine"
    assert caught.value.found == "no gradient here"


def test_results_that_nobody_asked_for_serve_the_gradient() -> None:
    """The mean and deviation of a layer norm are `~`, and its backward needs them."""
    net = Net(dtype="float64")
    x, w, b = (net.input(name, shape) for name, shape in (("x", (3, 4)), ("w", (4,)), ("b", (4,))))
    (y,) = net.apply_many(
        "aten.native_layer_norm",
        [x, w, b],
        {"normalized_shape": (4,), "eps": 1e-5},
        name="norm",
        labels=("", None, None),
    )
    net.apply("aten.sum", [net.apply("aten.mul.Tensor", [y, y], name="square")], name="total")
    graph = backward(net.graph(), losses={"total": 1.0}, wrt=["x"])
    assert "grad/x" in graph.blobs


def test_a_net_without_trainable_states_is_refused() -> None:
    net = Net()
    softmax_loss(net.input("x", (2, 3)), net.input("label", (2,), "int64"), name="loss")
    with pytest.raises(GraphError, match="nothing to train"):
        backward(net.graph())


def test_results_that_nobody_takes_still_serve_the_gradient(net: Net, x: Var) -> None:
    w = net.parameter("w", (2, 3), Filler("constant", {"value": 1.0}))
    y = eltwise([x, w], operation="product")
    (best,) = net.apply_many("aten.max.dim", [y], {"dim": 1}, labels=("values", None))
    (first,) = net.apply_many(
        "aten.split.Tensor", [y], {"split_size": 1, "dim": 1}, labels=("first", None, None)
    )
    loss = net.apply("aten.add.Tensor", [Var(net, total(best, "a")), Var(net, total(first, "b"))])
    graph = check(backward(net.graph(), losses={loss.name: 1.0}))
    found = run(graph, {"x": VALUE})[gradient_of("w")]
    w_value = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    product = VALUE * w_value
    (product.max(1)[0].sum() + product[:, :1].sum()).backward()
    torch.testing.assert_close(found, w_value.grad)


def test_gradients_that_torch_writes_through_views_are_whole(net: Net, x: Var) -> None:
    w = net.parameter("w", (2, 3), Filler("constant", {"value": 1.0}))
    y = net.apply("aten.abs", [net.apply("aten.fft_rfft", [eltwise([x, w], operation="product")])])
    loss = total(y)
    graph = check(backward(net.graph(), losses={loss: 1.0}))
    found = run(graph, {"x": VALUE})[gradient_of("w")]
    w_value = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    torch.fft.rfft(VALUE * w_value).abs().sum().backward()
    torch.testing.assert_close(found, w_value.grad)


def test_ops_that_say_the_same_are_traced_once(monkeypatch: pytest.MonkeyPatch, net: Net) -> None:
    traced: list[object] = []
    trace = reverse.trace_joint

    def counting(*arguments: Any) -> Any:
        traced.append(arguments)
        return trace(*arguments)

    monkeypatch.setattr(reverse, "trace_joint", counting)
    monkeypatch.setattr(reverse, "_JOINTS", {})
    x = net.input("x", (2, 7))
    for name in ("one", "two", "three"):
        x = inner_product(x, 7, name=name)
    loss = total(x)
    backward(net.graph(), losses={loss: 1.0})
    assert len(traced) == 3  # the first of the layers, whose input has no gradient; the rest; sum


def test_several_threads_differentiate_at_once() -> None:
    """What torch changes in the whole process while it records belongs to one thread at a time."""
    nets = [pu.zoo.lenet(batch) for batch in range(1, 7)]
    ready = threading.Barrier(len(nets))

    def differentiate(net: Graph) -> Graph:
        ready.wait()
        return backward(net)

    with ThreadPoolExecutor(len(nets)) as pool:
        together = list(pool.map(differentiate, nets))
    assert together == [backward(net) for net in nets]
