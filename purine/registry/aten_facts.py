"""The facts about ATen overloads, by canonical name.

Each table has a class of `registry.facts` and the names that belong to it. Precision is a fact of
an operator, so its table names operators, without overloads; the other tables name overloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from purine.registry.facts import Facts, Precision, Role, SampleRule, ShardRule

__all__ = ["OPERATORS", "OVERLOADS", "OVERWRITES", "facts_of"]

T = TypeVar("T")


def _by_name(table: Mapping[T, str]) -> dict[str, T]:
    return {f"aten.{name}": fact for fact, names in table.items() for name in names.split()}


_PRECISION = _by_name(
    {
        Precision.LOW: """
            _convolution addbmm addmm addmv baddbmm bmm conv1d conv2d conv3d conv_transpose1d
            conv_transpose2d conv_transpose3d convolution einsum linear matmul mm mv
            scaled_dot_product_attention
        """,
        Precision.NORM: """
            _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm
        """,
        # Layer norm computes its statistics in float32 inside, whatever its input.
        Precision.FOLLOW: """
            _adaptive_avg_pool2d _to_copy _unsafe_view abs adaptive_avg_pool1d adaptive_avg_pool2d
            adaptive_max_pool2d add alias avg_pool1d avg_pool2d cat chunk clamp clone
            constant_pad_nd contiguous detach div dropout elu expand flatten gelu hardsigmoid
            hardswish hardtanh index index_select layer_norm leaky_relu max_pool1d max_pool2d
            max_pool2d_with_indices maximum mean minimum mul narrow native_layer_norm neg pad
            permute pixel_shuffle relu relu6 repeat reshape roll select sigmoid silu slice split
            split_with_sizes squeeze stack sub t tanh transpose unbind unflatten unsqueeze
            upsample_bilinear2d upsample_nearest2d view where
        """,
        # The gradients of a row of an embedding are added up in the precision of the table.
        Precision.WIDE: """
            _log_softmax _softmax binary_cross_entropy_with_logits cross_entropy_loss cumsum
            embedding exp group_norm log log_softmax logsumexp masked_fill mse_loss
            native_group_norm nll_loss nll_loss_forward nll_loss_nd norm pow prod reciprocal rsqrt
            softmax sqrt sum var var_mean
        """,
    }
)

_SHARD = _by_name(
    {
        ShardRule.ELEMENTWISE: """
            _to_copy abs add.Scalar add.Tensor clamp clone contiguous div.Tensor elu exp gelu
            hardswish hardtanh leaky_relu log mish mul.Scalar mul.Tensor neg pow.Tensor_Scalar relu
            sigmoid silu softplus sqrt sub.Tensor tanh
        """,
        ShardRule.ATTENTION: "scaled_dot_product_attention",
        ShardRule.POOL: "adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d max_pool2d",
        ShardRule.TRANSPOSE: "permute t transpose.int",
        ShardRule.RESHAPE: "flatten.using_ints reshape squeeze.dim unsqueeze",
        ShardRule.SPLIT: "chunk split.Tensor split_with_sizes",
        ShardRule.CONCAT: "cat",
        ShardRule.LAYER_NORM: "layer_norm",
        ShardRule.ALONG_AXIS: "slice.Tensor softmax.int",
        ShardRule.SELECT: "select.int",
        ShardRule.MEAN: "mean.dim",
        ShardRule.BATCHED_PRODUCT: "bmm",
        ShardRule.LINEAR: "linear",
        ShardRule.ADDMM: "addmm",
        ShardRule.MM: "mm",
        ShardRule.MATMUL: "matmul",
        ShardRule.CONVOLUTION: "conv1d conv2d convolution",
        ShardRule.EMBEDDING: "embedding",
    }
)

_SAMPLES = _by_name(
    {
        SampleRule.ROWS: """
            _native_batch_norm_legit_no_training adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d
            avg_pool2d conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input convolution
            group_norm max_pool1d max_pool2d max_pool2d_with_indices native_group_norm
        """,
        SampleRule.IDENTITY: "_to_copy alias clone contiguous detach",
        SampleRule.BATCH_NORM: """
            _native_batch_norm_legit _native_batch_norm_legit.no_stats
            _native_batch_norm_legit_functional native_batch_norm
        """,
        SampleRule.ALONG_AXIS: """
            _log_softmax _softmax cat cumsum log_softmax.int slice.Tensor softmax.int
        """,
        SampleRule.SELECT: "select.int",
        SampleRule.RESHAPE: "reshape view",
        SampleRule.PERMUTE: "permute",
        SampleRule.TRANSPOSE: "t transpose.int",
        SampleRule.LAYER_NORM: "layer_norm native_layer_norm",
        SampleRule.LINEAR: "linear",
        SampleRule.MATRIX_PRODUCT: "addmm bmm matmul mm",
        SampleRule.ATTENTION: "scaled_dot_product_attention",
        SampleRule.EMBEDDING: "embedding",
        SampleRule.CROSS_ENTROPY: "cross_entropy_loss nll_loss_nd",
        SampleRule.SUM: "sum sum.dim_IntList",
        SampleRule.MEAN: "mean mean.dim",
        SampleRule.EXTREME: "amax amin",
    }
)

_ROLE = _by_name(
    {
        Role.CONVOLUTION: "_convolution _convolution.deprecated conv2d conv2d.padding convolution",
        Role.TRANSPOSED_CONVOLUTION: "conv_transpose2d.input",
        Role.CONVOLUTION_BACKWARD: "convolution_backward",
        Role.CONCATENATION: "cat",
        Role.COPY: "_to_copy",
        Role.ELEMENTWISE: "where.self",
    }
)

OVERWRITES: Mapping[str, tuple[int, ...]] = _by_name(
    {
        (0, 1): "add.Tensor mul.Tensor sub.Tensor",
        (0,): """
            div.Tensor elu exp gelu gelu_backward index_add leaky_relu leaky_relu_backward neg relu
            sigmoid sigmoid_backward tanh tanh_backward threshold_backward
        """,
    }
)
"""The inputs that an overload can write its result over."""

OPERATORS = frozenset(_PRECISION)
OVERLOADS = frozenset((*_SHARD, *_SAMPLES, *_ROLE, *OVERWRITES))


@cache
def facts_of(name: str) -> Facts:
    """The facts about an overload.

    >>> facts_of("aten.add.Tensor").precision, facts_of("aten.erfinv").precision
    (<Precision.FOLLOW: 3>, None)
    """
    operator = ".".join(name.split(".")[:2])
    return Facts(_PRECISION.get(operator), _SHARD.get(name), _SAMPLES.get(name), _ROLE.get(name))
