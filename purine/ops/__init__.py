"""Kinds of ops: one file per family, and what is derived from their functions."""

import purine.ops.add_at
import purine.ops.average
import purine.ops.batch_reduce
import purine.ops.caffe_norm
import purine.ops.caffe_recurrent
import purine.ops.ctc
import purine.ops.custom_gradient
import purine.ops.expect
import purine.ops.fused
import purine.ops.group_norm
import purine.ops.grouped
import purine.ops.loss_more
import purine.ops.loss_scale
import purine.ops.pointwise
import purine.ops.rates
import purine.ops.reduce
import purine.ops.sized
import purine.ops.sync_norm
import purine.ops.update  # noqa: F401  (these register kinds or kernels, and have no layers)
from purine.ops.activation import elu, gelu, leaky_relu, relu, relu6, sigmoid, tanh
from purine.ops.attention import attention
from purine.ops.conv import conv, deconv
from purine.ops.data import Data
from purine.ops.eltwise import eltwise
from purine.ops.fillers import fill, filler_problems
from purine.ops.image import center_crop, crop, mirror, normalize
from purine.ops.infer import check, complete, problems, with_batch
from purine.ops.linear import bias, embedding, inner_product, scale
from purine.ops.loss import (
    accuracy,
    euclidean_loss,
    hinge_loss,
    sigmoid_cross_entropy_loss,
    softmax,
    softmax_loss,
)
from purine.ops.net import Net, Var
from purine.ops.norm import batch_norm, layer_norm, lrn
from purine.ops.pool import global_pool, pool
from purine.ops.random import dropout
from purine.ops.registry import kind
from purine.ops.shape import concat, flatten, prepend, reshape, slice, split, transpose

__all__ = [
    "Data",
    "Net",
    "Var",
    "accuracy",
    "attention",
    "batch_norm",
    "bias",
    "center_crop",
    "check",
    "complete",
    "concat",
    "conv",
    "crop",
    "deconv",
    "dropout",
    "eltwise",
    "elu",
    "embedding",
    "euclidean_loss",
    "fill",
    "filler_problems",
    "flatten",
    "gelu",
    "global_pool",
    "hinge_loss",
    "inner_product",
    "kind",
    "layer_norm",
    "leaky_relu",
    "lrn",
    "mirror",
    "normalize",
    "pool",
    "prepend",
    "problems",
    "relu",
    "relu6",
    "reshape",
    "scale",
    "sigmoid",
    "sigmoid_cross_entropy_loss",
    "slice",
    "softmax",
    "softmax_loss",
    "split",
    "tanh",
    "transpose",
    "with_batch",
]
