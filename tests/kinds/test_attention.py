from __future__ import annotations

import math

import pytest
import torch

from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import KindError
from purine.kinds import Net, attention, softmax_loss
from purine.kinds.attention import Attention
from purine.registry.aten import KERNELS
from tests.reference import run, start


def test_attention_is_a_weighted_mean_of_values() -> None:
    q, k, v = torch.randn(3, 2, 2, 4, 3, dtype=torch.float64)
    weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(3), 3)
    torch.testing.assert_close(Attention(q, k, v), weights @ v)
    weights = torch.softmax(q @ k.transpose(2, 3) * 0.2, 3)
    torch.testing.assert_close(Attention(q, k, v, scale=0.2), weights @ v)


def test_a_causal_position_sees_nothing_behind_it() -> None:
    q, k, v = torch.randn(3, 1, 1, 4, 3)
    before = Attention(q, k, v, causal=True)
    v[:, :, 2:] += 1
    after = Attention(q, k, v, causal=True)
    assert torch.equal(before[:, :, :2], after[:, :, :2])
    assert not torch.equal(before[:, :, 2:], after[:, :, 2:])


def test_the_layer_is_that_of_torch() -> None:
    net = Net(dtype="float64")
    y = attention(net.input("x", (2, 5, 8)), heads=2, name="mix")
    graph = check(net.graph())
    states, x = start(graph), torch.randn(2, 5, 8, dtype=torch.float64)
    states["mix/qkv/bias"] = torch.randn(24, dtype=torch.float64)
    found = run(graph, {"x": x}, states)[y.name]

    other = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        other.in_proj_weight.copy_(states["mix/qkv/weight"])
        other.in_proj_bias.copy_(states["mix/qkv/bias"])
        other.out_proj.weight.copy_(states["mix/out/weight"])
        expected, _ = other(x, x, x, need_weights=False)
    torch.testing.assert_close(found, expected)


def test_every_projection_of_a_layer_gets_a_gradient() -> None:
    net = Net()
    y = attention(net.input("x", (2, 4, 6)), heads=3, causal=True, name="mix")
    softmax_loss(y, net.input("label", (2, 4), "int64"), axis=2)
    graph = check(backward(net.graph()))
    for name, state in net.graph().states.items():
        assert state.trainable
        assert graph.blobs[f"grad/{name}"].shape == graph.blobs[name].shape


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(KindError, match="into 4 heads") as caught:
        attention(Net().input("x", (2, 4, 6)), heads=4)
    assert caught.value.blob == "x"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_without_a_kernel_of_the_device_is_that_of_the_cpu(
    causal: bool, masked: bool
) -> None:
    """What a GPU runs where it has no flash attention, here compared on the CPU."""
    if causal and masked:
        pytest.skip("torch takes one or the other")
    q, k, v, pulled = torch.randn(4, 2, 3, 5, 4, dtype=torch.float64)
    mask = torch.randn(2, 1, 5, 5, dtype=torch.float64) if masked else None
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward, pull = KERNELS[name, "cuda"], KERNELS[f"{name}_backward", "cuda"]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    for scale in (None, 0.3):
        found = forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        wanted = flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        torch.testing.assert_close(found, tuple(wanted))
        gradients = pull(pulled, q, k, v, *found, 0.0, causal, attn_mask=mask, scale=scale)
        torch.testing.assert_close(
            gradients,
            tuple(back(pulled, q, k, v, *wanted, 0.0, causal, attn_mask=mask, scale=scale)),
        )
