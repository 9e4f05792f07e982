from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from purine.analysis.tracing import Call, Spec, count_flops, has_flops, infer, trace_joint

X, W = Spec((2, 3), "float32"), Spec((4, 3), "float32")


def test_shapes_and_dtypes_come_from_running_the_function() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w), x.argmax(1)

    assert infer(function, [X, W]).specs == (Spec((2, 4), "float32"), Spec((2,), "int64"))


def test_inference_costs_no_memory() -> None:
    huge = Spec((1 << 20, 1 << 20), "float32")
    assert infer(torch.relu, [huge]).specs == (huge,)


def test_what_has_no_flops_is_known_without_a_call() -> None:
    aten = torch.ops.aten
    assert not any(map(has_flops, (aten.relu.default, aten.cat.default, aten.t.default)))
    assert all(map(has_flops, (aten.mm.default, aten.matmul.default, F.relu)))


def test_flops_are_those_of_the_products() -> None:
    assert count_flops(F.linear, [X, W]) == 2 * 2 * 3 * 4
    assert count_flops(torch.relu, [X]) == 0


def test_flops_are_those_of_the_device_and_none_are_counted_once() -> None:
    seen = []

    def products(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return x @ x @ x if x.device.type == "cpu" else x @ x

    assert count_flops(products, [Spec((4, 4), "float32")]) == 2 * 2 * 4**3
    assert seen == ["meta", "cpu"]

    def none(x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return x + x

    assert count_flops(none, [X]) == 0
    assert seen == ["meta", "cpu", "meta"]


def test_a_joint_is_split_at_the_cotangent() -> None:
    joint = trace_joint(torch.tanh, [X], [True])
    (forward,), (backward,) = joint.forward, joint.backward
    assert forward == Call("aten.tanh", (0,), {}, ((2, X),))
    assert backward == Call("aten.tanh_backward", (1, 2), {}, ((3, X),))
    assert (joint.outputs, joint.gradients, joint.pulled) == ((2,), (3,), (True,))


def test_what_the_backward_needs_is_saved_by_the_forward() -> None:
    image = Spec((1, 1, 4, 4), "float32")
    joint = trace_joint(lambda x: F.max_pool2d(x, 2), [image], [True])
    (pool,) = joint.forward
    assert pool.kind == "aten.max_pool2d_with_indices"
    indices = pool.results[1]
    assert indices is not None
    assert indices[0] in joint.backward[0].inputs


def test_only_wanted_gradients_are_recorded() -> None:
    joint = trace_joint(F.linear, [X, W], [False, True])
    assert joint.gradients[0] is None
    assert joint.gradients[1] is not None
    assert [call.kind for call in joint.backward].count("aten.mm") == 1


def test_a_convolution_gives_its_two_gradients_as_two_calls() -> None:
    image, weight = Spec((1, 2, 5, 5), "float32"), Spec((3, 2, 3, 3), "float32")
    bias = Spec((3,), "float32")
    joint = trace_joint(F.conv2d, [image, weight, bias], [True, True, True])
    found = [call for call in joint.backward if call.kind == "aten.convolution_backward"]
    assert [call.attributes["output_mask"] for call in found] == [
        (False, True, True),
        (True, False, False),
    ]


def test_a_view_is_recorded_as_a_reshape() -> None:
    joint = trace_joint(lambda x: x.view(6), [X], [True])
    assert [call.kind for call in (*joint.forward, *joint.backward)] == ["aten.reshape"] * 2


def test_what_the_function_creates_is_recorded() -> None:
    def function(x: Tensor) -> Tensor:
        return x * torch.full((3,), 2.0)

    joint = trace_joint(function, [X], [True])
    assert [call.kind for call in joint.forward] == ["aten.full", "aten.mul.Tensor"]


def test_no_recorded_call_writes_over_a_value() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1).relu_()
        return y

    joint = trace_joint(function, [X], [True])
    kinds = [call.kind for call in joint.forward]
    assert kinds == ["aten.mul.Tensor", "aten.add.Tensor", "aten.relu"]


def test_an_input_that_is_returned_is_its_own_number() -> None:
    joint = trace_joint(lambda x, w: (x, w * 2), [X, W], [True, True])
    assert joint.outputs[0] == 0


def test_the_log_of_torch_is_silent_only_while_a_function_is_traced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RuntimeError):
        infer(torch.mm, [X, W])
    assert not caplog.records
    logging.getLogger("torch._subclasses.fake_tensor").error("told")
    assert [record.message for record in caplog.records] == ["told"]
